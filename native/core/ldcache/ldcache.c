/* Merging libraries into a loader cache. Runs inside the container's namespaces: no system calls, no globals. */
#include "_ldcache.h"

#include <errno.h>
#include <stdlib.h>

/* Sorting a cache that its image left unsorted may cost this many compared characters, about a second. */
#define SORT_BUDGET ((uint64_t)1 << 30)

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The loader adds digits up in an int, which wraps; a hostile name must not be undefined here. */
static uint32_t read_number(const char **text)
{
    uint32_t value = 0;

    while (is_digit(**text))
        value = value * 10 + (uint32_t)(*(*text)++ - '0');
    return value;
}

/* `char` is signed or not as it is in the loader of the same architecture. */
int ldcache_compare(const char *left, const char *right)
{
    while (*left != '\0') {
        if (is_digit(*left) && is_digit(*right)) {
            uint32_t a = read_number(&left), b = read_number(&right);
            if (a != b)
                return (int32_t)(a - b) > 0 ? 1 : -1;
        } else if (is_digit(*left) != is_digit(*right)) {
            return is_digit(*left) ? 1 : -1;
        } else if (*left != *right) {
            return *left - *right;
        } else {
            left++;
            right++;
        }
    }
    return *left - *right;
}

/* Positive when `a` belongs before `b`. Entries of the image with one name stay as they are; ours go by flags, as
 * ldconfig has them. */
static int precedes(const struct ldcache_record *a, const struct ldcache_record *b)
{
    int order = ldcache_compare(a->name, b->name);

    if (order != 0 || !a->added)
        return order;
    return (a->flags > b->flags) - (a->flags < b->flags);
}

static bool is_sorted(const struct ldcache_record *records, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (precedes(&records[i - 1], &records[i]) < 0)
            return false;
    return true;
}

/* Merges two neighbouring sorted ranges of `from` into `to`; of equals, the first range's come first. */
static void merge_ranges(const struct ldcache_record *from, size_t start, size_t middle, size_t end,
                         struct ldcache_record *to)
{
    size_t left = start, right = middle;

    for (size_t i = start; i < end; i++) {
        bool take_left = right == end || (left < middle && precedes(&from[left], &from[right]) >= 0);
        to[i] = take_left ? from[left++] : from[right++];
    }
}

/* A stable merge sort rather than qsort: wrapping numbers make the loader's order intransitive. */
static int sort_records(struct ldcache_record *records, size_t count)
{
    uint64_t characters = 0, rounds = 0;
    struct ldcache_record *from = records, *to;

    if (is_sorted(records, count))
        return 0;
    for (size_t i = 0; i < count; i++)
        characters += strlen(records[i].name) + 1;
    for (size_t width = 1; width < count; width *= 2)
        rounds++;
    if (characters * rounds > SORT_BUDGET)
        return -EBADMSG;
    struct ldcache_record *spare = malloc(count * sizeof(*spare));
    if (spare == NULL)
        return -ENOMEM;
    to = spare;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t middle = start + width < count ? start + width : count;
            size_t end = middle + width < count ? middle + width : count;
            merge_ranges(from, start, middle, end, to);
        }
        struct ldcache_record *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != records)
        memcpy(records, from, count * sizeof(*records));
    free(spare);
    return 0;
}

static bool is_same(const struct ldcache_record *a, const struct ldcache_record *b)
{
    return a->flags == b->flags && strcmp(a->name, b->name) == 0 && strcmp(a->path, b->path) == 0;
}

/* Lets our records have the strings of the cache's records that are the same: merging again gives the same bytes. */
static void share_strings(struct ldcache_record *ours, size_t our_count, const struct ldcache_record *old,
                          size_t old_count)
{
    for (size_t i = 0; i < our_count; i++)
        for (size_t k = 0; k < old_count; k++)
            if (is_same(&ours[i], &old[k])) {
                ours[i].name = old[k].name;
                ours[i].path = old[k].path;
            }
}

static bool is_among(const struct ldcache_record *record, const struct ldcache_record *others, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_same(record, &others[i]))
            return true;
    return false;
}

/* Joins both sorted lists. Of equal names, ours comes before the image's first entry whose flags are not above it:
 * those that are above are of another architecture, and flags that a loader takes for want of its own are below.
 * Returns the count. */
