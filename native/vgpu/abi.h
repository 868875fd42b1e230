/* The part of the CUDA driver's binary interface that the shim passes on or looks into: numbers and layouts, from the
 * public documentation. Handles are only passed on. */
#ifndef NVC_VGPU_ABI_H
#define NVC_VGPU_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum { CU_LOCATION_DEVICE = 1 };
enum { CU_POOL_THRESHOLD = 4, CU_POOL_RESERVED = 5, CU_POOL_USED = 7 };
enum { CU_CAPTURE_RELAXED = 2, CU_EVENT_NO_TIMING = 2 };
enum { CU_POINTER_MEMORY_TYPE = 2, CU_POINTER_ORDINAL = 9, CU_POINTER_POOL = 17, CU_TYPE_HOST = 1 };
enum { CU_OPERATION_MAP = 1 };
enum { CU_GRAPH_MEMORY_RESERVED = 2 };
enum { CU_INSTANTIATE_UPLOAD = 2 };
enum { CU_NODE_KERNEL = 0, CU_NODE_GRAPH = 4, CU_NODE_ALLOC = 10 };
enum {
    CU_LIMIT_STACK = 0,
    CU_LIMIT_PRINTF = 1,
    CU_LIMIT_HEAP = 2,
    CU_LIMIT_DEPTH = 3,
    CU_LIMIT_PENDING = 4
};
enum { CU_DEVICE_MULTIPROCESSORS = 16, CU_DEVICE_THREADS_PER_MULTIPROCESSOR = 39 };
enum { CU_FUNCTION_LOCAL_BYTES = 3 };
enum { CU_HANDLE_FD = 1, CU_HANDLE_FABRIC = 8 };
enum { CU_LOADING_EAGER = 1 };

typedef struct {
    uint8_t bytes[16];
} CUuuid;

typedef struct {
    int type, id;
} CUmemLocation;

typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    uint8_t allocFlags[8];
} CUmemAllocationProp;

typedef struct {
    int allocType, handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    uint8_t reserved[56];
} CUmemPoolProps;

typedef struct {
    unsigned int Width, Height;
    int Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
    size_t Width, Height;
    int Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    unsigned int Width, Height, Depth;
    int Format;
    unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct {
    size_t Width, Height, Depth;
    int Format;
    unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
    CUmemPoolProps poolProps;
    const void *accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

/* The last two are missing in the first version. */
typedef struct {
    CUfunction func;
    unsigned int shape[6], sharedMemBytes; /* grid and block */
    void **kernelParams, **extra;
    CUkernel kern; /* where there is no func */
    CUcontext ctx; /* to run that in; NULL: the current one */
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    unsigned long long flags;
    CUstream hUploadStream;
} CUDA_GRAPH_INSTANTIATE_PARAMS; /* what the shim looks into */

typedef struct {
    int type, reserved0[3];
    union {
        long long reserved1[29];
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUevent event;
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct {
    CUfunction function;
    unsigned int shape[6], sharedMemBytes; /* grid and block */
    CUstream hStream;
    void **kernelParams;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    unsigned int shape[6], sharedMemBytes; /* grid and block */
    CUstream hStream;
    const void *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

typedef struct {
    uint8_t reserved[64];
} CUipcMemHandle;

typedef struct {
    uint8_t reserved[64];
} CUmemPoolPtrExportData;

typedef struct {
    int resourceType;
    void *resource; /* array or mipmap */
    int subresourceType;
    union {
        uint64_t align;
        unsigned int all[8];
    } subresource;
    int memOperationType, memHandleType;
    CUmemGenericAllocationHandle memHandle;
    unsigned long long offset;
    unsigned int deviceBitMask, flags, reserved[2];
} CUarrayMapInfo;

_Static_assert(sizeof(CUarrayMapInfo) == 96, "CUDA layout");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUDA layout");
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUDA layout");
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "CUDA layout");
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72, "CUDA layout");
_Static_assert(sizeof(CUgraphNodeParams) == 256, "CUDA layout");
_Static_assert(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, hStream) == 32, "CUDA layout");
_Static_assert(sizeof(CUDA_LAUNCH_PARAMS) == 56, "CUDA layout");

#define CU_API __attribute__((visibility("default")))

#endif
