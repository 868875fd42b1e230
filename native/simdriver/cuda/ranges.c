#include "ranges.h"

#include <stddef.h>

static void refresh(struct range *at)
{
    at->largest = at->size;
    if (at->left && at->left->largest > at->largest)
        at->largest = at->left->largest;
    if (at->right && at->right->largest > at->largest)
        at->largest = at->right->largest;
}

/* Splits a subtree into what lies below `base` and the rest. */
static void split(struct range *tree, uint64_t base, struct range **low, struct range **high)
{
    if (!tree) {
        *low = *high = NULL;
    } else if (tree->base < base) {
        *low = tree;
        split(tree->right, base, &tree->right, high);
        refresh(tree);
    } else {
        *high = tree;
        split(tree->left, base, low, &tree->left);
        refresh(tree);
    }
}

static struct range *join(struct range *low, struct range *high)
{
    if (!low || !high)
        return low ? low : high;
    if (low->priority > high->priority) {
        low->right = join(low->right, high);
        refresh(low);
        return low;
    }
    high->left = join(low, high->left);
    refresh(high);
    return high;
}

void range_insert(struct ranges *set, struct range *range)
{
    struct range *low, *high;
    set->seed = set->seed * 1664525 + 1013904223;
    range->priority = set->seed ^ set->seed >> 16;
    range->left = range->right = NULL;
    refresh(range);
    split(set->root, range->base, &low, &high);
    set->root = join(join(low, range), high);
}

void range_remove(struct ranges *set, struct range *range)
{
    struct range *low, *rest, *own, *high;
    split(set->root, range->base, &low, &rest);
    split(rest, range->base + 1, &own, &high);
    set->root = join(low, high);
}

struct range *range_at(const struct ranges *set, uint64_t address)
{
    struct range *at = set->root;
    while (at && !(address >= at->base && address - at->base < at->size))
        at = address < at->base ? at->left : at->right;
    return at;
}

struct range *range_from(const struct ranges *set, uint64_t address)
{
    struct range *found = NULL;
    for (struct range *at = set->root; at;) {
        if (at->base >= address)
            found = at;
        at = at->base >= address ? at->left : at->right;
    }
    return found;
}

struct range *range_fit(const struct ranges *set, uint64_t size)
{
    struct range *at = set->root;
    if (!at || at->largest < size)
        return NULL;
    for (;;) {
        if (at->left && at->left->largest >= size)
            at = at->left;
        else if (at->size >= size)
            return at;
        else
            at = at->right;
    }
}
