/* Calls of the CUDA driver by command: one line of standard input each, and a line of results for it, which begins with
 * the driver's own code. Addresses and handles are kept under a letter, `a` to `z` and on. */
#include "vgpu_tool.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NAMES = 128, WORDS = 12 };

static void *library;
static uint64_t kept[NAMES];
static void *kept_objects[NAMES];

void *entry(const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fprintf(stderr, "%s is missing\n", name), exit(3);
    return found;
}

uint64_t number(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 0);
    switch (*end) {
    case 'k':
        return value << 10;
    case 'm':
        return value << 20;
    case 'g':
        return value << 30;
    default:
        return value;
    }
}

static unsigned int slot(const char *name)
{
    return (unsigned char)name[0] % NAMES;
}

uint64_t *kept_number(const char *name)
{
    return &kept[slot(name)];
}

void **kept_object(const char *name)
{
    return &kept_objects[slot(name)];
}

/* Not by /proc/PID/fd: that would open another file, where the driver wants this one. */
int open_descriptor(const char *pid, const char *fd)
{
    int process = (int)syscall(SYS_pidfd_open, atoi(pid), 0);
    int copy = (int)syscall(SYS_pidfd_getfd, process, atoi(fd), 0);
    close(process);
    return copy;
}

static void *primary;

void *primary_context(void)
{
    return primary;
}

#define AT kept[slot(word[1])]
#define OBJECT kept_objects[slot(word[1])]

static CUresult linear(char **word)
{
    enum { FILLED = 7 };
    size_t pitch;
    if (IS("alloc"))
        return CU(cuMemAlloc_v2)(&AT, number(word[2]));
    if (IS("pitch"))
        return CU(cuMemAllocPitch_v2)(&AT, &pitch, number(word[2]), number(word[3]), 4);
    if (IS("managed"))
        return CU(cuMemAllocManaged)(&AT, number(word[2]), 1);
    if (IS("free"))
        return CU(cuMemFree_v2)(AT);
    if (IS("fill"))
        return CU(cuMemsetD8_v2)(AT, FILLED, number(word[2]));
    if (IS("filled")) { /* at both ends */
        uint64_t first = 0, last = 0, end = AT + number(word[2]) - 1;
        CUresult result = CU(cuMemcpyDtoH_v2)(&first, AT, 1);
        result = result ? result : CU(cuMemcpyDtoH_v2)(&last, end, 1);
        return result || (first == FILLED && last == FILLED) ? result : -3;
    }
    if (IS("freeat"))
        return CU(cuMemFree_v2)(AT + number(word[2]));
    return -1;
}

static CUstream stream;

CUstream *tool_stream(void)
{
    return &stream;
}

static CUresult pools(char **word)
{
    if (IS("async"))
        return CU(cuMemAllocAsync)(&AT, number(word[2]), stream);
    if (IS("async_ptsz"))
        return CU(cuMemAllocAsync_ptsz)(&AT, number(word[2]), stream);
    if (IS("freeasync"))
        return CU(cuMemFreeAsync)(AT, stream);
    if (IS("sync"))
        return CU(cuStreamSynchronize)(stream);
    if (IS("pool")) {
        CUmemPoolProps properties = {.allocType = 1, .location = {1, (int)number(word[2])}};
        return CU(cuMemPoolCreate)((CUmemoryPool *)&OBJECT, &properties);
    }
    if (IS("keep")) {
        uint64_t all = UINT64_MAX;
        return CU(cuMemPoolSetAttribute)(OBJECT, 4, &all);
    }
    if (IS("frompool"))
        return CU(cuMemAllocFromPoolAsync)(&AT, number(word[2]), kept_objects[slot(word[3])], stream);
    if (IS("trim"))
        return CU(cuMemPoolTrimTo)(OBJECT, number(word[2]));
    if (IS("droppool"))
        return CU(cuMemPoolDestroy)(OBJECT);
    return -1;
}

