/* Memory that a context takes for its kernels' threads. */
#ifndef NVC_VGPU_LOCAL_H
#define NVC_VGPU_LOCAL_H

#include "charge.h"

/* A kernel is about to be launched, or to become a node of a graph; false: its local memory does not fit. */
bool local_allows(CUfunction function);

/* Handles of functions may mean others from now on. */
void local_forget(void);

#endif
