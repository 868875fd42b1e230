/* The table of the shim's own events: what is in it is found, and what has ended leaves its place to others. */
#include "own_events.h"

#include "process.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                                   \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                         \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

enum { LIVE = 20000, ROUNDS = 200000, CONTEXT = 1 << 30 };

void *_Atomic real_entries[REAL_COUNT];

void *real_find(int index)
{
    fprintf(stderr, "entry %d was called\n", index);
    abort();
}

static CUevent event(uintptr_t number)
{
    return (CUevent)(number * 64);
}

int main(void)
{
    /* One after the other, more than the table has places. */
    for (uintptr_t i = 1; i <= ROUNDS; i++) {
        EXPECT(!own_event_is(event(i)) && own_event_add(event(i), i) && own_event_is(event(i)));
        own_event_end(event(i), i);
    }

    /* Most of the table: of each three, one ends, so that others are behind places that were left. */
    for (uintptr_t i = 1; i <= LIVE; i++)
        EXPECT(own_event_add(event(i), CONTEXT));
    for (uintptr_t i = 1; i <= LIVE; i += 3)
        own_event_end(event(i), CONTEXT);
    for (uintptr_t i = 1; i <= LIVE; i++)
        EXPECT(own_event_is(event(i)) == (i % 3 != 1));

    /* Its handle is another one's by now, which stays. */
    EXPECT(own_event_add(event(2), 2));
    own_event_end(event(2), CONTEXT);
    EXPECT(own_event_is(event(2)));
    own_events_end(CONTEXT);
    EXPECT(own_event_is(event(2)) && !own_event_is(event(3)));
    own_event_end(event(2), 2);
    EXPECT(!own_event_is(event(2)));
    return 0;
}
