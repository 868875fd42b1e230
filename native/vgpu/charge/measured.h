/* What a call of the driver takes of a device, where nothing else tells: by the memory that is free before and after. */
#ifndef NVC_VGPU_MEASURED_H
#define NVC_VGPU_MEASURED_H

#include "charge.h"

struct measured {
    uint64_t free; /* bytes of the current context's device */
    uint64_t used; /* by this container, as its books have it */
    bool good;
};

struct measured measured_now(int position);

/* Bytes that were taken since, beyond what the books have come to show; what others took meanwhile is among them.
 * UINT64_MAX: nobody knows. */
uint64_t measured_since(int position, const struct measured *before);

#endif
