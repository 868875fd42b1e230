/* The turn on a device, where nvcd hands it out. Without nvcd, and under the policy `native`, everybody always has it. */
#ifndef NVC_VGPU_LEASE_H
#define NVC_VGPU_LEASE_H

#include "process.h"

/* Whether nvcd is there; if not, it is looked for now and then. Nothing is said to be wanted. */
bool lease_is_handed_out(void);

/* Whether this process may launch on the device now. Cheap. The first call for a device that is shared by a policy
 * connects to nvcd, if it is there, and says that the device is wanted. */
bool lease_held(int position);

/* Waits until it may, at most until `until` (CLOCK_MONOTONIC, nanoseconds); true: it may. */
bool lease_await(int position, uint64_t until);

/* What runs has not gone on for long, and may wait for a launch that waits for a turn: nvcd is asked for one though this
 * one is not given back. */
void lease_stuck(int position);

/* The slice has no credit: gives the lease back at once, if nothing runs. */
void lease_hand_back(int position);

/* Whether nvcd is there and has not been told that the device is wanted. */
bool lease_is_unasked(int position);

/* Whether nvcd is there to hand out turns on the device, so that what is launched has to be known. */
bool lease_is_active(int position);

/* Whether nvcd is there, and sees how processes end. */
bool lease_is_watched(void);

/* Whether others have turns on it as well: what a cap allows then comes in pieces. The second: or had so lately. */
bool lease_takes_turns(int position);
bool lease_took_turns(int position, uint64_t now, uint64_t within);

/* Half of the last turn, as nvcd gave it, nanoseconds; 0: it had no end. */
uint64_t lease_half(int position);

/* The process begins to make a context, which takes time from those who work on the device, or has it now. */
void lease_tell_making(int position, bool begins);

/* A launch waits until it may be made, or does no longer: meanwhile the lease is not given back as one that is not used. */
void lease_wanted(int position, bool wanted);
uint32_t lease_waiters(int position); /* how many do */

/* The program waited for the device, and nothing of its own is left there: a turn that is over, or has no room for half
 * a step more, is given back by the thread that knows it first. */
void lease_stepped(int position, uint64_t now);

/* A launch was made: if it is the first of a turn that was waited for, a hand-over is over. */
void lease_launched(int position);

/* Whether one more launch, that is a long one, would end so late that the next one's turn could begin before. The first of a turn does not. */
bool lease_is_full(int position);

/* What the lease needs to know, supplied by the meter. Called from a thread of the shim's own that has no context. */
bool meter_is_idle(int position);     /* what this process launched on the device is shown to have ended */
bool meter_is_stalled(int position);  /* it is not, and at the last look none of it ran */
uint64_t meter_left(int position);    /* how long that will take, nanoseconds, as a guess */
uint64_t meter_pace(int position);    /* what one launch takes, likewise */
uint64_t meter_charged(int position); /* GPU time that this process was charged, nanoseconds in all */
uint64_t meter_used(int position, uint64_t now); /* the same, with what is under way */
void meter_refund(int position, uint64_t time);  /* of that, so much another slice had */
uint64_t meter_last_launch(int position);        /* CLOCK_MONOTONIC, nanoseconds */
uint64_t meter_last_work(int position);          /* likewise: when that was, or its end */

#endif
