/* `--query-gpu` and `--query-compute-apps`. */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_FIELDS = 64, MAX_PROCESSES = 1024, TEXT = 192 };

/* What one row is about. */
struct subject {
    const struct smi_nvml *nvml;
    nvmlDevice_t gpu;
    const nvmlProcessInfo_v2_t *process; /* NULL: the GPU itself */
};

struct value {
    char text[TEXT];
    const char *unit;
};

typedef nvmlReturn_t (*getter)(const struct subject *, struct value *);

static nvmlReturn_t put_number(struct value *out, nvmlReturn_t result, unsigned long long number)
{
    if (result == NVML_SUCCESS)
        snprintf(out->text, TEXT, "%llu", number);
    return result;
}

static nvmlReturn_t get_index(const struct subject *of, struct value *out)
{
    unsigned int index = 0;
    nvmlReturn_t result = of->nvml->index(of->gpu, &index);
    return put_number(out, result, index);
}

static nvmlReturn_t get_minor(const struct subject *of, struct value *out)
{
    unsigned int minor = 0;
    nvmlReturn_t result = of->nvml->minor(of->gpu, &minor);
    return put_number(out, result, minor);
}

static nvmlReturn_t get_count(const struct subject *of, struct value *out)
{
    unsigned int count = 0;
    nvmlReturn_t result = of->nvml->count(&count);
    return put_number(out, result, count);
}

static nvmlReturn_t get_uuid(const struct subject *of, struct value *out)
{
    return of->nvml->uuid(of->gpu, out->text, TEXT);
}

static nvmlReturn_t get_name(const struct subject *of, struct value *out)
{
    return of->nvml->name(of->gpu, out->text, TEXT);
}

static nvmlReturn_t get_serial(const struct subject *of, struct value *out)
{
    return of->nvml->serial(of->gpu, out->text, TEXT);
}

static nvmlReturn_t get_bus_id(const struct subject *of, struct value *out)
{
    nvmlPciInfo_v3_t pci;
    nvmlReturn_t result = of->nvml->pci(of->gpu, &pci);
    if (result == NVML_SUCCESS)
        snprintf(out->text, TEXT, "%s", pci.busId);
    return result;
}

static nvmlReturn_t get_driver(const struct subject *of, struct value *out)
{
    return of->nvml->driver_version(out->text, TEXT);
}

static nvmlReturn_t get_cuda(const struct subject *of, struct value *out)
{
    int version = 0;
    nvmlReturn_t result = of->nvml->cuda_version(&version);
    snprintf(out->text, TEXT, "%d.%d", version / 1000, version % 1000 / 10);
    return result;
}

static nvmlReturn_t get_capability(const struct subject *of, struct value *out)
{
    int major = 0, minor = 0;
    nvmlReturn_t result = of->nvml->capability(of->gpu, &major, &minor);
    snprintf(out->text, TEXT, "%d.%d", major, minor);
    return result;
}

static nvmlReturn_t get_timestamp(const struct subject *of, struct value *out)
{
    struct timespec now;
    struct tm local;
    char day[64];
    (void)of;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    strftime(day, sizeof(day), "%Y/%m/%d %H:%M:%S", &local);
    snprintf(out->text, TEXT, "%s.%03ld", day, now.tv_nsec / 1000000);
    return NVML_SUCCESS;
}

static nvmlReturn_t get_memory(const struct subject *of, nvmlMemory_v2_t *memory, struct value *out)
{
    *memory = (nvmlMemory_v2_t){.version = NVML_VERSION_OF(nvmlMemory_v2_t, 2)};
    out->unit = "MiB";
    return of->nvml->memory(of->gpu, memory);
}

#define MEMORY(member)                                                                                      \
    static nvmlReturn_t get_memory_##member(const struct subject *of, struct value *out)                    \
    {                                                                                                       \
        nvmlMemory_v2_t memory;                                                                             \
        nvmlReturn_t result = get_memory(of, &memory, out);                                                 \
        return put_number(out, result, memory.member >> 20);                                                \
    }

MEMORY(total)
MEMORY(used)
MEMORY(free)
MEMORY(reserved)

static nvmlReturn_t get_busy(const struct subject *of, struct value *out)
{
    nvmlUtilization_t busy = {0, 0};
    nvmlReturn_t result = of->nvml->utilization(of->gpu, &busy);
    out->unit = "%";
    return put_number(out, result, busy.gpu);
}

