/* The questions that the probe asks NVML. */
#include "_probe.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *symbol(void *library, const char *name, const char *older)
{
    void *found = dlsym(library, name);
    return found || !older ? found : dlsym(library, older);
}

/* The first of the names that loads. An absolute one that does not exist is no news. */
static void *load(const char *libraries, struct nvc_probe_frame *frame)
{
    int told = 0;

    for (const char *name = libraries; *name; name += strlen(name) + 1) {
        void *library;
        const char *why;

        if (name[0] == '/' && access(name, F_OK) < 0)
            continue;
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
        why = dlerror();
        if (!told || name[0] == '/') /* a file that is there but does not load says more */
            nvc_probe_fail(frame, NVC_PROBE_LOAD, 0, "load library failed", why ? why : name);
        told = 1;
    }
    if (!told)
        nvc_probe_fail(frame, NVC_PROBE_LOAD, 0, "load library failed", "libnvidia-ml.so.1: no such file");
    return NULL;
}

static const char *error_text(const struct nvml *nvml, int code)
{
    const char *text = nvml->error_string ? nvml->error_string(code) : NULL;
    return text ? text : "unknown error";
}

int nvc_probe_fail_call(const struct nvml *nvml, struct nvc_probe_frame *frame, const char *call, int code,
                        const char *uuid)
{
    char whole[512];

    snprintf(whole, sizeof(whole), "%s%s%s", uuid, *uuid ? ": " : "", error_text(nvml, code));
    return nvc_probe_fail(frame, NVC_PROBE_NVML, code, call, whole);
}

int nvc_probe_begin(const char *libraries, struct nvc_probe_frame *frame, struct nvml *nvml)
{
    void *library = load(libraries, frame);
    struct link_map *map = NULL;

    if (!library)
        return -1;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name)
        memcpy(frame->library, map->l_name, strnlen(map->l_name, sizeof(frame->library) - 1));
    /* The cast through void ** is POSIX's way from dlsym to a function. */
    *(void **)&nvml->error_string = symbol(library, "nvmlErrorString", NULL);
#define FIND(field, parameters, name, older) *(void **)&nvml->field = symbol(library, name, older);
    NVML_FUNCTIONS(FIND)
    int code = CALL(init, );
    return code == 0 ? 0 : nvc_probe_fail_call(nvml, frame, "nvmlInit", code, "");
}

static void put(char *field, const char *text)
{
    memset(field, 0, NVC_PROBE_STRING);
    memcpy(field, text, strnlen(text, NVC_PROBE_STRING - 1));
}

/* Strings are taken as they are, terminated or not: judging them is the parent's work. */
static int get_string(int (*function)(nvml_device, char *, unsigned), nvml_device device, char *field)
{
    char buffer[4096] = {0};
    int code = function ? function(device, buffer, NVC_PROBE_STRING) : NVML_FUNCTION_NOT_FOUND;

    if (code == 0)
        memcpy(field, buffer, NVC_PROBE_STRING);
    return code;
}

/* All memory of a device in MiB, or 0 where NVML does not tell: GPUs that share the host's, MIG without rights. */
static uint32_t memory_of(const struct nvml *nvml, nvml_device device)
{
    struct {
        uint64_t total, free, used;
        char rest[4096];
    } memory = {0};

    if (CALL(memory, device, &memory) != 0 || memory.total >> 20 > UINT32_MAX)
        return 0;
    return (uint32_t)(memory.total >> 20);
}

/* How far the GPU is with joining the fabric of NVSwitches; CUDA starts only where that is complete. */
static void query_fabric(const struct nvml *nvml, nvml_device device, struct nvc_probe_gpu *gpu)
{
    struct {
        uint32_t version;
        uint8_t cluster[16];
        int32_t status;
        uint32_t clique;
        uint8_t state;
        uint32_t health;
        char rest[4096];
    } fabric = {.version =
                    36 | 2u << 24}; /* nvmlGpuFabricInfo_v2: the size up to `health` and the version */

    if (CALL(fabric, device, &fabric) != 0)
        return;
    gpu->fabric_state = fabric.state;
    gpu->fabric_status = fabric.status;
}

static void query_mig_device(const struct nvml *nvml, nvml_device device, struct nvc_probe_mig *mig)
{
    const char *call = "nvmlDeviceGetUUID";

    mig->status = get_string(nvml->uuid, device, mig->uuid);
    if (mig->status == 0) {
        call = "nvmlDeviceGetGpuInstanceId";
        mig->status = CALL(gpu_instance, device, &mig->gpu_instance);
    }
    if (mig->status == 0) {
        call = "nvmlDeviceGetComputeInstanceId";
        mig->status = CALL(compute_instance, device, &mig->compute_instance);
    }
    if (mig->status != 0)
        put(mig->uuid, call);
    else
        mig->memory = memory_of(nvml, device);
}

