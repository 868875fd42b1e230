/* What a program can ask about devices. */
#include "driver.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static CUresult get_count(int *count)
{
    CU_ARGUMENT(count);
    *count = (int)driver()->device_count;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetCount, (int *count), get_count(count))

static CUresult get(CUdevice *out, int ordinal)
{
    CU_ARGUMENT(out);
    CU_REQUIRE(device_at(ordinal), CUDA_ERROR_INVALID_DEVICE);
    *out = ordinal;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGet, (CUdevice * out, int ordinal), get(out, ordinal))

/* Cuts a name that does not fit, as the driver does. */
static CUresult get_name(char *name, int length, const struct device *device)
{
    CU_ARGUMENT(name && length > 0);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)length, "%s%s%s", device->gpu->name, device->mig ? " MIG " : "",
             device->mig ? device->mig->profile : "");
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetName, (char *name, int length, CUdevice device),
          get_name(name, length, device_at(device)))

/* The sixteen bytes that the hexadecimal digits of a UUID stand for. */
static CUresult get_uuid(CUuuid *out, const struct device *device, bool of_mig)
{
    CU_ARGUMENT(out);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    const char *text = of_mig && device->mig ? device->mig->uuid : device->gpu->uuid;
    unsigned int digits = 0;
    memset(out, 0, sizeof(*out));
    for (text += 4; *text && digits < 32; text++) {
        const char *found = *text == '-' ? NULL : strchr("0123456789abcdef", *text);
        if (found) {
            long digit = found - "0123456789abcdef";
            out->bytes[digits / 2] = (char)(out->bytes[digits / 2] | digit << (digits % 2 ? 0 : 4));
            digits++;
        }
    }
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetUuid, (CUuuid * out, CUdevice device), get_uuid(out, device_at(device), false))
CU_EXPORT(cuDeviceGetUuid_v2, (CUuuid * out, CUdevice device), get_uuid(out, device_at(device), true))

static CUresult total(size_t *bytes, const struct device *device)
{
    CU_ARGUMENT(bytes);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    *bytes = device->capacity;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device), total(bytes, device_at(device)))

/* The first version counted in 32 bits. */
static CUresult total_narrow(unsigned int *bytes, const struct device *device)
{
    size_t wide;
    CU_ARGUMENT(bytes);
    CU_TRY(total(&wide, device));
    *bytes = wide > UINT_MAX ? UINT_MAX : (unsigned int)wide;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceTotalMem, (unsigned int *bytes, CUdevice device), total_narrow(bytes, device_at(device)))

static CUresult capability(int *major, int *minor, const struct device *device)
{
    CU_ARGUMENT(major && minor);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    *major = (int)device->gpu->capability.major;
    *minor = (int)device->gpu->capability.minor;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device),
          capability(major, minor, device_at(device)))

static CUresult get_bus_id(char *out, int length, const struct device *device)
{
    CU_ARGUMENT(out && length > 12);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    snprintf(out, (size_t)length, "%04x:%02x:%02x.0", device->gpu->pci_domain, device->gpu->pci_bus,
             device->gpu->pci_device);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetPCIBusId, (char *out, int length, CUdevice device),
          get_bus_id(out, length, device_at(device)))

static CUresult find_bus_id(CUdevice *out, const char *text)
{
    unsigned int domain, bus, slot;
    CU_ARGUMENT(out && text && strlen(text) < 32);
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        CU_ARGUMENT(sscanf(text, "%x:%x", &bus, &slot) == 2);
    }
    for (uint32_t i = 0; i < driver()->device_count; i++) {
        const struct sim_gpu *gpu = driver()->devices[i].gpu;
        if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot) {
            *out = (CUdevice)i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CU_EXPORT(cuDeviceGetByPCIBusId, (CUdevice * out, const char *text), find_bus_id(out, text))

static CUresult can_access(int *out, const struct device *one, const struct device *other)
{
    CU_ARGUMENT(out);
    CU_REQUIRE(one && other, CUDA_ERROR_INVALID_DEVICE);
    *out = one != other && !one->mig && !other->mig;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceCanAccessPeer, (int *out, CUdevice device, CUdevice peer),
          can_access(out, device_at(device), device_at(peer)))

static CUresult peer_attribute(int *out, int attribute, const struct device *one, const struct device *other)
{
    int access;
    CU_ARGUMENT(out && attribute >= 1 && attribute <= 5);
    CU_TRY(can_access(&access, one, other));
    CU_REQUIRE(one != other, CUDA_ERROR_INVALID_DEVICE);
    *out = attribute == 1 ? 0 : access; /* 1: the rank among the links */
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetP2PAttribute, (int *out, int attribute, CUdevice device, CUdevice peer),
          peer_attribute(out, attribute, device_at(device), device_at(peer)))
