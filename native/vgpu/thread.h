/* Threads of the shim's own. */
#ifndef NVC_VGPU_THREAD_H
#define NVC_VGPU_THREAD_H

#include <stdbool.h>

/* One that takes no signal of the program's. False: there is none to be had. */
bool thread_start(void *(*run)(void *), void *argument);

#endif
