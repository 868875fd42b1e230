/* Runs one case: simdriver_test NAME; or lists all: simdriver_test. */
#include "simdriver_test.h"

CUcontext use_device(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

size_t used_bytes(void)
{
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return total - free_bytes;
}

CUfunction kernel(const char *name)
{
    /* Not text, so it may have any kernel. */
    static const unsigned char image[64] = {0x7f, 'E', 'L', 'F'};
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

void launch_small(CUfunction function, CUstream stream, void **arguments)
{
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

void launch_full(CUfunction function, CUstream stream, void **arguments)
{
    OK(cuLaunchKernel(function, 100000, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

float elapsed(CUevent from, CUevent to)
{
    float ms;
    OK(cuEventSynchronize(to));
    OK(cuEventElapsedTime(&ms, from, to));
    return ms;
}

int main(int argc, char **argv)
{
    static const struct test *const groups[] = {device_tests, copy_tests, stream_tests, module_tests,
                                                graph_tests};
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++)
        for (const struct test *test = groups[g]; test->name; test++) {
            if (argc < 2) {
                puts(test->name);
            } else if (strcmp(test->name, argv[1]) == 0) {
                test->run();
                return 0;
            }
        }
    return argc < 2 ? 0 : 2;
}