static CUresult vmm(char **word)
{
    if (IS("create")) {
        int place = word[4] ? (int)number(word[4]) : 1;
        CUmemAllocationProp properties = {
            .type = 1, .requestedHandleTypes = word[5] ? 1 : 0, .location = {place, (int)number(word[3])}};
        return CU(cuMemCreate)(&AT, number(word[2]), &properties, 0);
    }
    if (IS("reserve"))
        return CU(cuMemAddressReserve)(&AT, number(word[2]), 0, 0, 0);
    if (IS("map"))
        return CU(cuMemMap)(AT + number(word[4]), number(word[3]), 0, kept[slot(word[2])], 0);
    if (IS("unmap"))
        return CU(cuMemUnmap)(AT, number(word[2]));
    if (IS("retain"))
        return CU(cuMemRetainAllocationHandle)(&AT, (void *)(uintptr_t)kept[slot(word[2])]);
    if (IS("release"))
        return CU(cuMemRelease)(AT);
    if (IS("export")) {
        int fd = -1;
        CUresult result = CU(cuMemExportToShareableHandle)(&fd, AT, 1, 0);
        kept[slot(word[2])] = (uint64_t)fd;
        return result;
    }
    if (IS("close"))
        return close((int)AT);
    if (IS("import"))
        return CU(cuMemImportFromShareableHandle)(&AT, (void *)(uintptr_t)kept[slot(word[2])], 1);
    if (IS("importfrom")) { /* a descriptor of another process, as if it had been sent; a fourth word: kept open */
        int fd = open_descriptor(word[2], word[3]);
        CUresult result = CU(cuMemImportFromShareableHandle)(&AT, (void *)(intptr_t)fd, 1);
        if (!word[4])
            close(fd);
        return result;
    }
    return -1;
}

static CUresult arrays(char **word)
{
    if (IS("array")) {
        CUDA_ARRAY_DESCRIPTOR asked = {number(word[2]), number(word[3]), 0x20, 4};
        return CU(cuArrayCreate_v2)((CUarray *)&OBJECT, &asked);
    }
    if (IS("array3d") || IS("mipmap")) {
        CUDA_ARRAY3D_DESCRIPTOR asked = {number(word[2]),
                                         number(word[3]),
                                         number(word[4]),
                                         0x20,
                                         4,
                                         word[5] ? (unsigned int)number(word[5]) : 0};
        return IS("mipmap") ? CU(cuMipmappedArrayCreate)((CUmipmappedArray *)&OBJECT, &asked, 20)
                            : CU(cuArray3DCreate_v2)((CUarray *)&OBJECT, &asked);
    }
    if (IS("droparray"))
        return CU(cuArrayDestroy)(OBJECT);
    if (IS("dropmipmap"))
        return CU(cuMipmappedArrayDestroy)(OBJECT);
    return -1;
}

static CUresult contexts(char **word)
{
    if (IS("primary")) {
        CUresult result = CU(cuDevicePrimaryCtxRetain)((CUcontext *)&primary, (int)number(word[1]));
        return result ? result : CU(cuCtxSetCurrent)(primary);
    }
    if (IS("leave"))
        return CU(cuDevicePrimaryCtxRelease_v2)((int)number(word[1]));
    if (IS("reset"))
        return CU(cuDevicePrimaryCtxReset_v2)((int)number(word[1]));
    if (IS("context"))
        return CU(cuCtxCreate_v2)((CUcontext *)&OBJECT, 0, (int)number(word[2]));
    if (IS("dropcontext"))
        return CU(cuCtxDestroy_v2)(OBJECT);
    if (IS("current"))
        return CU(cuCtxSetCurrent)(OBJECT);
    if (IS("limit"))
        return CU(cuCtxSetLimit)((int)number(word[1]), number(word[2]));
    if (IS("wait"))
        return CU(cuCtxSynchronize)();
    if (IS("stream"))
        return CU(cuStreamCreate)(&stream, 1);
    return -1;
}

/* A kernel with so many bytes of local memory, and a variable. */
static CUresult module(char **word)
{
    char text[512];
    CUfunction function;
    if (IS("unload"))
        return CU(cuModuleUnload)(OBJECT);
    if (IS("kernel")) {
        CUkernel kernel;
        return CU(cuLibraryGetKernel)(&kernel, OBJECT, "work");
    }
    if (IS("dropkernels"))
        return CU(cuLibraryUnload)(OBJECT);
    if (!IS("module") && !IS("launch") && !IS("library"))
        return -1;
    unsigned long long local = word[2] ? number(word[2]) : 0, data = word[3] ? number(word[3]) : 0;
    if (IS("launch")) {
        CUresult result = CU(cuModuleGetFunction)(&function, OBJECT, "work");
        return result ? result : CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    }
    int length =
        snprintf(text, sizeof(text), ".version 8.0\n.target sm_90\n.address_size 64\n// a .global word\n");
    if (data)
        length += snprintf(text + length, sizeof(text) - (size_t)length,
                           ".global .align 4 .b8 data[%llu];\n", data);
    snprintf(text + length, sizeof(text) - (size_t)length,
             ".visible .entry work()\n{\n.local .align 4 .b8 x[%llu];\nret;\n}\n", local ? local : 4);
    if (IS("library"))
        return CU(cuLibraryLoadData)((CUlibrary *)&OBJECT, text, NULL, NULL, 0, NULL, NULL, 0);
    return CU(cuModuleLoadData)((CUmodule *)&OBJECT, text);
}

