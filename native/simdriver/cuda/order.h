/* What an operation waits for, and until when nobody waits for it: the engine's questions. */
#pragma once

#include "engine.h"

static inline uint64_t later(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static inline uint64_t sooner(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

bool is_blocking(const struct stream *stream);

/* The legacy default stream waits for all blocking streams of its context, and they for it. */
bool must_wait_for_others(const struct stream *stream, uint64_t sequence);

/* When the operation at the head of its stream could begin. */
uint64_t start_of(const struct op *op);

/* For how long a running kernel, and those behind it, need no look: ends that nobody waits for are looked at together. */
uint64_t undisturbed(struct engine *engine, const struct op *op);
