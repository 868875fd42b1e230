/* Memory that a context takes for its kernels' threads. */
#pragma once

#include "charge/charge.h"

/* A kernel is about to be launched; false: its local memory does not fit. */
bool local_allows(CUfunction function, CUstream stream);

/* A kernel is about to become a node of a graph, which may run it in another context than the current one. */
bool local_allows_node(const CUDA_KERNEL_NODE_PARAMS *node, bool with_context);
