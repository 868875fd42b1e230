#include "measured.h"

#include "ledger.h"

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
    return subtract_capped(subtract_capped(before->free, now.free), subtract_capped(now.used, before->used));
}
