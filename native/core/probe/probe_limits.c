/* Limits of memory by cgroup, which NVML has since driver 615. */
#include "_probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, FUNCTION_NOT_FOUND = 13 };

typedef void *nvml_device;

/* nvmlSetMemoryLimits_v1_t, and with the last field nvmlGetMemoryLimits_v1_t. */
struct limits {
    const char *cgroup;
    unsigned long long soft, hard, used;
};

struct nvml {
    int (*init)(void);
    const char *(*error_string)(int);
    int (*handle)(const char *, nvml_device *);
    int (*set)(nvml_device, struct limits *);
    int (*get)(nvml_device, struct limits *);
};

static int fail(const struct nvml *nvml, struct nvc_probe_frame *frame, const char *step, int code,
                const char *uuid)
{
    const char *text = nvml->error_string ? nvml->error_string(code) : NULL;
    char whole[256];

    snprintf(whole, sizeof(whole), "%s%s%.120s", uuid, *uuid ? ": " : "", text ? text : "unknown error");
    return nvc_probe_fail(frame, NVC_PROBE_NVML, code, step, whole);
}

static void resolve(void *library, struct nvml *nvml)
{
    *(void **)&nvml->init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml->error_string = dlsym(library, "nvmlErrorString");
    *(void **)&nvml->handle = dlsym(library, "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml->set = dlsym(library, "nvmlDeviceSetMemoryLimits_v1");
    *(void **)&nvml->get = dlsym(library, "nvmlDeviceGetMemoryLimits_v1");
}

/* Sets one limit. What was set before is told where NVML tells it: it may know a cgroup without limits, or not. */
static int replace(const struct nvml *nvml, struct nvc_probe_frame *frame, const char *cgroup,
                   const struct nvc_probe_limit *limit, struct nvc_probe_limit *before)
{
    struct limits now = {.cgroup = cgroup},
                  then = {.cgroup = cgroup, .soft = limit->soft, .hard = limit->hard};
    nvml_device device = NULL;
    int code = nvml->handle(limit->uuid, &device);

    if (code != 0)
        return fail(nvml, frame, "nvmlDeviceGetHandleByUUID", code, limit->uuid);
    code = nvml->get(device, &now);
    if (code == NOT_FOUND || code == NOT_SUPPORTED) {
        now.soft = 0;
        now.hard = UINT64_MAX;
    } else if (code != 0) {
        return fail(nvml, frame, "nvmlDeviceGetMemoryLimits", code, limit->uuid);
    }
    before->soft = now.soft;
    before->hard = now.hard;
    memcpy(before->uuid, limit->uuid, sizeof(before->uuid));
    code = nvml->set(device, &then);
    return code == 0 ? 0 : fail(nvml, frame, "nvmlDeviceSetMemoryLimits", code, limit->uuid);
}

void nvc_probe_set_limits(const struct nvc_probe_options *options, struct nvc_probe_frame *frame,
                          struct nvc_probe_limit *before)
{
    struct nvml nvml = {0};
    void *library = nvc_probe_load(options->libraries, frame);
    uint32_t done = 0;
    int code;

    if (!library)
        return;
    resolve(library, &nvml);
    if (!nvml.init || !nvml.handle || !nvml.set || !nvml.get) {
        fail(&nvml, frame, "nvmlDeviceSetMemoryLimits", FUNCTION_NOT_FOUND, "");
        return;
    }
    code = nvml.init();
    if (code != 0) {
        fail(&nvml, frame, "nvmlInit", code, "");
        return;
    }
    while (done < options->limit_count &&
           replace(&nvml, frame, options->cgroup, &options->limits[done], &before[done]) == 0)
        done++;
    if (done == options->limit_count) {
        frame->gpu_count = done;
        return;
    }
    while (done-- > 0) {
        struct nvc_probe_frame again = {0};
        struct nvc_probe_limit replaced;
        size_t said = strnlen(frame->text, sizeof(frame->text));
        if (replace(&nvml, &again, options->cgroup, &before[done], &replaced) < 0)
            snprintf(frame->text + said, sizeof(frame->text) - said, ", and the new limit stays on %s",
                     again.text);
    }
}
