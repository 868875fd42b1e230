#include "measured.h"

#include "resident.h"
#include "slice/ledger.h"

#include <sched.h>

enum { LOOKS = 100 };

/* What is free and what is in the books: memory that the container takes or gives back is in both. */
static uint64_t sum(const struct measured *one)
{
    return add_capped(one->free, one->used);
}

struct measured measured_now(int position)
{
    size_t left, total;
    struct account_view view;
    if (position == NO_POSITION || !account_view(position, &view) ||
        RESIDENT(cuMemGetInfo_v2)(&left, &total) != CUDA_SUCCESS)
        return (struct measured){0};
    return (struct measured){left, view.used, true};
}

uint64_t measured_since(int position, const struct measured *before)
{
    struct measured now = measured_now(position);
    if (!before->good || !now.good)
        return UINT64_MAX;
    /* More than before: another thread has freed memory that is in the books yet. */
    for (int looks = 0; looks < LOOKS && now.good && sum(&now) > sum(before); looks++) {
        sched_yield();
        now = measured_now(position);
    }
    return now.good ? subtract_capped(sum(before), sum(&now)) : UINT64_MAX;
}
