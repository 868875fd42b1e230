/* The entry points of libcuda that the tests call, as a program that links it declares them: those with types in the
 * table, and others. */
#pragma once

#include "abi/cuda.h"

#define ENTRY(class, symbol, name, since, ...) class##_ROW(symbol, __VA_ARGS__)
#define ACCOUNT_ROW(symbol, memory, types) CUresult symbol types;
#define GATE_ROW ACCOUNT_ROW
#define VIEW_ROW ACCOUNT_ROW
#define CALL_ROW ACCOUNT_ROW
#define PASS_ROW(symbol, ...)
#define HOLD_ROW PASS_ROW /* these are below, with their structures */
#include "abi/cuda.def"
#undef ENTRY

CUresult cuDriverGetVersion(int *);
CUresult cuGetErrorName(CUresult, const char **);
CUresult cuGetErrorString(CUresult, const char **);

CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetName(char *, int, CUdevice);
CUresult cuDeviceGetPCIBusId(char *, int, CUdevice);
CUresult cuDeviceGetByPCIBusId(CUdevice *, const char *);
CUresult cuDeviceCanAccessPeer(int *, CUdevice, CUdevice);

CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxEnablePeerAccess(CUcontext, unsigned int);
CUresult cuCtxDisablePeerAccess(CUcontext);

CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *);
CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t);
CUresult cuMemsetD16_v2(CUdeviceptr, unsigned short, size_t);
CUresult cuMemsetD32_v2(CUdeviceptr, unsigned int, size_t);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned int, size_t, CUstream);
CUresult cuMemcpyHtoA_v2(CUarray, size_t, const void *, size_t);
CUresult cuMemcpyAtoH_v2(void *, CUarray, size_t, size_t);

CUresult cuStreamCreate(CUstream *, unsigned int);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int);
CUresult cuStreamGetFlags(CUstream, unsigned int *);

CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, CUmodule, const char *);
CUresult cuModuleGetFunctionCount(unsigned int *, CUmodule);
CUresult cuFuncGetParamInfo(CUfunction, size_t, size_t *, size_t *);
CUresult cuLinkCreate_v2(unsigned int, int *, void **, CUlinkState *);
CUresult cuLinkAddData_v2(CUlinkState, int, void *, size_t, const char *, unsigned int, int *, void **);
CUresult cuLinkComplete(CUlinkState, void **, size_t *);
CUresult cuLinkDestroy(CUlinkState);

CUresult cuGraphCreate(CUgraph *, unsigned int);
CUresult cuGraphAddMemsetNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                              const CUDA_MEMSET_NODE_PARAMS *, CUcontext);
CUresult cuGraphAddEmptyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t);
CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuGraphGetEdges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
CUresult cuGraphNodeSetEnabled(CUgraphExec, CUgraphNode, unsigned int);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuLaunchHostFunc(CUstream, CUhostFn, void *);
CUresult cuStreamDestroy_v2(CUstream);
