/* Functions of NVML that this one has in name only. Programs that bind all names when they start, or that cannot
 * live with a missing one, get the answer that real devices give for what they do not have. A function of another file
 * takes the place of its name here. */
#include "library.h"

#define NVML(class, name, ...)                                                                              \
    NVML_API __attribute__((weak)) nvmlReturn_t weak_##name(void) __asm__(#name);                           \
    nvmlReturn_t weak_##name(void)                                                                          \
    {                                                                                                       \
        return nvml_library() ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNINITIALIZED;                        \
    }
#include "abi/nvml.def"