static size_t join(const struct ldcache_record *old, size_t old_count, struct ldcache_record *ours,
                   size_t our_count, struct ldcache_record *joined)
{
    size_t count = 0, i = 0, j = 0;

    while (j < our_count) {
        const struct ldcache_record *group = &ours[j];
        size_t our_end = j, old_end;
        while (our_end < our_count && ldcache_compare(ours[our_end].name, group->name) == 0)
            our_end++;
        while (i < old_count && ldcache_compare(old[i].name, group->name) > 0)
            joined[count++] = old[i++];
        for (old_end = i; old_end < old_count && ldcache_compare(old[old_end].name, group->name) == 0;)
            old_end++;
        size_t size = our_end - j;
        if (old_end > i)
            share_strings(&ours[j], size, &old[i], old_end - i);
        while (i < old_end || j < our_end) {
            bool take_old = j == our_end || (i < old_end && old[i].flags > ours[j].flags);
            const struct ldcache_record *next = take_old ? &old[i++] : &ours[j++];
            if (!is_among(next, group, take_old ? size : (size_t)(next - group)))
                joined[count++] = *next;
        }
    }
    while (i < old_count)
        joined[count++] = old[i++];
    return count;
}

/* Whether the loader, searching as it does, comes to an added entry first. Not so in a cache whose names hold numbers
 * that wrap: with those no order need exist in which the search ends at every name. */
static bool is_found(const struct ldcache_record *records, size_t count, const struct ldcache_record *wanted)
{
    size_t low = 0, high = count;

    while (low < high) {
        /* The loader's (left + right) / 2 with an inclusive right end. */
        size_t middle = (low + high - 1) / 2;
        int order = ldcache_compare(wanted->name, records[middle].name);
        if (order < 0) {
            low = middle + 1;
        } else if (order > 0) {
            high = middle;
        } else {
            while (middle > 0 && ldcache_compare(wanted->name, records[middle - 1].name) == 0)
                middle--;
            while (middle + 1 < count && records[middle].flags != wanted->flags)
                middle++;
            return records[middle].added && ldcache_compare(wanted->name, records[middle].name) == 0;
        }
    }
    return false;
}

/* The records to add, sorted. */
static int take_added(const struct nvc_ldcache_entry *add, size_t count, struct ldcache_record *ours)
{
    for (size_t i = 0; i < count; i++) {
        size_t name = strnlen(add[i].soname, NAME_BYTES_MAX + 1);
        if (name == 0 || name > NAME_BYTES_MAX || add[i].path[0] != '/' ||
            strnlen(add[i].path, PATH_BYTES_MAX + 1) > PATH_BYTES_MAX)
            return -EINVAL;
        ours[i] = (struct ldcache_record){
            .name = add[i].soname, .path = add[i].path, .flags = add[i].arch_flags, .added = true};
    }
    return sort_records(ours, count);
}

/* Sorts the image's entries if need be, and writes them and ours together. */
static int merge(struct ldcache_view *view, struct ldcache_record *ours, size_t our_count, uint8_t **merged,
                 size_t *merged_size)
{
    int result = sort_records(view->records, view->count);

    if (result < 0)
        return result;
    struct ldcache_record *joined = malloc((view->count + our_count) * sizeof(*joined) + 1);
    if (joined == NULL)
        return -ENOMEM;
    size_t count = join(view->records, view->count, ours, our_count, joined);
    for (size_t i = 0; i < our_count && result == 0; i++)
        if (!is_found(joined, count, &ours[i]))
            result = -EBADMSG;
    if (result == 0)
        result = ldcache_write(view, joined, count, merged, merged_size);
    free(joined);
    return result;
}

int nvc_ldcache_merge(const uint8_t *old, size_t old_size, const struct nvc_ldcache_entry *add, size_t count,
                      uint8_t **merged, size_t *merged_size)
{
    struct ldcache_view view = {.bytes = NULL};
    int result = 0;

    *merged = NULL;
    *merged_size = 0;
    if (count > NVC_LDCACHE_ENTRIES_MAX)
        return -EINVAL;
    struct ldcache_record *ours = malloc(count * sizeof(*ours) + 1);
    if (ours == NULL)
        return -ENOMEM;
    result = take_added(add, count, ours);
    if (result == 0 && old_size > 0)
        result = ldcache_read(old, old_size, &view);
    if (result == 0)
        result = merge(&view, ours, count, merged, merged_size);
    if (result == -EBADMSG && old_size == 0)
        result = -EINVAL;
    free(view.records);
    free(ours);
    return result;
}
