#define REAL_FILE "nvc/real-libcuda.so.1"
#define REAL_LACKS CUDA_ERROR_NOT_SUPPORTED
#include "real.h"

#include <string.h>

struct wrapper {
    const char *name;
    int index;
    void *address;
};

#define ACCOUNT_ROW(symbol, memory, parameters) {#symbol, REAL_##symbol, (void *)symbol},
#define CALL_ROW(symbol, memory, parameters)
static const struct wrapper wrappers[] = {
#include "abi/cuda.def"
};

/* Names of one function that the driver has under several addresses, or of several under one, differ by a suffix. */
static void *wrapper_of(const char *asked, const void *address)
{
    void *found = NULL;
    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++) {
        if (real_get(wrappers[i].index) != address)
            continue;
        if (!found || strncmp(wrappers[i].name, asked, strlen(asked)) == 0)
            found = wrappers[i].address;
    }
    return found;
}

/* The driver knows which of its functions a name means for the caller's version and flags. It answers to the shim: the
 * program is not to see the driver's own address, not even from another thread. */
static __attribute__((noinline)) CUresult answer(const char *name, void **entry, void *found,
                                                 CUresult result)
{
    void *wrapper = name && found != (void *)missing ? wrapper_of(name, found) : NULL;
    if (entry)
        *entry = wrapper ? wrapper : found;
    return result;
}

CU_API CUresult cuGetProcAddress(const char *name, void **entry, int version, uint64_t flags)
{
    void *found = entry ? *entry : NULL; /* which stays, where the driver writes nothing */
    CUresult result = REAL(cuGetProcAddress)(name, entry ? &found : NULL, version, flags);
    return answer(name, entry, found, result);
}

CU_API CUresult cuGetProcAddress_v2(const char *name, void **entry, int version, uint64_t flags, int *status)
{
    void *found = entry ? *entry : NULL;
    CUresult result = REAL(cuGetProcAddress_v2)(name, entry ? &found : NULL, version, flags, status);
    return answer(name, entry, found, result);
}
