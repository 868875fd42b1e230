/* Entry points of the driver that this one has in name only: they exist, and say that what they are for is not
 * supported. Whatever their arguments are, the caller removes them. A function of another file takes the place of its
 * name here. */
#include "driver.h"

#define ENTRY(class, symbol, name, since, ...)                                                              \
    CU_API __attribute__((weak)) CUresult weak_##symbol(void) __asm__(#symbol);                             \
    CUresult weak_##symbol(void)                                                                            \
    {                                                                                                       \
        return CUDA_ERROR_NOT_SUPPORTED;                                                                    \
    }
#include "abi/cuda.def"
