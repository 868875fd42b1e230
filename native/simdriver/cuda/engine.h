/* What executes the operations of streams.
 *
 * A device's engine is one thread of each process. It simulates time: each operation begins when it was submitted
 * and what it waits for had ended, and lasts as long as it is said to, whenever the thread gets to look at it.
 * Kernels progress only while the process holds the turn of its partition, which processes pass on by time slices;
 * the times of events therefore include time switched out, as on hardware. Clients of MPS have no turns: together.c.
 *
 * With NVC_SIM_SWITCH_NS, a change from one process's kernels to another's takes so many nanoseconds. Events and waits for
 * words progress only in the process's turn too then, and a context is made by work on the device, as on hardware.
 * NVC_SIM_TIMESLICE_NS is for how long a process has the device beside others. */
#pragma once

#include "driver.h"

/* EVENT_NS: between two kernels of a stream, an event takes an H100 2.2 microseconds. */
enum { TIMESLICE_NS = 2000000, FULL_SHARE = 65536, EVENT_NS = 2200, CHOICE_NS = 2000 };

/* A new operation with `size` bytes of data; NULL: out of memory. */
struct op *op_new(enum op_kind kind, size_t size);
struct op *op_copy(const struct op *op);
void op_free(struct op *op);

/* Appends to the stream, or to the graph that it captures into. Takes the operation in any case. */
CUresult engine_submit(struct stream *stream, struct op *op);

/* Does all that is due and returns when there is more, on the clock of sim_now. */
uint64_t engine_step(struct device *device);

/* Does what is due, so that a question about the device has the answer that it would have had on hardware, however late
 * the engine's thread is. */
void engine_catch_up(struct device *device);

/* Something is awaited that was not: the engine may have to look sooner. */
void engine_look(struct device *device);

/* Waits until some work is done. */
void engine_wait_change(void);

/* Each returns when the work that was submitted before is done. */
void engine_wait_stream(struct stream *stream);
void engine_wait_context(struct context *context);
void engine_wait_device(struct device *device);
void engine_wait_event(struct event *event, uint64_t generation);

/* As engine_wait_context, for a context that ends: kernels that wait for something are given up. */
void engine_drain_context(struct context *context);

/* operation.c: threads of ours, and the one that runs functions of the program */
CUresult thread_start(pthread_t *thread, void *(*run)(void *), void *argument);
CUresult host_functions_ready(void);
void host_function_start(struct op *op);

/* graph_condition.c: what comes next in the stream of an OP_CHOOSE */
void graph_choose(struct op *op);

/* turn.c: whose kernels run on a partition */
bool turn_take(struct device *device); /* else we are in the queue */
void turn_withdraw(struct device *device);
void turn_pass(struct device *device, bool still_wanted);
bool turn_is_mine(struct device *device);
bool turn_hold(struct device *device,
               uint64_t now);                /* takes it, and notes since when; false: we wait for it */
uint64_t turn_change(struct device *device); /* how long it takes until kernels of ours run */
bool turn_takes_time(void);                  /* changes do */
uint64_t turn_length(const struct device *device); /* of a time slice */
bool turn_is_needed(const struct op *op);          /* for what is no kernel */
bool turn_is_wanted(struct device *device);
void turn_wait(struct device *device, uint64_t ns); /* without the lock; ends early when something changes */
void turn_nudge(struct device *device);             /* ends the waits of all */
uint64_t turn_free_at(struct device *device);
void turn_report(struct device *device); /* the holder lives, and has worked until engine.clock */

/* together.c: clients of MPS have no turns. Their kernels run at once, and slow each other down. */
bool together_is_used(void); /* this process is such a client */
void together_begin(struct device *device);
void together_end(struct device *device);
bool together_look(struct device *device);  /* whether others have begun or ended since the last time */
void together_nudge(struct device *device); /* ends the wait of this process, and of others */
void together_wait(struct device *device, uint64_t ns); /* for that, or for others; without the lock */
uint64_t together_takes(const struct engine *engine, uint64_t work); /* nanoseconds, of so many alone */
uint64_t together_does(const struct engine *engine, uint64_t ns);    /* the reverse */
