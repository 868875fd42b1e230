#include "measured.h"

#include "slice/ledger.h"

struct measured measured_now(int position)
{
    size_t left, total;
    struct account_view view;
    if (position == NO_POSITION || !account_view(position, &view) ||
        REAL(cuMemGetInfo_v2)(&left, &total) != CUDA_SUCCESS)
        return (struct measured){0};
    return (struct measured){left, view.used, true};
}

uint64_t measured_since(int position, const struct measured *before)
{
    struct measured now = measured_now(position);
    if (!before->good || !now.good)
        return UINT64_MAX;
    /* What the container gave back meanwhile is in both differences: neither may end at 0 by itself. */
    uint64_t had = add_capped(before->free, before->used), has = add_capped(now.free, now.used);
    return subtract_capped(had, has);
}
