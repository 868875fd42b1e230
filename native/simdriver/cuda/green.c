/* Green contexts: parts of a device's multiprocessors. Here each has all of them. */
#include "driver.h"

#include <string.h>

enum { RESOURCE_SM = 1, DEFAULT_STREAM = 1, COUNT_AT = 96 };

struct resource {
    struct device *device;
};

static CUresult get_resource(char *out, struct device *device, int type)
{
    CU_ARGUMENT(out);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_REQUIRE(type == RESOURCE_SM, CUDA_ERROR_NOT_SUPPORTED);
    memcpy(out, &type, sizeof(type));
    memcpy(out + sizeof(type), &device->ordinal, sizeof(device->ordinal));
    memcpy(out + COUNT_AT, &device->multiprocessors, sizeof(device->multiprocessors));
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetDevResource, (CUdevice device, void *out, int type),
          get_resource(out, device_at(device), type))

static CUresult describe(struct resource **out, const char *from, unsigned int count)
{
    int type, ordinal;
    CU_ARGUMENT(out && from && count == 1);
    memcpy(&type, from, sizeof(type));
    memcpy(&ordinal, from + sizeof(type), sizeof(ordinal));
    CU_ARGUMENT(type == RESOURCE_SM && device_at(ordinal));
    *out = handle_new(KIND_RESOURCE, sizeof(**out));
    CU_REQUIRE(*out, CUDA_ERROR_OUT_OF_MEMORY);
    (*out)->device = device_at(ordinal);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDevResourceGenerateDesc, (void **out, void *resources, unsigned int count),
          describe((struct resource **)out, resources, count))

static CUresult create(struct green **out, const struct resource *from, struct device *device,
                       unsigned int flags)
{
    struct context *primary;
    CU_ARGUMENT(out && handle_is(from, KIND_RESOURCE) && flags == DEFAULT_STREAM);
    CU_REQUIRE(device && from->device == device, CUDA_ERROR_INVALID_DEVICE);
    CU_TRY(primary_retain(&primary, device));
    *out = handle_new(KIND_GREEN, sizeof(**out));
    if (!*out) {
        primary_release(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*out)->device = device;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGreenCtxCreate, (struct green * *out, void *description, CUdevice device, unsigned int flags),
          create(out, description, device_at(device), flags))

static CUresult destroy(struct green *green)
{
    CU_REQUIRE(handle_is(green, KIND_GREEN), CUDA_ERROR_INVALID_CONTEXT);
    struct device *device = green->device;
    handle_free(green);
    return device->primary ? primary_release(device) : CUDA_SUCCESS;
}

CU_EXPORT(cuGreenCtxDestroy, (struct green * green), destroy(green))

static CUresult from_green(CUcontext *out, struct green *green)
{
    CU_ARGUMENT(out && handle_is(green, KIND_GREEN));
    *out = (void *)green;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuCtxFromGreenCtx, (CUcontext * out, struct green *green), from_green(out, green))
