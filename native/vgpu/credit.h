/* What a launch waits for, and whether its slice has credit for it. */
#ifndef NVC_VGPU_CREDIT_H
#define NVC_VGPU_CREDIT_H

#include "meter.h"

/* WAIT_TURN: among those of the slice that wait for credit; WAIT_PLACE: until fewer of them have work under way; WAIT_LEASE:
 * among slices. */
enum verdict_of_gate {
    OPEN,
    WAIT_WORK,
    WAIT_CREDIT,
    WAIT_TURN,
    WAIT_PLACE,
    WAIT_MEMORY,
    WAIT_QUOTA,
    WAIT_RESUME,
    WAIT_LEASE
};

struct wait {
    uint64_t held_since; /* for whatever reason */
    uint64_t noted;      /* up to when the ledger says so; 0: it does not */
    uint64_t turn_since, lack_since;
    uint64_t still_since, owed; /* since when it has waited and nothing has ended; the debt of credit then */
    uint32_t served;            /* when the turn was looked at */
    uint32_t dead;              /* whose turn passed while nothing happened, one after the other */
    uint64_t sleep;
    bool counted; /* as one that goes on as soon as it may: the lease is wanted */
};

/* Lets the launch begin, or says what it waits for. */
enum verdict_of_gate credit_begin(struct launch *launch, uint32_t cores, struct wait *wait);

/* The same before a turn is asked for, which nobody needs without the credit to use it: nothing begins. */
enum verdict_of_gate credit_weigh(struct launch *launch, uint32_t cores, struct wait *wait);

/* Whether what runs may wait for this launch, which waits for a turn. */
bool credit_is_stuck(int position, uint32_t cores, struct wait *wait, uint64_t now);

#endif
