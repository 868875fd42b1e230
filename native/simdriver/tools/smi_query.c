/* `--query-gpu` and `--query-compute-apps`. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

enum { MAX_FIELDS = 64, TEXT = 192 };

/* What one row is about. */
struct subject {
    nvmlDevice_t gpu;
    const nvmlProcessInfo_v2_t *process; /* NULL: the GPU itself */
};

typedef nvmlReturn_t (*getter)(const struct subject *, char *);

static nvmlReturn_t put_number(char *out, nvmlReturn_t result, unsigned long long number)
{
    if (result == NVML_SUCCESS)
        snprintf(out, TEXT, "%llu", number);
    return result;
}

static nvmlReturn_t put_watts(char *out, nvmlReturn_t result, unsigned int milliwatts)
{
    if (result == NVML_SUCCESS)
        snprintf(out, TEXT, "%u.%02u", milliwatts / 1000, milliwatts % 1000 / 10);
    return result;
}

#define GET_TEXT(member)                                                                                    \
    static nvmlReturn_t get_##member(const struct subject *of, char *out)                                   \
    {                                                                                                       \
        return nvml.member(of->gpu, out, TEXT);                                                             \
    }

#define GET_NUMBER(member, put)                                                                             \
    static nvmlReturn_t get_##member(const struct subject *of, char *out)                                   \
    {                                                                                                       \
        unsigned int number = 0;                                                                            \
        nvmlReturn_t result = nvml.member(of->gpu, &number);                                                \
        return put(out, result, number);                                                                    \
    }

#define GET_MEMORY(member)                                                                                  \
    static nvmlReturn_t get_memory_##member(const struct subject *of, char *out)                            \
    {                                                                                                       \
        nvmlMemory_v2_t memory = {.version = NVML_VERSION_OF(nvmlMemory_v2_t, 2)};                          \
        nvmlReturn_t result = nvml.memory(of->gpu, &memory);                                                \
        return put_number(out, result, memory.member >> 20);                                                \
    }

GET_TEXT(uuid)
GET_TEXT(name)
GET_TEXT(serial)
GET_NUMBER(index, put_number)
GET_NUMBER(minor, put_number)
GET_NUMBER(power, put_watts)
GET_NUMBER(power_limit, put_watts)
GET_MEMORY(total)
GET_MEMORY(used)
GET_MEMORY(free)
GET_MEMORY(reserved)

static nvmlReturn_t get_bus_id(const struct subject *of, char *out)
{
    nvmlPciInfo_v3_t pci;
    nvmlReturn_t result = nvml.pci(of->gpu, &pci);
    if (result == NVML_SUCCESS)
        snprintf(out, TEXT, "%s", pci.busId);
    return result;
}

static nvmlReturn_t get_driver(const struct subject *of, char *out)
{
    (void)of;
    return nvml.driver_version(out, TEXT);
}

static nvmlReturn_t get_capability(const struct subject *of, char *out)
{
    int major = 0, minor = 0;
    nvmlReturn_t result = nvml.capability(of->gpu, &major, &minor);
    snprintf(out, TEXT, "%d.%d", major, minor);
    return result;
}

static nvmlReturn_t get_busy(const struct subject *of, char *out)
{
    nvmlUtilization_t busy = {0, 0};
    nvmlReturn_t result = nvml.utilization(of->gpu, &busy);
    return put_number(out, result, busy.gpu);
}

static nvmlReturn_t get_clock(const struct subject *of, char *out)
{
    unsigned int mhz = 0;
    nvmlReturn_t result = nvml.clock(of->gpu, 1, &mhz);
    return put_number(out, result, mhz);
}

static nvmlReturn_t get_pid(const struct subject *of, char *out)
{
    return put_number(out, NVML_SUCCESS, of->process->pid);
}

static nvmlReturn_t get_process_name(const struct subject *of, char *out)
{
    return nvml.process_name(of->process->pid, out, TEXT);
}

static nvmlReturn_t get_process_memory(const struct subject *of, char *out)
{
    return put_number(out, NVML_SUCCESS, of->process->usedGpuMemory >> 20);
}

struct field {
    const char *name, *unit;
    getter get;
};

