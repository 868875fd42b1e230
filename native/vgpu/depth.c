/* How many launches may be under way: as many as keep the device busy, and as few as end soon.
 *
 * How long one takes is known when it has ended. So a program that queues short ones and then long ones has as many long ones
 * as it may have under way, before it pays for the first. While they run, its cap brings a part of their time. The rest is
 * what it has too much: with kernels of REFERENCE_NS, no more than AHEAD_NS. So with a small cap these are few, and with one near
 * 100 % many. Processes of a slice share them.
 *
 * So few cost short kernels some of their time: an event behind each few takes the device 2 us. So a process whose launches were
 * short for PROVEN_NS of the device's time may have more, until some are long: then it has to prove it for longer. */
#include "lease.h"
#include "meter.h"

#define REFERENCE_NS UINT64_C(20000000)
#define AHEAD_NS UINT64_C(95000000) /* 0.95 % of ten seconds: what is left of a hundredth is saved credit */
#define PROVEN_NS UINT64_C(50000000)

enum {
    PROMPT_NS = 2500000, /* so long may launches wait behind others, */
    LATE_NS = 5000000,   /* and if they wait longer, fewer are allowed */
    DOUBTS = 64,
    SOON_NS = 400000, /* a thread that waits for less than that does not sleep: it would be late, */
    LEFT =
        2, /* and launches again when so many are left, which a GPU is busy with for as long as that takes */
    MARKED_NS = 100000, /* of launches that take so long each is known, until proven */
    SHORT_LEAST = 16,   /* under way, where launches are proven to be short, */
    SHORT_MOST = 160,   /* and with a cap of 100 % */
    BREACHES = 3,       /* counted, each of which */
    LONGER = 5          /* makes the proof longer by so many powers of two */
};

/* Of 32 bits, since dividing by 64 takes long, and each launch and its wait do. */
static uint32_t beyond(const struct meter *meter)
{
    return meter->cores < 100 ? 100 - meter->cores : 1;
}

static uint32_t short_most(const struct meter *meter)
{
    uint32_t part = meter->cores * SHORT_MOST / 100;
    return part > SHORT_LEAST ? part : SHORT_LEAST;
}

static bool is_proven(const struct meter *meter)
{
    return meter->proven >= PROVEN_NS << LONGER * meter->breaches;
}

uint32_t meter_most(const struct meter *meter)
{
    if (!meter->cores)
        return METER_MOST;
    uint32_t most = (uint32_t)(AHEAD_NS * 100 / REFERENCE_NS) / beyond(meter);
    if (is_proven(meter) && short_most(meter) > most)
        most = short_most(meter);
    return most < METER_MOST ? most : METER_MOST;
}

static void distrust(struct meter *meter)
{
    if (is_proven(meter) && meter->breaches < BREACHES)
        meter->breaches++;
    meter->proven = 0;
}

void meter_prove(struct meter *meter, uint64_t launch, uint64_t from, uint64_t to)
{
    note_pace(meter, launch);
    if (from < meter->latest) /* what other streams had is proven once */
        from = meter->latest;
    if (launch * short_most(meter) * beyond(meter) / 100 > AHEAD_NS)
        distrust(meter);
    else if (to > from)
        meter->proven += to - from;
}

/* This process's part of them. */
static uint32_t share(const struct meter *meter)
{
    uint32_t part = meter->cores ? meter_most(meter) : METER_MOST;
    if (meter->cores && meter->others)
        part /= meter->others + 1;
    return part < 1 ? 1 : part;
}

uint32_t meter_room(const struct meter *meter)
{
    return (uint32_t)least(meter->allowed, share(meter));
}

void meter_adapt(struct meter *meter, uint64_t waited)
{
    bool held = meter->cores || lease_takes_turns(meter->position);
    if (meter->cores && waited * beyond(meter) > AHEAD_NS * 100)
        distrust(meter);
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
    if (meter->allowed > meter_most(meter))
        meter->allowed = meter_most(meter);
}

bool meter_ends_soon(const struct meter *meter)
{
    return meter->pace * meter_room(meter) < SOON_NS;
}

bool meter_is_limited(const struct meter *meter)
{
    return meter->cores && meter->allowed >= share(meter);
}

uint64_t launches_a_mark(const struct meter *meter)
{
    uint32_t room = meter_room(meter), every = room / 4;
    if (meter->cores && meter->pace > MARKED_NS && !is_proven(meter))
        return 1;
    /* So few short ones may be that each event, which takes the device 2 us, must tell of more. */
    if (meter_is_limited(meter))
        every = room > 2 * LEFT && meter_ends_soon(meter) ? room - LEFT : room / 2;
    return every < 1 ? 1 : every < MARK_LAUNCHES ? every : MARK_LAUNCHES;
}