static nvmlReturn_t get_memory_busy(const struct subject *of, struct value *out)
{
    nvmlUtilization_t busy = {0, 0};
    nvmlReturn_t result = of->nvml->utilization(of->gpu, &busy);
    out->unit = "%";
    return put_number(out, result, busy.memory);
}

static nvmlReturn_t get_temperature(const struct subject *of, struct value *out)
{
    unsigned int degrees = 0;
    nvmlReturn_t result = of->nvml->temperature(of->gpu, 0, &degrees);
    return put_number(out, result, degrees);
}

static nvmlReturn_t put_watts(struct value *out, nvmlReturn_t result, unsigned int milliwatts)
{
    out->unit = "W";
    if (result == NVML_SUCCESS)
        snprintf(out->text, TEXT, "%u.%02u", milliwatts / 1000, milliwatts % 1000 / 10);
    return result;
}

static nvmlReturn_t get_power(const struct subject *of, struct value *out)
{
    unsigned int milliwatts = 0;
    nvmlReturn_t result = of->nvml->power(of->gpu, &milliwatts);
    return put_watts(out, result, milliwatts);
}

static nvmlReturn_t get_power_limit(const struct subject *of, struct value *out)
{
    unsigned int milliwatts = 0;
    nvmlReturn_t result = of->nvml->power_limit(of->gpu, &milliwatts);
    return put_watts(out, result, milliwatts);
}

static nvmlReturn_t get_clock(const struct subject *of, struct value *out)
{
    unsigned int mhz = 0;
    out->unit = "MHz";
    nvmlReturn_t result = of->nvml->clock(of->gpu, 1, &mhz);
    return put_number(out, result, mhz);
}

static nvmlReturn_t get_memory_clock(const struct subject *of, struct value *out)
{
    unsigned int mhz = 0;
    out->unit = "MHz";
    nvmlReturn_t result = of->nvml->clock(of->gpu, 2, &mhz);
    return put_number(out, result, mhz);
}

static nvmlReturn_t get_mig(const struct subject *of, struct value *out)
{
    unsigned int current = 0, pending = 0;
    nvmlReturn_t result = of->nvml->mig_mode(of->gpu, &current, &pending);
    snprintf(out->text, TEXT, "%s", current ? "Enabled" : "Disabled");
    return result;
}

static nvmlReturn_t get_pid(const struct subject *of, struct value *out)
{
    return put_number(out, NVML_SUCCESS, of->process->pid);
}

static nvmlReturn_t get_process_name(const struct subject *of, struct value *out)
{
    return of->nvml->process_name(of->process->pid, out->text, TEXT);
}

static nvmlReturn_t get_process_memory(const struct subject *of, struct value *out)
{
    out->unit = "MiB";
    return put_number(out, NVML_SUCCESS, of->process->usedGpuMemory >> 20);
}

struct field {
    const char *name, *alias;
    getter get;
};

static const struct field gpu_fields[] = {
    {"index", "index", get_index},
    {"uuid", "gpu_uuid", get_uuid},
    {"name", "gpu_name", get_name},
    {"serial", "gpu_serial", get_serial},
    {"pci.bus_id", "gpu_bus_id", get_bus_id},
    {"minor", "minor", get_minor},
    {"count", "count", get_count},
    {"driver_version", "driver_version", get_driver},
    {"cuda_version", "cuda_version", get_cuda},
    {"compute_cap", "compute_cap", get_capability},
    {"timestamp", "timestamp", get_timestamp},
    {"memory.total", "memory.total", get_memory_total},
    {"memory.used", "memory.used", get_memory_used},
    {"memory.free", "memory.free", get_memory_free},
    {"memory.reserved", "memory.reserved", get_memory_reserved},
    {"utilization.gpu", "utilization.gpu", get_busy},
    {"utilization.memory", "utilization.memory", get_memory_busy},
    {"temperature.gpu", "temperature.gpu", get_temperature},
    {"power.draw", "power.draw", get_power},
    {"power.limit", "enforced.power.limit", get_power_limit},
    {"clocks.sm", "clocks.current.sm", get_clock},
    {"clocks.mem", "clocks.current.memory", get_memory_clock},
    {"mig.mode.current", "mig.mode.current", get_mig},
    {"mig.mode.pending", "mig.mode.pending", get_mig},
};

static const struct field process_fields[] = {
    {"pid", "pid", get_pid},
    {"process_name", "name", get_process_name},
    {"used_memory", "used_gpu_memory", get_process_memory},
    {"gpu_uuid", "gpu_uuid", get_uuid},
    {"gpu_name", "gpu_name", get_name},
    {"gpu_bus_id", "gpu_bus_id", get_bus_id},
};

