/* Which devices a program gets, in which order. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CANDIDATES = SIM_MAX_GPUS * (1 + SIM_MAX_MIG) };

struct candidate {
    uint32_t gpu;
    int mig; /* -1: the whole GPU */
};

static const char *uuid_of(const struct sim_description *from, const struct candidate *candidate)
{
    const struct sim_gpu *gpu = &from->gpus[candidate->gpu];
    return candidate->mig < 0 ? gpu->uuid : gpu->mig[candidate->mig].uuid;
}

/* All that the nodes allow. A GPU in MIG mode is usable by its MIG devices alone. */
static size_t list_candidates(const struct sim_root *root, struct candidate *out)
{
    const struct sim_description *from = &root->description;
    size_t count = 0;
    for (uint32_t i = 0; i < from->gpu_count; i++) {
        const struct sim_gpu *gpu = &from->gpus[i];
        if (!sim_root_has_gpu(root, gpu))
            continue;
        if (!gpu->mig_enabled)
            out[count++] = (struct candidate){i, -1};
        for (uint32_t m = 0; m < gpu->mig_count; m++)
            if (sim_root_has_mig(root, gpu, &gpu->mig[m]))
                out[count++] = (struct candidate){i, (int)m};
    }
    return count;
}

/* Without a wish a program gets the whole GPUs, or where there are none the first MIG device: it can use one. */
static size_t choose_default(const struct candidate *all, size_t count, struct candidate *out)
{
    size_t chosen = 0;
    for (size_t i = 0; i < count && chosen < SIM_MAX_GPUS; i++)
        if (all[i].mig < 0)
            out[chosen++] = all[i];
    if (chosen == 0 && count > 0)
        out[chosen++] = all[0];
    return chosen;
}

/* The candidate that one word of CUDA_VISIBLE_DEVICES means: an index among the defaults, or the unambiguous
 * beginning of a UUID. -1: none. */
static long find_word(const struct sim_description *from, const char *word, const struct candidate *all,
                      size_t count)
{
    long found = -1;
    size_t length = strlen(word);
    if (*word >= '0' && *word <= '9') {
        char *end;
        unsigned long index = strtoul(word, &end, 10);
        struct candidate defaults[SIM_MAX_GPUS];
        size_t usable = choose_default(all, count, defaults);
        if (*end || index >= usable)
            return -1;
        for (size_t i = 0; i < count; i++)
            if (all[i].gpu == defaults[index].gpu && all[i].mig == defaults[index].mig)
                return (long)i;
        return -1;
    }
    if (length < 5 || (strncmp(word, "GPU-", 4) != 0 && strncmp(word, "MIG-", 4) != 0))
        return -1;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(uuid_of(from, &all[i]), word, length) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = (long)i;
    }
    return found;
}

/* The devices before the first word that names none; a device named twice means none at all. */
static size_t choose(const struct sim_description *from, const char *wish, const struct candidate *all,
                     size_t count, struct candidate *out)
{
    char word[64];
    size_t chosen = 0;
    while (chosen < SIM_MAX_GPUS) {
        size_t length = strcspn(wish, ",");
        if (length == 0 || length >= sizeof(word))
            break;
        memcpy(word, wish, length);
        word[length] = '\0';
        long found = find_word(from, word, all, count);
        if (found < 0)
            break;
        for (size_t i = 0; i < chosen; i++)
            if (out[i].gpu == all[found].gpu && out[i].mig == all[found].mig)
                return 0;
        out[chosen++] = all[found];
        if (all[found].mig >= 0 || wish[length] == '\0')
            break; /* one MIG device is all that a program can use */
        wish += length + 1;
    }
    return chosen;
}

void devices_find(struct driver *to)
{
    const struct sim_description *from = &to->root.description;
    const char *wish = getenv("CUDA_VISIBLE_DEVICES");
    struct candidate all[MAX_CANDIDATES], chosen[SIM_MAX_GPUS];
    size_t count = list_candidates(&to->root, all);
    to->device_count =
        (uint32_t)(wish ? choose(from, wish, all, count, chosen) : choose_default(all, count, chosen));
    for (uint32_t i = 0; i < to->device_count; i++) {
        struct device *device = &to->devices[i];
        device->ordinal = (int)i;
        device->gpu = &from->gpus[chosen[i].gpu];
        device->mig = chosen[i].mig < 0 ? NULL : &device->gpu->mig[chosen[i].mig];
        device->partition = sim_partition_of(chosen[i].gpu, chosen[i].mig);
        device->capacity =
            device->mig ? device->mig->memory : device->gpu->memory - device->gpu->reserved_memory;
        device->multiprocessors = device->mig ? device->mig->multiprocessors : device->gpu->multiprocessors;
    }
}

struct device *device_at(CUdevice ordinal)
{
    struct driver *in = driver();
    return ordinal >= 0 && (uint32_t)ordinal < in->device_count ? &in->devices[ordinal] : NULL;
}
