/* For LD_PRELOAD: setenv() of one of MPS's variables says so and waits, by the two descriptors in HOLD. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int setenv(const char *name, const char *value, int replace)
{
    static _Thread_local int held;
    const char *hold = getenv("HOLD");
    int answer, order;
    int (*next)(const char *, const char *, int) =
        (int (*)(const char *, const char *, int))dlsym(RTLD_NEXT, "setenv");

    if (!strncmp(name, "CUDA_MPS_", 9) && hold && !held++ && sscanf(hold, "%d %d", &answer, &order) == 2)
        if (write(answer, "x", 1) != 1 || read(order, &held, 1) != 1)
            abort();
    return next(name, value, replace);
}