static void query_mig(const struct nvml *nvml, nvml_device device, struct nvc_probe_gpu *gpu)
{
    unsigned current = 0, pending = 0, most = 0;

    if (CALL(mig_mode, device, &current, &pending) != 0)
        return;
    gpu->flags |= NVC_PROBE_MIG_CAPABLE;
    if (current != 1)
        return;
    gpu->flags |= NVC_PROBE_MIG_ENABLED;
    if (CALL(mig_max, device, &most) != 0)
        return;
    /* Indices may have gaps after an instance was destroyed. */
    for (unsigned index = 0; index < most && gpu->mig_count < NVC_PROBE_MAX_MIG; index++) {
        struct nvc_probe_mig *mig = &gpu->mig[gpu->mig_count];
        nvml_device handle = NULL;
        int code = CALL(mig_handle, device, index, &handle);

        if (code == NVML_NOT_FOUND)
            continue;
        mig->index = index;
        if (code == 0)
            query_mig_device(nvml, handle, mig);
        else
            put(mig->uuid, "nvmlDeviceGetMigDeviceHandleByIndex");
        if (code != 0)
            mig->status = code;
        gpu->mig_count++;
    }
}

static void query_gpu(const struct nvml *nvml, unsigned index, struct nvc_probe_gpu *gpu)
{
    /* nvmlPciInfo_t of every version: a string of 16 bytes, then domain, bus and device. */
    struct {
        char legacy[16];
        uint32_t domain, bus, device;
        char rest[4096];
    } pci = {0};
    const char *call = "nvmlDeviceGetHandleByIndex";
    nvml_device device = NULL;

    gpu->index = index;
    gpu->status = CALL(handle, index, &device);
    if (gpu->status == 0) {
        call = "nvmlDeviceGetUUID";
        gpu->status = get_string(nvml->uuid, device, gpu->uuid);
    }
    if (gpu->status == 0) {
        call = "nvmlDeviceGetPciInfo";
        gpu->status = CALL(pci, device, &pci);
    }
    if (gpu->status != 0) {
        put(gpu->uuid, call);
        put(gpu->name, error_text(nvml, gpu->status));
        return;
    }
    gpu->domain = pci.domain;
    gpu->bus = pci.bus;
    gpu->device = pci.device;
    if (CALL(minor, device, &gpu->minor) == 0)
        gpu->flags |= NVC_PROBE_HAS_MINOR;
    if (get_string(nvml->name, device, gpu->name) != 0)
        put(gpu->name, "Unknown");
    if (CALL(brand, device, &gpu->brand) != 0)
        gpu->brand = 0;
    if (CALL(capability, device, &gpu->architecture_major, &gpu->architecture_minor) != 0)
        gpu->architecture_major = gpu->architecture_minor = 0;
    gpu->memory = memory_of(nvml, device);
    query_fabric(nvml, device, gpu);
    query_mig(nvml, device, gpu);
}

void nvc_probe_query(const char *libraries, struct nvc_probe_frame *frame, struct nvc_probe_gpu *gpus)
{
    struct nvml table = {0}, *nvml = &table;
    char version[4096] = {0};
    unsigned count = 0;

    if (nvc_probe_begin(libraries, frame, nvml) < 0)
        return;
    int code = CALL(driver_version, version, sizeof(frame->driver_version));
    if (code != 0) {
        nvc_probe_fail_call(nvml, frame, "nvmlSystemGetDriverVersion", code, "");
        return;
    }
    memcpy(frame->driver_version, version, sizeof(frame->driver_version));
    if (CALL(cuda_version, &frame->cuda_version) != 0)
        frame->cuda_version = 0;
    code = CALL(count, &count);
    if (code != 0) {
        nvc_probe_fail_call(nvml, frame, "nvmlDeviceGetCount", code, "");
        return;
    }
    if (count > NVC_PROBE_MAX_GPUS) {
        nvc_probe_fail(frame, NVC_PROBE_TOO_MANY, (int)count, "nvmlDeviceGetCount", "too many devices");
        return;
    }
    for (unsigned index = 0; index < count; index++)
        query_gpu(nvml, index, &gpus[index]);
    /* Last, so that a failure above leaves a frame without records. Nothing is said of libraries that did not load. */
    nvc_probe_fail(frame, NVC_PROBE_OK, 0, "", NULL);
    frame->gpu_count = count;
}
