/* The commands of vgpu_tool for programs that try to have more than their slice: see tests/adversary. */
#include "vgpu_tool.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct handover {
    pthread_barrier_t start, end;
    uint64_t rounds;
    CUresult released;
};

static void *release(void *argument)
{
    struct handover *self = argument;
    for (uint64_t i = 0; i < self->rounds; i++) {
        pthread_barrier_wait(&self->start);
        self->released |= CU(cuDevicePrimaryCtxRelease_v2)(0);
        pthread_barrier_wait(&self->end);
    }
    return NULL;
}

/* Rounds: one thread releases the first device's primary context while another retains it. -9: after some round the slice
 * looked as if there were no context. */
static CUresult handovers(char **word)
{
    struct handover self = {.rounds = number(word[1])};
    size_t left = 0, total = 0, unlike = 0;
    CUcontext context;
    pthread_t thread;
    CUresult result = CU(cuDevicePrimaryCtxRetain)(&context, 0);
    pthread_barrier_init(&self.start, NULL, 2);
    pthread_barrier_init(&self.end, NULL, 2);
    pthread_create(&thread, NULL, release, &self);
    for (uint64_t i = 0; i < self.rounds; i++) {
        pthread_barrier_wait(&self.start);
        result |= CU(cuDevicePrimaryCtxRetain)(&context, 0);
        pthread_barrier_wait(&self.end);
        result |= CU(cuCtxSetCurrent)(context);
        result |= CU(cuMemGetInfo_v2)(&left, &total);
        unlike += left == total;
    }
    pthread_join(thread, NULL);
    return result | self.released ? result | self.released : unlike ? -9 : 0;
}

#define OBJECT (*kept_object(word[1]))

struct child {
    CUgraph graph;
    int ownership; /* 1: it moves */
};

/* A kernel of a library in a context, or NULL: the current one. */
static CUresult kernel_node(char **word, CUcontext context)
{
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS params = {SHAPE(1, 1), .ctx = context};
    CUresult result = CU(cuLibraryGetKernel)(&params.kern, *kept_object(word[2]), "work");
    if (result)
        return result;
    if (IS("kernelin"))
        return CU(cuGraphAddKernelNode_v2)(&node, OBJECT, NULL, 0, &params);
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    any.kernel = params;
    return CU(cuGraphAddNode)(&node, OBJECT, NULL, 0, &any);
}

static CUresult graphs(char **word)
{
    CUgraphNode node;
    CUresult result = 0;
    if (IS("empties")) { /* graph, count */
        type_cuGraphAddEmptyNode add = CU(cuGraphAddEmptyNode);
        for (uint64_t i = 0; i < number(word[2]) && !result; i++)
            result = add(&node, OBJECT, NULL, 0);
        return result;
    }
    if (IS("keepnode")) { /* graph, bytes: allocates, and does not free */
        CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {1, 0}},
                                             .bytesize = number(word[2])};
        return CU(cuGraphAddMemAllocNode)(&node, OBJECT, NULL, 0, &params);
    }
    if (IS("freenode")) { /* graph, and another one: frees what that one allocates */
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        size_t count = 1;
        result = CU(cuGraphGetNodes)(*kept_object(word[2]), &node, &count);
        if (!result)
            result = CU(cuGraphMemAllocNodeGetParams)(node, &params);
        return result ? result : CU(cuGraphAddMemFreeNode)(&node, OBJECT, NULL, 0, params.dptr);
    }
    if (IS("child")) { /* graph, and the one that becomes a node of it, with its memory */
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
        memcpy(params.reserved1, &(struct child){*kept_object(word[2]), 1}, sizeof(struct child));
        return CU(cuGraphAddNode)(&node, OBJECT, NULL, 0, &params);
    }
    if (IS("kernelin") || IS("anykernelin")) /* graph, library, context */
        return kernel_node(word, *kept_object(word[3]));
    if (IS("uploaded")) { /* instance, graph */
        CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
                                                .hUploadStream = *tool_stream()};
        return CU(cuGraphInstantiateWithParams)((CUgraphExec *)&OBJECT, *kept_object(word[2]), &params);
    }
    return -1;
}

