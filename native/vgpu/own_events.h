/* The shim's own events, while the driver has them: see own_events.c. */
#ifndef NVC_VGPU_OWN_EVENTS_H
#define NVC_VGPU_OWN_EVENTS_H

#include "real.h"

/* One was made in this context. False: there is no room, so that it cannot be kept from the program. */
bool own_event_add(CUevent event, uint64_t context);

/* It was destroyed. Another may have its handle by now, of another context: `context` may be any number that tells. */
void own_event_end(CUevent event, uint64_t context);

/* The context ends, and its events with it. */
void own_events_end(uint64_t context);

bool own_event_is(CUevent event);

#endif