static const struct field gpu_fields[] = {
    {"index", NULL, get_index},
    {"uuid", NULL, get_uuid},
    {"name", NULL, get_name},
    {"serial", NULL, get_serial},
    {"pci.bus_id", NULL, get_bus_id},
    {"minor", NULL, get_minor},
    {"driver_version", NULL, get_driver},
    {"compute_cap", NULL, get_capability},
    {"memory.total", "MiB", get_memory_total},
    {"memory.used", "MiB", get_memory_used},
    {"memory.free", "MiB", get_memory_free},
    {"memory.reserved", "MiB", get_memory_reserved},
    {"utilization.gpu", "%", get_busy},
    {"power.draw", "W", get_power},
    {"power.limit", "W", get_power_limit},
    {"clocks.sm", "MHz", get_clock},
};

static const struct field process_fields[] = {
    {"pid", NULL, get_pid},
    {"process_name", NULL, get_process_name},
    {"used_memory", "MiB", get_process_memory},
    {"gpu_uuid", NULL, get_uuid},
    {"gpu_bus_id", NULL, get_bus_id},
};

static struct query {
    const struct field *fields[MAX_FIELDS];
    size_t count;
    bool csv, bare, unitless;
} query;

static const struct field *find_field(bool of_apps, const char *name)
{
    const struct field *known = of_apps ? process_fields : gpu_fields;
    size_t count = of_apps ? sizeof(process_fields) / sizeof(*known) : sizeof(gpu_fields) / sizeof(*known);
    for (size_t i = 0; i < count; i++)
        if (strcmp(known[i].name, name) == 0)
            return &known[i];
    return NULL;
}

static bool parse(bool of_apps, char *fields, char *format)
{
    char *rest = NULL;
    for (char *word = strtok_r(fields, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        const struct field *field = find_field(of_apps, word);
        if (!field || query.count == MAX_FIELDS) {
            printf("Field \"%s\" is not a valid field to query.\n\n", word);
            return false;
        }
        query.fields[query.count++] = field;
    }
    for (char *word = strtok_r(format, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        bool *flag = strcmp(word, "csv") == 0        ? &query.csv
                     : strcmp(word, "noheader") == 0 ? &query.bare
                     : strcmp(word, "nounits") == 0  ? &query.unitless
                                                     : NULL;
        if (flag)
            *flag = true;
        else
            query.count = 0;
    }
    if (query.csv && query.count)
        return true;
    puts("\"--format=\" switch accepts csv, noheader and nounits, separated by commas; csv must be among "
         "them.");
    return false;
}

static void print_header(void)
{
    for (size_t i = 0; i < query.count; i++) {
        const char *unit = query.fields[i]->unit;
        printf(unit ? "%s%s [%s]" : "%s%s", i ? ", " : "", query.fields[i]->name, unit);
    }
    putchar('\n');
}

static void print_row(const struct subject *of)
{
    for (size_t i = 0; i < query.count; i++) {
        char text[TEXT] = "";
        bool known = query.fields[i]->get(of, text) == NVML_SUCCESS;
        const char *unit = known && !query.unitless ? query.fields[i]->unit : NULL;
        printf("%s%s%s%s", i ? ", " : "", known ? text : "[N/A]", unit ? " " : "", unit ? unit : "");
    }
    putchar('\n');
}

static int print_gpu(nvmlDevice_t gpu)
{
    print_row(&(struct subject){gpu, NULL});
    return 0;
}

static int print_apps(nvmlDevice_t gpu)
{
    static nvmlProcessInfo_v2_t infos[SMI_PROCESSES];
    unsigned int count = SMI_PROCESSES;
    nvmlReturn_t result = nvml.processes(gpu, &count, infos);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count; i++)
        print_row(&(struct subject){gpu, &infos[i]});
    return result == NVML_SUCCESS ? 0 : smi_fail(result);
}

int smi_query(nvmlDevice_t only, bool of_apps, char *fields, char *format)
{
    if (!parse(of_apps, fields, format))
        return SMI_BAD_ARGUMENT;
    if (!query.bare)
        print_header();
    return smi_each(only, of_apps ? print_apps : print_gpu);
}
