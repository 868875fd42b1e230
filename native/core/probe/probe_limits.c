/* Limits of memory by cgroup, which NVML has since driver 615. */
#include "_probe.h"

#include <stdio.h>
#include <string.h>

/* nvmlSetMemoryLimits_v1_t, and with the last field nvmlGetMemoryLimits_v1_t. */
struct nvml_limits {
    const char *cgroup;
    unsigned long long soft, hard, used;
};

/* Sets one limit. What was set before is told where NVML tells it: it may know a cgroup without limits, or not. */
static int replace(const struct nvml *nvml, struct nvc_probe_frame *frame, const char *cgroup,
                   const struct nvc_probe_limit *limit, struct nvc_probe_limit *before)
{
    struct nvml_limits now = {.cgroup = cgroup},
                       then = {.cgroup = cgroup, .soft = limit->soft, .hard = limit->hard};
    nvml_device device = NULL;
    int code = nvml->handle_of(limit->uuid, &device);

    if (code != 0)
        return nvc_probe_fail_call(nvml, frame, "nvmlDeviceGetHandleByUUID", code, limit->uuid);
    code = nvml->get_limits(device, &now);
    if (code == NVML_NOT_FOUND || code == NVML_NOT_SUPPORTED) {
        now.soft = 0;
        now.hard = UINT64_MAX;
    } else if (code != 0) {
        return nvc_probe_fail_call(nvml, frame, "nvmlDeviceGetMemoryLimits", code, limit->uuid);
    }
    before->soft = now.soft;
    before->hard = now.hard;
    memcpy(before->uuid, limit->uuid, sizeof(before->uuid));
    code = nvml->set_limits(device, &then);
    return code == 0 ? 0 : nvc_probe_fail_call(nvml, frame, "nvmlDeviceSetMemoryLimits", code, limit->uuid);
}

void nvc_probe_set_limits(const struct nvc_probe_options *options, struct nvc_probe_frame *frame,
                          struct nvc_probe_limit *before)
{
    struct nvml nvml = {0};
    uint32_t done = 0;

    if (nvc_probe_begin(options->libraries, frame, &nvml) < 0)
        return;
    if (!nvml.handle_of || !nvml.set_limits || !nvml.get_limits) {
        nvc_probe_fail_call(&nvml, frame, "nvmlDeviceSetMemoryLimits", NVML_FUNCTION_NOT_FOUND, "");
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
