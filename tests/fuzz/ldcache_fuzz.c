/* Fuzzes nvc_ldcache_merge: the first byte chooses what is added, the rest is the image's cache. */
#include "ldcache_checked.h"

static const struct nvc_ldcache_entry pool[] = {
    {"libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", 0x0303},
    {"libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1", 0x0003},
    {"libcuda.so.01", "/opt/libcuda.so.01", 0x0303},
    {"libz.so.1", "/opt/driver/libz.so.1", 0x0303},
    {"libcuda.so.4294967297", "/opt/wrapped", 0x0303},
    {"a", "/a", 0x0a03},
    {"zzz.so", "/zzz.so", 0x0303},
    {"libcuda.so.1", "/opt/other/libcuda.so.1", 0x0303},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct nvc_ldcache_entry add[8];
    size_t count = 0, merged_size;
    uint8_t *merged;

    if (size < 1)
        return 0;
    for (int i = 0; i < 8; i++)
        if (data[0] >> i & 1)
            add[count++] = pool[i];
    /* A copy of its own, so that the sanitizer sees a read behind the end. */
    uint8_t *old = malloc(size);
    if (old == NULL)
        return 0;
    memcpy(old, data + 1, size - 1);
    if (checked_merge(old, size - 1, add, count, &merged, &merged_size) == 0)
        free(merged);
    free(old);
    return 0;
}
