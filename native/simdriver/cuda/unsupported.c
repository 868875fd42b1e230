/* Entry points of the driver that this one has in name only: they exist, and say that what they are for is not
 * supported. Whatever their arguments are, the caller removes them. */
#include "driver.h"

#define UNSUPPORTED(name)                                                                                   \
    CU_API CUresult name(void)                                                                              \
    {                                                                                                       \
        return CUDA_ERROR_NOT_SUPPORTED;                                                                    \
    }
#include "unsupported.def"
