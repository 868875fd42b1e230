/* Feeds arbitrary text to the reader of a simulated driver's description. What it accepts must keep its promises. */
#include "description.h"

#include <stdlib.h>
#include <string.h>

#define PROMISE(condition)                                                                                  \
    do {                                                                                                    \
        if (!(condition))                                                                                   \
            abort();                                                                                        \
    } while (0)

static void check_text(const char *text, size_t size)
{
    PROMISE(memchr(text, '\0', size) && text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sim_description out;
    struct sim_parse_error error;
    char *copy = malloc(size ? size : 1); /* exactly as large, so that a byte too far is seen */
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    int result = sim_description_parse(copy, size, &out, &error);
    free(copy);
    if (result != 0) {
        PROMISE(error.cause);
        return 0;
    }
    check_text(out.driver_version, sizeof(out.driver_version));
    PROMISE(out.gpu_count <= SIM_MAX_GPUS);
    for (uint32_t i = 0; i < out.gpu_count; i++) {
        const struct sim_gpu *gpu = &out.gpus[i];
        check_text(gpu->uuid, sizeof(gpu->uuid));
        check_text(gpu->name, sizeof(gpu->name));
        PROMISE(gpu->mig_count <= SIM_MAX_MIG && gpu->reserved_memory <= gpu->memory && gpu->minor <= 253);
        PROMISE(gpu->mig_count == 0 || (gpu->mig_enabled && gpu->mig_capable));
        for (uint32_t m = 0; m < gpu->mig_count; m++)
            PROMISE(gpu->mig[m].memory <= gpu->memory && gpu->mig[m].gpu_instance <= 14);
    }
    return 0;
}
