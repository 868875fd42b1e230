/* A process that uses the simulated driver as it is told: one command a line, one answer a line.
 *
 *   init | context DEVICE | another DEVICE (a context beside that) | alloc BYTES | free ADDRESS | managed BYTES | info | sync
 *   launch NAME COUNT | time NAME COUNT   the second answers with milliseconds, by events
 *   ipc-get ADDRESS | ipc-open HANDLE | write ADDRESS WORD | read ADDRESS
 *   fork                                  a child that only holds what it inherited; answers with its pid
 *   close-all                             closes every descriptor above 2, as careless programs do
 *
 * An answer begins with the result of the call that failed, or 0. */
#include "simdriver_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRY(call)                                                                                           \
    do {                                                                                                    \
        CUresult tried_ = (call);                                                                           \
        if (tried_ != CUDA_SUCCESS)                                                                         \
            return tried_;                                                                                  \
    } while (0)

static char answer[512];

static CUresult use_context(int device)
{
    CUcontext context;
    TRY(cuDevicePrimaryCtxRetain(&context, device));
    return cuCtxSetCurrent(context);
}

static CUresult make_context(int device)
{
    CUcontext context;
    TRY(cuCtxCreate_v2(&context, 0, device));
    return cuCtxPopCurrent_v2(&context);
}

static CUresult report_info(void)
{
    size_t free_bytes, total;
    TRY(cuMemGetInfo_v2(&free_bytes, &total));
    snprintf(answer, sizeof(answer), "%zu %zu", free_bytes, total);
    return CUDA_SUCCESS;
}

static CUresult find_kernel(const char *name, CUfunction *out)
{
    static const unsigned char image[64] = {0x7f, 'E', 'L', 'F'};
    static CUmodule module;
    if (!module)
        TRY(cuModuleLoadData(&module, image));
    return cuModuleGetFunction(out, module, name);
}

static CUresult launch(const char *name, int count)
{
    CUfunction function;
    TRY(find_kernel(name, &function));
    for (int i = 0; i < count; i++)
        TRY(cuLaunchKernel(function, 100000, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL));
    return CUDA_SUCCESS;
}

static CUresult time_launches(const char *name, int count)
{
    CUevent from, to;
    float ms;
    TRY(cuEventCreate(&from, 0));
    TRY(cuEventCreate(&to, 0));
    TRY(cuEventRecord(from, NULL));
    TRY(launch(name, count));
    TRY(cuEventRecord(to, NULL));
    TRY(cuEventSynchronize(to));
    TRY(cuEventElapsedTime(&ms, from, to));
    snprintf(answer, sizeof(answer), "%.3f", (double)ms);
    return CUDA_SUCCESS;
}

static CUresult ipc_get(CUdeviceptr address)
{
    CUipcMemHandle handle;
    TRY(cuIpcGetMemHandle(&handle, address));
    for (size_t i = 0; i < sizeof(handle); i++)
        snprintf(answer + 2 * i, 3, "%02x", (unsigned char)handle.reserved[i]);
    return CUDA_SUCCESS;
}

static CUresult ipc_open(const char *hex)
{
    CUipcMemHandle handle = {{0}};
    CUdeviceptr address;
    for (size_t i = 0; i < sizeof(handle) && hex[2 * i]; i++) {
        unsigned int byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return CUDA_ERROR_UNKNOWN;
        handle.reserved[i] = (char)byte;
    }
    TRY(cuIpcOpenMemHandle_v2(&address, handle, 1));
    snprintf(answer, sizeof(answer), "%llu", (unsigned long long)address);
    return CUDA_SUCCESS;
}

static CUresult read_word(CUdeviceptr address)
{
    unsigned int word;
    TRY(cuMemcpyDtoH_v2(&word, address, sizeof(word)));
    snprintf(answer, sizeof(answer), "%u", word);
    return CUDA_SUCCESS;
}

static CUresult make_child(void)
{
    pid_t child = fork();
    if (child < 0)
        return CUDA_ERROR_UNKNOWN;
    if (child == 0) {
        close(0);
        close(1);
        for (;;)
            pause();
    }
    snprintf(answer, sizeof(answer), "%d", (int)child);
    return CUDA_SUCCESS;
}

static CUresult obey(const char *command, const char *one, const char *other)
{
    unsigned long long number = strtoull(one, NULL, 0);
    CUdeviceptr address = number;
    CUresult result = CUDA_SUCCESS;
    unsigned int word = (unsigned int)strtoul(other, NULL, 0);
    if (strcmp(command, "init") == 0)
        return cuInit(0);
    if (strcmp(command, "context") == 0)
        return use_context((int)number);
    if (strcmp(command, "another") == 0)
        return make_context((int)number);
    if (strcmp(command, "free") == 0)
        return cuMemFree_v2(address);
    if (strcmp(command, "info") == 0)
        return report_info();
    if (strcmp(command, "sync") == 0)
        return cuCtxSynchronize();
    if (strcmp(command, "launch") == 0)
        return launch(one, (int)word);
    if (strcmp(command, "time") == 0)
        return time_launches(one, (int)word);
    if (strcmp(command, "ipc-get") == 0)
        return ipc_get(address);
    if (strcmp(command, "ipc-open") == 0)
        return ipc_open(one);
    if (strcmp(command, "write") == 0)
        return cuMemcpyHtoD_v2(address, &word, sizeof(word));
    if (strcmp(command, "read") == 0)
        return read_word(address);
    if (strcmp(command, "fork") == 0)
        return make_child();
    if (strcmp(command, "close-all") == 0)
        return syscall(SYS_close_range, 3u, ~0u, 0) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    if (strcmp(command, "alloc") == 0)
        result = cuMemAlloc_v2(&address, number);
    else if (strcmp(command, "managed") == 0)
        result = cuMemAllocManaged(&address, number, CU_MEM_ATTACH_GLOBAL);
    else
        return CUDA_ERROR_NOT_FOUND;
    snprintf(answer, sizeof(answer), "%llu", (unsigned long long)address);
    return result;
}

int main(void)
{
    char line[1024];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof(line), stdin)) {
        char command[32] = "", one[256] = "", other[64] = "";
        sscanf(line, "%31s %255s %63s", command, one, other);
        answer[0] = '\0';
        CUresult result = obey(command, one, other);
        printf("%d %s\n", (int)result, answer);
    }
    return 0;
}
