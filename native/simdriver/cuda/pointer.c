/* What a program can ask about pointers. */
#include "memory.h"

enum {
    ATTRIBUTE_CONTEXT = 1,
    ATTRIBUTE_MEMORY_TYPE,
    ATTRIBUTE_DEVICE_POINTER,
    ATTRIBUTE_HOST_POINTER,
    ATTRIBUTE_P2P_TOKENS,
    ATTRIBUTE_SYNC_MEMOPS,
    ATTRIBUTE_BUFFER_ID,
    ATTRIBUTE_IS_MANAGED,
    ATTRIBUTE_DEVICE_ORDINAL,
    ATTRIBUTE_IS_IPC_CAPABLE,
    ATTRIBUTE_RANGE_START,
    ATTRIBUTE_RANGE_SIZE,
    ATTRIBUTE_MAPPED,
    ATTRIBUTE_HANDLE_TYPES,
    ATTRIBUTE_IS_RDMA_CAPABLE,
    ATTRIBUTE_ACCESS_FLAGS,
    ATTRIBUTE_POOL,
    ATTRIBUTE_MAPPING_SIZE,
    ATTRIBUTE_MAPPING_BASE,
    ATTRIBUTE_BLOCK_ID,
};

static bool is_host(const struct memory *memory)
{
    return memory->kind == MEMORY_HOST || memory->kind == MEMORY_REGISTERED ||
           (memory->kind == MEMORY_MAPPED && !memory->device);
}

#define PUT(type, expression)                                                                               \
    do {                                                                                                    \
        *(type *)out = (type)(expression);                                                                  \
        return CUDA_SUCCESS;                                                                                \
    } while (0)

static CUresult get(void *out, int attribute, uint64_t address)
{
    const struct memory *memory = memory_find(address);
    CU_ARGUMENT(out && attribute >= ATTRIBUTE_CONTEXT && attribute <= ATTRIBUTE_BLOCK_ID);
    CU_ARGUMENT(memory && !memory->freed_on);
    switch (attribute) {
    case ATTRIBUTE_CONTEXT:
        PUT(CUcontext, memory->context);
    case ATTRIBUTE_MEMORY_TYPE:
        PUT(unsigned int, is_host(memory) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case ATTRIBUTE_DEVICE_POINTER:
        PUT(uint64_t, address);
    case ATTRIBUTE_HOST_POINTER:
        CU_ARGUMENT(is_host(memory) || memory->kind == MEMORY_MANAGED);
        PUT(uint64_t, address);
    case ATTRIBUTE_SYNC_MEMOPS:
        PUT(unsigned char, 0);
    case ATTRIBUTE_BUFFER_ID:
    case ATTRIBUTE_BLOCK_ID:
        PUT(unsigned long long, memory->id);
    case ATTRIBUTE_IS_MANAGED:
        PUT(unsigned char, memory->kind == MEMORY_MANAGED);
    case ATTRIBUTE_DEVICE_ORDINAL:
        PUT(int, memory->device ? memory->device->ordinal : -1);
    case ATTRIBUTE_IS_IPC_CAPABLE:
        PUT(unsigned char, memory->kind == MEMORY_DEVICE);
    case ATTRIBUTE_RANGE_START:
    case ATTRIBUTE_MAPPING_BASE:
        PUT(uint64_t, memory->range.base);
    case ATTRIBUTE_RANGE_SIZE:
    case ATTRIBUTE_MAPPING_SIZE:
        PUT(size_t, memory->range.size);
    case ATTRIBUTE_MAPPED:
        PUT(unsigned char, 1);
    case ATTRIBUTE_HANDLE_TYPES:
        PUT(unsigned long long, 0);
    case ATTRIBUTE_IS_RDMA_CAPABLE:
        PUT(unsigned char, 0);
    case ATTRIBUTE_ACCESS_FLAGS:
        PUT(unsigned int,
            memory->kind == MEMORY_MAPPED ? memory->flags : (unsigned int)CU_MEM_ACCESS_READWRITE);
    case ATTRIBUTE_POOL:
        PUT(CUmemoryPool, memory->pool);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CU_EXPORT(cuPointerGetAttribute, (void *out, int attribute, CUdeviceptr address),
          get(out, attribute, address))

/* For what is no memory of the driver, every attribute is zero and the call succeeds. */
static CUresult get_many(unsigned int count, const int *attributes, void **out, uint64_t address)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(count && attributes && out);
    for (unsigned int i = 0; i < count; i++) {
        CU_ARGUMENT(out[i] && attributes[i] >= ATTRIBUTE_CONTEXT && attributes[i] <= ATTRIBUTE_BLOCK_ID);
        if (get(out[i], attributes[i], address) == CUDA_SUCCESS)
            continue;
        switch (attributes[i]) {
        case ATTRIBUTE_SYNC_MEMOPS:
        case ATTRIBUTE_IS_MANAGED:
        case ATTRIBUTE_IS_IPC_CAPABLE:
        case ATTRIBUTE_MAPPED:
        case ATTRIBUTE_IS_RDMA_CAPABLE:
            *(unsigned char *)out[i] = 0;
            break;
        case ATTRIBUTE_MEMORY_TYPE:
        case ATTRIBUTE_ACCESS_FLAGS:
            *(unsigned int *)out[i] = 0;
            break;
        case ATTRIBUTE_DEVICE_ORDINAL:
            *(int *)out[i] = -2;
            break;
        case ATTRIBUTE_HOST_POINTER:
            *(uint64_t *)out[i] = memory_find(address) ? 0 : address;
            break;
        default:
            *(uint64_t *)out[i] = 0;
            break;
        }
    }
    return CUDA_SUCCESS;
}

CU_EXPORT(cuPointerGetAttributes, (unsigned int count, int *attributes, void **out, CUdeviceptr address),
          get_many(count, attributes, out, address))

/* A descriptor for other devices, of which there are none here: nobody can have the memory by it. */
static CUresult range_handle(int *out, uint64_t address, size_t size, int type)
{
    CU_CONTEXT(context);
    const struct memory *memory = memory_find(address);
    CU_ARGUMENT(out && memory && type == 1 && size &&
                size <= memory->range.size - (address - memory->range.base));
    *out = memory_file("nvidia-sim-range", size);
    return *out < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CU_API CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr address, size_t size, int type,
                                              unsigned long long flags)
{
    CU_ARGUMENT(flags == 0);
    CU_CALL(range_handle(out, address, size, type));
}
