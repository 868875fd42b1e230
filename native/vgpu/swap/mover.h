/* Moves a process's blocks into memory of its own on the host, and back, when nvcd asks in the quota. A thread does that,
 * the only one that is ever started, and only in slices that are suspended so. It answers in the ledger.
 *
 * Nothing is given back before all of it was copied, and no call goes on before all of it is there again. */
#pragma once

#include <stdbool.h>

/* Whether there is such a thread, which this starts. */
bool mover_start(void);
