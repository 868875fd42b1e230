/* The CUDA runtime at the limit, in C that nvcc compiles: with the shared or the static runtime, and with default
 * streams per thread. Prints one JSON line. */
#include <cuda_runtime.h>
#include <stdio.h>

enum { BLOCK = 64 << 20, MOST = 4000 };

static void *have[MOST];

int main(void)
{
    size_t free_bytes = 0, total = 0;
    int got = 0, refused, cleared, small, async_code, async_free, after;
    void *one = NULL, *later = NULL;
    struct cudaDeviceProp properties;

    if (cudaFree(NULL) != cudaSuccess || cudaGetDeviceProperties(&properties, 0) != cudaSuccess)
        return 3;
    while (got < MOST && cudaMalloc(&have[got], BLOCK) == cudaSuccess)
        got++;
    refused = cudaPeekAtLastError();
    cleared = cudaGetLastError() == (cudaError_t)refused && cudaGetLastError() == cudaSuccess;
    if (got && cudaFree(have[--got]) != cudaSuccess)
        return 4;
    small = cudaMalloc(&one, 1 << 20);
    cudaFree(one);
    for (int i = 0; i < got; i++)
        if (cudaFree(have[i]) != cudaSuccess)
            return 5;
    async_code = cudaMallocAsync(&later, (size_t)1 << 30, 0);
    async_free = cudaFree(later);
    cudaDeviceSynchronize();
    cudaMemGetInfo(&free_bytes, &total);
    after = cudaGetLastError();
    printf(
        "{\"got\": %d, \"refused\": %d, \"cleared\": %d, \"small\": %d, \"async\": %d, \"async_free\": %d, "
        "\"after\": %d, \"free\": %zu, \"total\": %zu, \"properties\": %zu}\n",
        got, refused, cleared, small, async_code, async_free, after, free_bytes >> 20, total >> 20,
        properties.totalGlobalMem >> 20);
    return 0;
}
