/* cuGetProcAddress: functions by name, version and kind of default stream. */
#include "driver.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Declared without their types, which are in other files: only the addresses matter. */
#define ENTRY(class, symbol, name, since, ...) extern const char sim_##symbol[] __asm__(#symbol);
#include "abi/cuda.def"
#undef ENTRY

struct entry {
    const char *name, *symbol;
    int version; /* of CUDA since which the name means this */
    const char *address;
};

#define ALSO(symbol, name, since) {#name, #symbol, since, sim_##symbol},
#define ENTRY(class, symbol, name, since, ...) ALSO(symbol, name, since)
/* Ordered by name. */
static const struct entry entries[] = {
#include "abi/cuda.def"
};

static bool is_per_thread(const struct entry *entry)
{
    const char *end = entry->symbol + strlen(entry->symbol) - 5;
    return strcmp(end, "_ptsz") == 0 || strcmp(end, "_ptds") == 0;
}

static const struct entry *first_of(const char *name)
{
    size_t low = 0, high = sizeof(entries) / sizeof(entries[0]);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(entries[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < sizeof(entries) / sizeof(entries[0]) && strcmp(entries[low].name, name) == 0;
    return found ? &entries[low] : NULL;
}

/* The newest that the caller's version has; for per-thread default streams one of these, where there is any. */
static CUresult find(const char *name, void **out, int version, uint64_t flags, int *status)
{
    const struct entry *best = NULL, *end = entries + sizeof(entries) / sizeof(entries[0]);
    int supported;
    CU_ARGUMENT(name && out && flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    CU_TRY(cuDriverGetVersion(&supported));
    CU_ARGUMENT(version <= supported);
    const struct entry *first = first_of(name);
    bool per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    for (const struct entry *at = first; at && at < end && strcmp(at->name, name) == 0; at++) {
        bool more = best && is_per_thread(at) > is_per_thread(best);
        bool same = !best || is_per_thread(at) == is_per_thread(best);
        if (at->version <= version && (per_thread || !is_per_thread(at)) &&
            (!best || more || (same && at->version > best->version)))
            best = at;
    }
    *out = best ? (void *)(uintptr_t)best->address : NULL;
    *status = best    ? CU_GET_PROC_ADDRESS_SUCCESS
              : first ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

CU_API CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    int status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CU_TRY(find(name, out, version, flags, &status));
    return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CU_API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    int found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result = find(name, out, version, flags, &found);
    if (status)
        *status = found;
    return result;
}

/* The table that libcudart asks for first of those that it cannot do without. */
static const CUuuid runtime_table = {
    {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}};

/* Says once what libcudart's "named symbol not found" does not. */
static void tell_runtime(void)
{
    static bool told;
    if (!__atomic_exchange_n(&told, true, __ATOMIC_RELAXED))
        dprintf(STDERR_FILENO,
                "libcuda (simulated): NVIDIA's CUDA runtime (libcudart) runs only on NVIDIA's driver; "
                "programs on the CUDA driver API run here\n");
}

/* Private tables of the driver: there are none, which programs that ask for them must expect. NVIDIA's runtime has
 * one of them prove that the driver is NVIDIA's. This driver does not pretend to be. */
CU_API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    CU_ARGUMENT(table && id);
    *table = NULL;
    if (memcmp(id, &runtime_table, sizeof(runtime_table)) == 0)
        tell_runtime();
    return CUDA_ERROR_NOT_FOUND;
}
