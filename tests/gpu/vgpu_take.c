/* Takes memory by one way of the driver API until it is refused: prints the way, MiB got, the code of the refusal, and what
 * cuMemGetInfo and cuDeviceTotalMem say. Usage: vgpu_take linear|pitch|managed|async|array|vmm */
#include "vgpu_driver.h"

#include <string.h>

enum { CHUNK = 256 << 20, MAXIMUM = 1000 };

struct array_descriptor {
    size_t width, height;
    unsigned format, channels;
};

struct location {
    unsigned type;
    int id;
};

struct allocation {
    unsigned type, handles;
    struct location location;
    void *win32;
    unsigned char flags[8];
};

static int take(const char *way)
{
    pointer memory;
    size_t pitch;
    void *handle;

    if (strcmp(way, "linear") == 0)
        return CALL("cuMemAlloc_v2", (pointer *, size_t), &memory, CHUNK);
    if (strcmp(way, "pitch") == 0)
        return CALL("cuMemAllocPitch_v2", (pointer *, size_t *, size_t, size_t, unsigned), &memory, &pitch,
                    1 << 16, CHUNK >> 16, 4);
    if (strcmp(way, "managed") == 0) {
        int code = CALL("cuMemAllocManaged", (pointer *, size_t, unsigned), &memory, CHUNK, 1);
        return code ? code : CALL("cuMemsetD8_v2", (pointer, unsigned char, size_t), memory, 0, CHUNK);
    }
    if (strcmp(way, "async") == 0) {
        int code = CALL("cuMemAllocAsync", (pointer *, size_t, void *), &memory, CHUNK, NULL);
        return code ? code : CALL("cuStreamSynchronize", (void *), NULL);
    }
    if (strcmp(way, "array") == 0) {
        struct array_descriptor descriptor = {16384, 4096, 0x20, 1}; /* floats */
        return CALL("cuArrayCreate_v2", (void **, const struct array_descriptor *), &handle, &descriptor);
    }
    struct allocation wanted = {.type = 1, .location = {1, 0}};
    return CALL("cuMemCreate", (pointer *, size_t, const struct allocation *, unsigned long long), &memory,
                CHUNK, &wanted, 0);
}

int main(int count, char **arguments)
{
    size_t free_bytes = 0, all_bytes = 0, device_bytes = 0;
    int device, code = 0, got = 0;

    if (count != 2)
        return 2;
    open_driver();
    MUST("cuInit", (unsigned), 0);
    MUST("cuDeviceGet", (int *, int), &device, 0);
    use_device(0);
    MUST("cuMemGetInfo_v2", (size_t *, size_t *), &free_bytes, &all_bytes);
    MUST("cuDeviceTotalMem_v2", (size_t *, int), &device_bytes, device);
    while (got < MAXIMUM && (code = take(arguments[1])) == 0)
        got++;
    printf("%s got %d refused %d free %zu total %zu device %zu\n", arguments[1], got * (CHUNK >> 20), code,
           free_bytes >> 20, all_bytes >> 20, device_bytes >> 20);
    return 0;
}
