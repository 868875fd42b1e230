/* What cuMemCreate made, between the files that make it and share it. */
#ifndef NVC_VGPU_VMM_H
#define NVC_VGPU_VMM_H

#include <stdint.h>

/* One handle more: a new one, or one that the driver hands out again. The lock of the items is held. */
void memory_add_handle(uint64_t handle, uint64_t number);

#endif
