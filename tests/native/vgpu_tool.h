/* What the files of the tool share. */
#pragma once

#include "process/real.h"

/* What passes the shim, and the tool calls. */
typedef CUresult (*type_cuMemcpyDtoDAsync_v2)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
typedef CUresult (*type_cuMemsetD32Async)(CUdeviceptr, unsigned int, size_t, CUstream);
typedef CUresult (*type_cuStreamDestroy_v2)(CUstream);
typedef CUresult (*type_cuStreamWaitValue32_v2)(CUstream, CUdeviceptr, uint32_t, unsigned int);
typedef CUresult (*type_cuCtxFromGreenCtx)(CUcontext *, CUgreenCtx);
typedef CUresult (*type_cuCtxSetCurrent)(CUcontext);
typedef CUresult (*type_cuDevResourceGenerateDesc)(void **, void *, unsigned int);
typedef CUresult (*type_cuDeviceGetDevResource)(CUdevice, void *, int);
typedef CUresult (*type_cuGraphAddEmptyNode)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t);
typedef CUresult (*type_cuGraphAddMemAllocNode)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *);
typedef CUresult (*type_cuGraphAddMemFreeNode)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                                               CUdeviceptr);
typedef CUresult (*type_cuGraphConditionalHandleCreate)(uint64_t *, CUgraph, CUcontext, unsigned int,
                                                        unsigned int);
typedef CUresult (*type_cuGraphCreate)(CUgraph *, unsigned int);
typedef CUresult (*type_cuMemAddressReserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
typedef CUresult (*type_cuMemHostAlloc)(void **, size_t, unsigned int);
typedef CUresult (*type_cuMemPoolExportToShareableHandle)(void *, CUmemoryPool, int, unsigned long long);
typedef CUresult (*type_cuMemPoolImportFromShareableHandle)(CUmemoryPool *, void *, int, unsigned long long);
typedef CUresult (*type_cuModuleGetFunction)(CUfunction *, CUmodule, const char *);
typedef CUresult (*type_cuStreamBeginCapture_v2)(CUstream, int);
typedef CUresult (*type_cuStreamCreate)(CUstream *, unsigned int);
typedef CUresult (*type_cuStreamEndCapture)(CUstream, CUgraph *);

#define CU(name) ((type_##name)entry(#name))
#define SHAPE(blocks, threads)                                                                              \
    .gridDimX = blocks, .gridDimY = 1, .gridDimZ = 1, .blockDimX = threads, .blockDimY = 1, .blockDimZ = 1
#define IS(text) (strcmp(word[0], text) == 0)

void *entry(const char *name);
uint64_t number(const char *text);
uint64_t *kept_number(const char *name); /* address or handle kept under a letter */
void **kept_object(const char *name);
void *primary_context(void);
CUstream *tool_stream(void);
int open_descriptor(const char *pid, const char *fd); /* of another process, as if it had been sent */

/* -1: not a command of this group. */
CUresult processes(char **word);
CUresult crowds(char **word);
CUresult paths(char **word);
CUresult loops(char **word);
CUresult beyond(char **word);
CUresult races(char **word);
CUresult held(char **word);
CUresult places(char **word);
CUresult spins(char **word, char *more);
