/* NVML's numbers of memory and processes, of the slice. The real library calls its own exports through the symbols that
 * we stand for, so a thread that is inside it gets the real answers. */
#include "abi/nvml.h"
#include "slice/account.h"

#include <ctype.h>
#include <string.h>

#define NVML(class, name, ...) class##_ROW(name, NONE, __VA_ARGS__)
#define REAL_TABLE "abi/nvml.def"
#define REAL_RESULT nvmlReturn_t
#define REAL_API NVML_API
#define REAL_FILE "nvc/real-libnvidia-ml.so.1"
#define REAL_LACKS NVML_ERROR_FUNCTION_NOT_FOUND
#include "process/entries.h"

/* Not a thread-local of the dynamic kind, which would allocate. */
static __thread int inside __attribute__((tls_model("initial-exec")));

#define GUARDED(call)                                                                                       \
    __extension__({                                                                                         \
        inside++;                                                                                           \
        nvmlReturn_t guarded_ = (call);                                                                     \
        inside--;                                                                                           \
        guarded_;                                                                                           \
    })

/* From `GPU-5f2c...` or `MIG-5f2c...`. */
static bool parse_uuid(const char *text, uint8_t out[16])
{
    unsigned int digits = 0;
    if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
        return false;
    for (const char *c = text + 4; *c && digits < 32; c++) {
        if (*c == '-')
            continue;
        if (!isxdigit((unsigned char)*c))
            return false;
        unsigned int value =
            isdigit((unsigned char)*c) ? (unsigned int)(*c - '0') : (unsigned int)(*c | 32) - 'a' + 10;
        out[digits / 2] = (uint8_t)(digits % 2 ? out[digits / 2] | value : value << 4);
        digits++;
    }
    return digits == 32;
}

static int position_of(nvmlDevice_t device)
{
    char text[NVML_UUID_ROOM] = "";
    uint8_t uuid[16];
    if (GUARDED(REAL(nvmlDeviceGetUUID)(device, text, sizeof(text))) != NVML_SUCCESS)
        return NO_POSITION;
    text[sizeof(text) - 1] = '\0';
    return parse_uuid(text, uuid) ? account_position(uuid) : NO_POSITION;
}

/* False: this device is not sliced, and the driver's own numbers stand. */
static bool slice_of(nvmlDevice_t device, uint64_t *total, uint64_t *free_bytes, uint64_t *used)
{
    struct account_view view;
    int position = position_of(device);
    if (position == NO_POSITION || !account_view(position, &view) || view.limit == VGPU_NO_LIMIT)
        return false;
    *total = view.limit < *total ? view.limit : *total;
    *used = view.used < *total ? view.used : *total;
    if (*free_bytes > *total - *used)
        *free_bytes = *total - *used;
    return true;
}

/* What another field than the three is to be, is the last. */
#define MEMORY_INFO(name, type, other)                                                                      \
    NVML_API nvmlReturn_t name(nvmlDevice_t device, type *memory)                                           \
    {                                                                                                       \
        nvmlReturn_t result = GUARDED(REAL(name)(device, memory));                                          \
        if (inside || result != NVML_SUCCESS || !memory)                                                    \
            return result;                                                                                  \
        uint64_t total = memory->total, left = memory->free, used;                                          \
        if (slice_of(device, &total, &left, &used))                                                         \
            *memory = (type){.total = total, .free = left, .used = used, other};                            \
        return result;                                                                                      \
    }

MEMORY_INFO(nvmlDeviceGetMemoryInfo, nvmlMemory_t, )
MEMORY_INFO(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t, .version = memory->version)

static unsigned int instance_of(nvmlDevice_t device, int index)
{
    unsigned int id = NVML_NO_INSTANCE;
    nvmlReturn_t (*get)(nvmlDevice_t, unsigned int *) =
        (nvmlReturn_t(*)(nvmlDevice_t, unsigned int *))real_get(index);
    return GUARDED(get(device, &id)) == NVML_SUCCESS ? id : NVML_NO_INSTANCE;
}

/* Writes as many as there is room for, by the size of a record, which all begin alike. */
static nvmlReturn_t list(nvmlDevice_t device, int position, unsigned int *count, void *out, size_t record)
{
    struct account_process processes[VGPU_SLOTS];
    unsigned int room = *count;
    uint32_t found = account_processes(position, processes);
    unsigned int gpu = NVML_NO_INSTANCE, compute = NVML_NO_INSTANCE;
    if (found && out && record > sizeof(nvmlProcessInfo_v1_t)) {
        gpu = instance_of(device, REAL_nvmlDeviceGetGpuInstanceId);
        compute = instance_of(device, REAL_nvmlDeviceGetComputeInstanceId);
    }
    for (uint32_t i = 0; out && i < found && i < room; i++) {
        nvmlProcessDetail_v1_t full = {.pid = processes[i].pid,
                                       .usedGpuMemory = processes[i].bytes,
                                       .gpuInstanceId = gpu,
                                       .computeInstanceId = compute};
        memcpy((char *)out + i * record, &full, record);
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The container's own processes, by the pids that it knows them by; the driver's list is of the whole card. */
static nvmlReturn_t replace(nvmlDevice_t device, unsigned int *count, void *out, size_t record, bool any,
                            unsigned int room, nvmlReturn_t result)
{
    int position = inside || !count || (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
                       ? NO_POSITION
                       : position_of(device);
    if (position == NO_POSITION)
        return result;
    *count = any ? room : 0;
    return any ? list(device, position, count, out, record) : NVML_SUCCESS;
}

#define PROCESSES(name, type, any)                                                                          \
    NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *out)                         \
    {                                                                                                       \
        unsigned int room = count ? *count : 0;                                                             \
        nvmlReturn_t result = GUARDED(REAL(name)(device, count, out));                                      \
        return replace(device, count, out, sizeof(type), any, room, result);                                \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, true)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, false)

NVML_API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                            nvmlProcessDetailList_t *out)
{
    unsigned int room = out ? out->numProcArrayEntries : 0;
    nvmlReturn_t result = GUARDED(REAL(nvmlDeviceGetRunningProcessDetailList)(device, out));
    if (!out)
        return result;
    return replace(device, &out->numProcArrayEntries, out->procArray, sizeof(nvmlProcessDetail_v1_t),
                   out->mode == 0, room, result);
}