/* A second name that is now of one file, now of the other. */
struct exchange {
    const char *one, *other;
    atomic_bool over;
};

static void *exchange(void *argument)
{
    struct exchange *self = argument;
    while (!atomic_load(&self->over))
        renameat2(AT_FDCWD, self->one, AT_FDCWD, self->other, RENAME_EXCHANGE);
    return NULL;
}

static CUresult load_one(bool library, const char *path)
{
    CUmodule module;
    CUlibrary loaded;
    if (!library)
        return CU(cuModuleLoad)(&module, path);
    CUresult result = CU(cuLibraryLoadFromFile)(&loaded, path, NULL, NULL, 0, NULL, NULL, 0);
    return result ? result : CU(cuLibraryGetModule)(&module, loaded);
}

/* How, two files, times: loads the first while it is exchanged for the second. 0: some were loaded. */
static CUresult load_exchanged(char **word)
{
    struct exchange self = {.one = word[2], .other = word[3]};
    CUresult best = -9;
    pthread_t thread;
    pthread_create(&thread, NULL, exchange, &self);
    for (uint64_t i = 0; i < number(word[4]); i++)
        if (load_one(strcmp(word[1], "library") == 0, self.one) == CUDA_SUCCESS)
            best = CUDA_SUCCESS;
    atomic_store(&self.over, true);
    pthread_join(thread, NULL);
    return best;
}

static CUresult moves(char **word)
{
    if (IS("loadexchanged"))
        return load_exchanged(word);
    if (!IS("prefetch") && !IS("prefetch2") && !IS("prefetchall") && !IS("prefer"))
        return -1;
    CUmemLocation where = {1, (int)number(word[3])};
    CUdeviceptr at = *kept_number(word[1]);
    if (IS("prefetch")) /* address, bytes, device */
        return CU(cuMemPrefetchAsync)(at, number(word[2]), where.id, *tool_stream());
    if (IS("prefetchall")) /* in halves, the second to that place */
        return CU(cuMemPrefetchBatchAsync)((CUdeviceptr[]){at, at + number(word[2]) / 2},
                                           (size_t[]){number(word[2]) / 2, number(word[2]) / 2}, 2,
                                           (CUmemLocation[]){{1, 1}, where}, (size_t[]){0, 1}, 2, 0,
                                           *tool_stream());
    if (IS("prefetch2"))
        return CU(cuMemPrefetchAsync_v2)(at, number(word[2]), where, 0, *tool_stream());
    return CU(cuMemAdvise)(at, number(word[2]), 3, where.id); /* its preferred location */
}

static CUresult kernels(char **word)
{
    if (IS("nocontext"))
        return CU(cuCtxSetCurrent)(NULL);
    if (IS("kernelof")) /* name, library */
        return CU(cuLibraryGetKernel)((CUkernel *)&OBJECT, *kept_object(word[2]), "work");
    if (IS("kernelsof")) { /* name, library: the only one */
        CUkernel all[1] = {NULL};
        CUresult result = CU(cuLibraryEnumerateKernels)(all, 1, *kept_object(word[2]));
        OBJECT = all[0];
        return result;
    }
    if (IS("launchkernel"))
        return CU(cuLaunchKernel)(OBJECT, 1, 1, 1, 1, 1, 1, 0, *tool_stream(), NULL, NULL);
    return -1;
}

CUresult beyond(char **word)
{
    if (IS("dup")) {
        *kept_number(word[1]) = (uint64_t)dup((int)*kept_number(word[2]));
        return 0;
    }
    if (IS("rlimit")) /* number, value */
        return setrlimit((unsigned int)number(word[1]), &(struct rlimit){number(word[2]), number(word[2])});
    int value = -1;
    if (IS("dmabuf"))
        return CU(cuMemGetHandleForAddressRange)(&value, *kept_number(word[1]), 8 << 20, 1, 0);
    if (IS("attribute")) /* what the first device's is */
        return CU(cuDeviceGetAttribute)(&value, (int)number(word[1]), 0) ? -2 : value;
    CUresult result = graphs(word);
    result = result == -1 ? kernels(word) : result;
    result = result == -1 ? moves(word) : result;
    return result == -1 && IS("handovers") ? handovers(word) : result;
}
