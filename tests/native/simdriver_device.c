/* Starting, devices, contexts, and finding functions. */
#include "simdriver_test.h"

#include <dlfcn.h>

static void nothing_works_before_init(void)
{
    int count, version;
    CUdeviceptr address;
    const char *text;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&address, 1));
    OK(cuDriverGetVersion(&version));
    CHECK(version == 13000);
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "out of memory") == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
    CHECK(!text);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    OK(cuInit(0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&address, 1));
}

static void devices_are_described(void)
{
    int count, value;
    char name[128], bus[32];
    size_t total;
    CUdevice device;
    CUuuid first, second;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 2);
    OK(cuDeviceGetName(name, sizeof(name), 0));
    CHECK(strcmp(name, "NVIDIA H100 80GB HBM3 (simulated)") == 0);
    OK(cuDeviceGetName(name, 7, 0));
    CHECK(strcmp(name, "NVIDIA") == 0);
    OK(cuDeviceTotalMem_v2(&total, 1));
    CHECK(total == (81559 - 551) * MIB);
    OK(cuDeviceGetAttribute(&value, 16, 0));
    CHECK(value == 132);
    OK(cuDeviceGetAttribute(&value, 75, 0));
    CHECK(value == 9);
    OK(cuDeviceGetAttribute(&value, 102, 0));
    CHECK(value == 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, 100000, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, 16, 2));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, -1));
    OK(cuDeviceGetPCIBusId(bus, sizeof(bus), 1));
    CHECK(strcmp(bus, "0000:43:00.0") == 0);
    OK(cuDeviceGetByPCIBusId(&device, bus));
    CHECK(device == 1);
    OK(cuDeviceGetUuid(&first, 0));
    OK(cuDeviceGetUuid_v2(&second, 1));
    CHECK(memcmp(&first, &second, sizeof(first)) != 0);
    OK(cuDeviceCanAccessPeer(&value, 0, 1));
    CHECK(value == 1);
}

static void contexts_stack(void)
{
    CUcontext one, other, current;
    CUdevice device;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&one, 0, 0));
    OK(cuCtxCreate_v4(&other, NULL, 0, 1));
    OK(cuCtxGetDevice(&device));
    CHECK(device == 1);
    OK(cuCtxPopCurrent_v2(&current));
    CHECK(current == other);
    OK(cuCtxGetCurrent(&current));
    CHECK(current == one);
    EXPECT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(other));
    OK(cuCtxEnablePeerAccess(other, 0));
    EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(other, 0));
    OK(cuCtxDestroy_v2(one));
    OK(cuCtxGetCurrent(&current));
    CHECK(!current);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(one));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(&current));
    OK(cuCtxDestroy_v2(other));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(other));
}

/* Each entry of the table is an entry point of the library, and is found under its name and version, unless that is a
 * later driver's. */
static void every_entry_point_is_found(void)
{
    static const struct {
        const char *name, *symbol;
        int version;
    } entries[] = {
#define ALSO(symbol, name, since) {#name, #symbol, since},
#define ENTRY(class, symbol, name, since, ...) ALSO(symbol, name, since)
#include "abi/cuda.def"
    };
    int driver;
    OK(cuInit(0));
    OK(cuDriverGetVersion(&driver));
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *address;
        bool later = entries[i].version > driver;
        bool per_thread = strstr(entries[i].symbol, "_ptsz") || strstr(entries[i].symbol, "_ptds");
        EXPECT(later ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS,
               cuGetProcAddress(entries[i].name, &address, entries[i].version, per_thread ? 2 : 1));
        CHECK(later || (address && address == dlsym(RTLD_DEFAULT, entries[i].symbol)));
    }
}

const struct test device_tests[] = {
    {"nothing_works_before_init", nothing_works_before_init},
    {"devices_are_described", devices_are_described},
    {"contexts_stack", contexts_stack},
    {"every_entry_point_is_found", every_entry_point_is_found},
    {NULL, NULL},
};
