/* How many launches may be under way: as many as keep the device busy, and as few as end soon. How long one takes is known
 * when it has ended. So a program that queues short ones and then long ones has as many long ones as it may have under
 * way, before it pays for the first: with a small cap these are few. */
#include "lease.h"
#include "meter.h"

enum {
    PROMPT_NS = 2500000, /* so long may launches wait behind others, */
    LATE_NS = 5000000,   /* and if they wait longer, fewer are allowed */
    DOUBTS = 64,
    CAPPED_LEAST = 16, /* launches under way that any slice may have if they are short, */
    CAPPED = 160       /* and one with a cap of 100 % */
};

static uint32_t most(const struct meter *meter)
{
    uint32_t part = meter->cores * CAPPED / 100;
    if (!meter->cores)
        return METER_MOST;
    return part < CAPPED_LEAST ? CAPPED_LEAST : part > METER_MOST ? METER_MOST : part;
}

void meter_adapt(struct meter *meter, uint64_t waited)
{
    bool held = meter->cores || lease_takes_turns(meter->position);
    uint32_t fewest = held && meter->pace > LATE_NS ? 1 : 2;
    if (waited > LATE_NS) {
        meter->allowed = (uint32_t)((uint64_t)meter->allowed * LATE_NS / waited);
        meter->doubts = DOUBTS;
    } else if (waited < PROMPT_NS && meter->under_way >= meter->allowed / 2) {
        /* Not where fewer are under way anyway: that says nothing of more. */
        meter->allowed += meter->doubts || meter->allowed < 4 ? 1 : meter->allowed / 4;
        meter->doubts -= meter->doubts != 0;
    }
    if (meter->allowed < fewest)
        meter->allowed = fewest;
    if (meter->allowed > most(meter))
        meter->allowed = most(meter);
}

bool meter_is_limited(const struct meter *meter)
{
    return meter->cores && meter->allowed == most(meter);
}

uint64_t launches_a_mark(const struct meter *meter)
{
    /* So few short ones may be that each event, which takes the device 2 us, must tell of more. */
    uint64_t every = meter->allowed / (meter_is_limited(meter) ? 2 : 4);
    return every < 1 ? 1 : every < MARK_LAUNCHES ? every : MARK_LAUNCHES;
}
