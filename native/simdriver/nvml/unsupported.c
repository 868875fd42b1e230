/* Functions of NVML that this one has in name only. Programs that bind all names when they start, or that cannot
 * live with a missing one, get the answer that real devices give for what they do not have. */
#include "library.h"

#define UNSUPPORTED(name)                                                                                   \
    NVML_API nvmlReturn_t name(void);                                                                       \
    nvmlReturn_t name(void)                                                                                 \
    {                                                                                                       \
        return nvml_library() ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNINITIALIZED;                        \
    }
#include "unsupported.def"