static CUresult graphs(char **word)
{
    if (IS("graph"))
        return CU(cuGraphCreate)((CUgraph *)&OBJECT, 0);
    if (IS("node")) { /* allocates, and frees */
        CUgraphNode allocation, end;
        CUdevice device = word[3] ? (CUdevice)number(word[3]) : 0;
        CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {1, device}},
                                             .bytesize = number(word[2])};
        CUresult result = CU(cuGraphAddMemAllocNode)(&allocation, OBJECT, NULL, 0, &params);
        return result ? result : CU(cuGraphAddMemFreeNode)(&end, OBJECT, &allocation, 1, params.dptr);
    }
    if (IS("instance"))
        return CU(cuGraphInstantiateWithFlags)((CUgraphExec *)&OBJECT, kept_objects[slot(word[2])], 0);
    if (IS("run"))
        return CU(cuGraphLaunch)(OBJECT, stream);
    if (IS("dropinstance"))
        return CU(cuGraphExecDestroy)(OBJECT);
    if (IS("dropgraph"))
        return CU(cuGraphDestroy)(OBJECT);
    if (IS("trimgraphs"))
        return CU(cuDeviceGraphMemTrim)((int)number(word[1]));
    if (IS("capture"))
        return CU(cuStreamBeginCapture_v2)(stream, word[1] ? (int)number(word[1]) : 2);
    if (IS("recapture"))
        return CU(cuStreamBeginRecaptureToGraph)(stream, 2, OBJECT, NULL, NULL);
    if (IS("captured"))
        return CU(cuStreamEndCapture)(stream, (CUgraph *)&OBJECT);
    return -1;
}

static CUresult ipc(char **word)
{
    CUipcMemHandle handle;
    if (IS("ipcget")) {
        CUresult result = CU(cuIpcGetMemHandle)(&handle, AT);
        FILE *out = fopen(word[2], "w");
        if (out && fwrite(&handle, sizeof(handle), 1, out) == 1)
            fclose(out);
        return result;
    }
    if (IS("ipcopen")) {
        FILE *in = fopen(word[2], "r");
        if (!in || fread(&handle, sizeof(handle), 1, in) != 1)
            return -2;
        fclose(in);
        return CU(cuIpcOpenMemHandle_v2)(&AT, handle, 1);
    }
    if (IS("ipcclose"))
        return CU(cuIpcCloseMemHandle)(AT);
    return -1;
}

static CUresult views(char **word, char *more)
{
    size_t left, total;
    CUresult result;
    if (IS("init"))
        return CU(cuInit)(0);
    if (IS("info")) {
        result = CU(cuMemGetInfo_v2)(&left, &total);
        if (!result)
            sprintf(more, " %zu %zu", left, total);
        return result;
    }
    if (IS("total")) {
        result = CU(cuDeviceTotalMem_v2)(&total, (int)number(word[1]));
        if (!result)
            sprintf(more, " %zu", total);
        return result;
    }
    if (IS("proc")) { /* name, version, flags: the name of what it finds, as this process's loader knows it */
        void *found = NULL;
        int status = -1;
        Dl_info info = {0};
        result = CU(cuGetProcAddress_v2)(word[1], &found, (int)number(word[2]), number(word[3]), &status);
        if (found)
            dladdr(found, &info);
        sprintf(more, " %d %.100s %.200s", status, info.dli_sname ? info.dli_sname : "-",
                info.dli_fname ? info.dli_fname : "-");
        return result;
    }
    if (IS("show")) {
        sprintf(more, " %llu", (unsigned long long)AT);
        return 0;
    }
    return -1;
}

static CUresult run(char **word, char *more)
{
    static CUresult (*const groups[])(char **) = {linear, pools, vmm,       arrays, contexts, module,
                                                  graphs, ipc,   processes, crowds, paths,    loops,
                                                  beyond, races, held,      places};
    CUresult result = views(word, more);
    if (result == -1)
        result = spins(word, more);
    for (size_t i = 0; result == -1 && i < sizeof(groups) / sizeof(groups[0]); i++)
        result = groups[i](word);
    return result;
}

int main(int count, char **arguments)
{
    char line[512];
    library = dlopen(count > 1 ? arguments[1] : "libcuda.so.1", RTLD_NOW);
    if (!library)
        return fprintf(stderr, "%s\n", dlerror()), 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0); /* what is read ahead would be lost with an exec */
    while (fgets(line, sizeof(line), stdin)) {
        char *word[WORDS] = {0}, more[512] = "", *rest;
        int words = 0;
        for (char *at = strtok_r(line, " \n", &rest); at && words < WORDS; at = strtok_r(NULL, " \n", &rest))
            word[words++] = at;
        if (words)
            printf("%d%s\n", run(word, more), more);
    }
    return 0;
}
