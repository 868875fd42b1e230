/* The commands of vgpu_tool for ways to memory that few programs take. */
#include "vgpu_tool.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define AT (*kept_number(word[1]))
#define OBJECT (*kept_object(word[1]))

static CUresult pools(char **word)
{
    if (IS("defaultpool"))
        return CU(cuDeviceGetDefaultMemPool)((CUmemoryPool *)&OBJECT, (int)number(word[2]));
    if (IS("usepool"))
        return CU(cuDeviceSetMemPool)((int)number(word[1]), *kept_object(word[2]));
    if (IS("sharedpool")) { /* one that can be exported */
        CUmemPoolProps properties = {
            .allocType = 1, .handleTypes = 1, .location = {1, (int)number(word[2])}};
        return CU(cuMemPoolCreate)((CUmemoryPool *)&OBJECT, &properties);
    }
    if (IS("exportpool")) {
        int fd = -1;
        CUresult result = CU(cuMemPoolExportToShareableHandle)(&fd, OBJECT, 1, 0);
        *kept_number(word[2]) = (uint64_t)fd;
        return result;
    }
    if (IS("importpool")) {
        int fd = open_descriptor(word[2], word[3]);
        return CU(cuMemPoolImportFromShareableHandle)((CUmemoryPool *)&OBJECT, (void *)(intptr_t)fd, 1, 0);
    }
    CUmemPoolPtrExportData data;
    if (IS("exportpointer")) {
        CUresult result = CU(cuMemPoolExportPointer)(&data, AT);
        FILE *out = fopen(word[2], "w");
        if (out && fwrite(&data, sizeof(data), 1, out) == 1)
            fclose(out);
        return result;
    }
    if (IS("importpointer")) {
        FILE *in = fopen(word[3], "r");
        if (!in || fread(&data, sizeof(data), 1, in) != 1)
            return -2;
        fclose(in);
        return CU(cuMemPoolImportPointer)(&AT, *kept_object(word[2]), &data);
    }
    return -1;
}

struct kernel_node {
    CUfunction function;
    unsigned int grid[3], block[3], shared;
    void **values, **extra, *kernel, *context;
};

static struct kernel_node node_of(const char *module)
{
    struct kernel_node node = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
    CU(cuModuleGetFunction)(&node.function, *kept_object(module), "work");
    return node;
}

static CUresult nodes(char **word)
{
    typedef CUresult (*set_node)(CUgraphNode, const void *);
    typedef CUresult (*set_instance)(CUgraphExec, CUgraphNode, const void *);
    if (IS("kernelnode")) { /* name, graph, module */
        struct kernel_node node = node_of(word[3]);
        return CU(cuGraphAddKernelNode_v2)((CUgraphNode *)&OBJECT, *kept_object(word[2]), NULL, 0, &node);
    }
    if (IS("setnode")) { /* node, module, how */
        struct kernel_node node = node_of(word[2]);
        CUgraphNodeParams any = {.type = 0};
        memcpy(any.reserved1, &node, sizeof(node));
        if (strcmp(word[3], "any") == 0)
            return CU(cuGraphNodeSetParams)(OBJECT, &any);
        return ((set_node)entry(strcmp(word[3], "2") == 0 ? "cuGraphKernelNodeSetParams_v2"
                                                          : "cuGraphKernelNodeSetParams"))(OBJECT, &node);
    }
    if (IS("setinstance")) { /* instance, node, module, how */
        struct kernel_node node = node_of(word[3]);
        CUgraphNodeParams any = {.type = 0};
        CUgraphNode at = *kept_object(word[2]);
        memcpy(any.reserved1, &node, sizeof(node));
        if (strcmp(word[4], "any") == 0)
            return CU(cuGraphExecNodeSetParams)(OBJECT, at, &any);
        return ((set_instance)entry(strcmp(word[4], "2") == 0
                                        ? "cuGraphExecKernelNodeSetParams_v2"
                                        : "cuGraphExecKernelNodeSetParams"))(OBJECT, at, &node);
    }
    return -1;
}

/* A thread that was cancelled before it asks for memory. */
static void *cancelled(void *context)
{
    CUdeviceptr at;
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    CU(cuCtxSetCurrent)(context);
    pthread_cancel(pthread_self());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    CU(cuMemAlloc_v2)
    (&at, UINT64_C(64) << 30); /* refused without the driver, which may be cancelled itself */
    return NULL;
}

static CUresult odd(char **word)
{
    if (IS("loadfile"))
        return CU(cuModuleLoad)((CUmodule *)&OBJECT, word[2]);
    if (IS("loadlibraryfile"))
        return CU(cuLibraryLoadFromFile)((CUlibrary *)&OBJECT, word[2], NULL, NULL, 0, NULL, NULL, 0);
    if (IS("dropstream"))
        return CU(cuStreamDestroy_v2)(*tool_stream());
    if (IS("defaultstream")) {
        *tool_stream() = NULL;
        return 0;
    }
    if (IS("cancel")) {
        pthread_t thread;
        pthread_create(&thread, NULL, cancelled, primary_context());
        pthread_join(thread, NULL);
        return 0;
    }
    if (IS("infonull")) {
        size_t bytes;
        CUresult left = CU(cuMemGetInfo_v2)(&bytes, NULL), total = CU(cuMemGetInfo_v2)(NULL, &bytes);
        return left ? left : total;
    }
    return -1;
}

static CUresult green(char **word)
{
    if (IS("green")) {       /* with all multiprocessors of a device */
        char all[512] = {0}; /* of whatever size it is in this driver */
        void *description = NULL;
        CUresult result = CU(cuDeviceGetDevResource)((int)number(word[2]), all, 1);
        if (!result)
            result = CU(cuDevResourceGenerateDesc)(&description, all, 1);
        return result ? result
                      : CU(cuGreenCtxCreate)((CUgreenCtx *)&OBJECT, description, (int)number(word[2]), 1);
    }
    if (IS("usegreen")) {
        CUcontext context;
        CUresult result = CU(cuCtxFromGreenCtx)(&context, OBJECT);
        return result ? result : CU(cuCtxSetCurrent)(context);
    }
    if (IS("dropgreen"))
        return CU(cuGreenCtxDestroy)(OBJECT);
    return -1;
}

CUresult paths(char **word)
{
    static CUresult (*const groups[])(char **) = {pools, nodes, odd, green};
    CUresult result = -1;
    for (size_t i = 0; result == -1 && i < sizeof(groups) / sizeof(groups[0]); i++)
        result = groups[i](word);
    return result;
}