struct query {
    const struct field *fields[MAX_FIELDS];
    size_t count;
    bool csv, header, units;
};

static const struct field *find_field(bool of_apps, const char *name)
{
    const struct field *known = of_apps ? process_fields : gpu_fields;
    size_t count = of_apps ? sizeof(process_fields) / sizeof(*known) : sizeof(gpu_fields) / sizeof(*known);
    for (size_t i = 0; i < count; i++)
        if (strcmp(known[i].name, name) == 0 || strcmp(known[i].alias, name) == 0)
            return &known[i];
    return NULL;
}

static bool parse(struct query *query, bool of_apps, char *fields, char *format)
{
    char *rest = NULL;
    *query = (struct query){.header = true, .units = true};
    for (char *word = strtok_r(fields, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        const struct field *field = find_field(of_apps, word);
        if (!field || query->count == MAX_FIELDS) {
            printf("Field \"%s\" is not a valid field to query.\n\n", word);
            return false;
        }
        query->fields[query->count++] = field;
    }
    for (char *word = strtok_r(format, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (strcmp(word, "csv") == 0)
            query->csv = true;
        else if (strcmp(word, "noheader") == 0)
            query->header = false;
        else if (strcmp(word, "nounits") == 0)
            query->units = false;
        else
            query->count = 0;
    }
    if (query->csv && query->count)
        return true;
    puts("\"--format=\" switch accepts csv, noheader and nounits, separated by commas; csv must be among "
         "them.");
    return false;
}

/* Units are named by the header, before any device was asked. */
static const char *unit_of(const struct field *field)
{
    if (strncmp(field->name, "memory.", 7) == 0 || strcmp(field->name, "used_memory") == 0)
        return " [MiB]";
    if (strncmp(field->name, "utilization.", 12) == 0)
        return " [%]";
    if (strncmp(field->name, "power.", 6) == 0)
        return " [W]";
    return strncmp(field->name, "clocks.", 7) == 0 ? " [MHz]" : "";
}

static void print_header(const struct query *query)
{
    for (size_t i = 0; i < query->count; i++)
        printf("%s%s%s", i ? ", " : "", query->fields[i]->name, unit_of(query->fields[i]));
    putchar('\n');
}

static void print_row(const struct query *query, const struct subject *of)
{
    for (size_t i = 0; i < query->count; i++) {
        struct value value = {"", NULL};
        if (query->fields[i]->get(of, &value) != NVML_SUCCESS)
            value = (struct value){"[N/A]", NULL};
        bool unit = query->units && value.unit;
        printf("%s%s%s%s", i ? ", " : "", value.text, unit ? " " : "", unit ? value.unit : "");
    }
    putchar('\n');
}

static nvmlReturn_t print_gpu(const struct query *query, const struct smi_nvml *nvml, nvmlDevice_t gpu,
                              bool of_apps)
{
    static nvmlProcessInfo_v2_t infos[MAX_PROCESSES];
    unsigned int count = MAX_PROCESSES;
    struct subject subject = {nvml, gpu, NULL};
    if (!of_apps) {
        print_row(query, &subject);
        return NVML_SUCCESS;
    }
    nvmlReturn_t result = nvml->processes(gpu, &count, infos);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count; i++) {
        subject.process = &infos[i];
        print_row(query, &subject);
    }
    return result;
}

int smi_query(const struct smi_nvml *nvml, nvmlDevice_t only, bool of_apps, char *fields, char *format)
{
    struct query query;
    unsigned int count = 0;
    if (!parse(&query, of_apps, fields, format))
        return SMI_BAD_ARGUMENT;
    nvmlReturn_t result = nvml->count(&count);
    if (result == NVML_SUCCESS && count == 0)
        result = NVML_ERROR_NOT_FOUND;
    if (result != NVML_SUCCESS)
        return smi_fail(nvml, result);
    if (query.header)
        print_header(&query);
    for (unsigned int i = 0; i < (only ? 1 : count) && result == NVML_SUCCESS; i++) {
        nvmlDevice_t gpu = only;
        if (!only)
            result = nvml->by_index(i, &gpu);
        if (result == NVML_SUCCESS)
            result = print_gpu(&query, nvml, gpu, of_apps);
    }
    return result == NVML_SUCCESS ? 0 : smi_fail(nvml, result);
}
