/* The devices that a graph works on: each counts when it is launched, whichever the stream is of. */
#ifndef NVC_VGPU_GRAPH_DEVICES_H
#define NVC_VGPU_GRAPH_DEVICES_H

#include "gate.h"

/* An instance was made of the graph, or ends. */
void graph_devices_enter(CUgraphExec exec, CUgraph graph);
void graph_devices_leave(CUgraphExec exec);

/* Launches an instance when all its devices may be used. */
CUresult graph_devices_launch(CUgraphExec exec, CUstream stream, bool per_thread,
                              CUresult (*launch)(CUgraphExec, CUstream, void *), void *argument);

#endif
