/* Fuzzes the readers of what a runtime hands to a hook: the state and the bundle's configuration. What is accepted is
 * within its bounds, and plain text. */
#include "cdi_reading.h"

#include <stdlib.h>
#include <string.h>

static void plain(const char *text, size_t most)
{
    if (text == NULL || strlen(text) > most)
        abort();
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            abort();
}

static void check_given(const struct cdi_given *given, size_t size)
{
    if (given->slice_count > CDI_SLICES || given->node_count > CDI_NODES ||
        given->source_count > CDI_SOURCES)
        abort();
    for (size_t i = 0; i < given->slice_count; i++) {
        plain(given->slices[i], size);
        for (size_t j = 0; j < i; j++)
            if (strcmp(given->slices[i], given->slices[j]) == 0)
                abort();
    }
    for (size_t i = 0; i < given->source_count; i++)
        plain(given->sources[i], size);
    if (given->searched != NULL)
        plain(given->searched, 65536);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cdi_container container = {.rootfs = -1};
    char *copy = malloc(size ? size : 1); /* exactly as large, so that the sanitizer sees a byte too far */

    if (copy == NULL || size > 65536) {
        free(copy);
        return 0;
    }
    memcpy(copy, data, size);
    if (cdi_state(copy, size, &container)) {
        plain(container.bundle, PATH_MAX - 1);
        if (container.bundle[0] != '/' || container.pid < 0)
            abort();
        if (container.named)
            plain(container.id, CDI_ID_MAX);
    }
    if (cdi_config(copy, size, &container)) {
        plain(container.rootfs_path, sizeof(container.rootfs_path) - 1);
        if (container.given != NULL)
            check_given(container.given, size);
    }
    free_given(container.given);
    free(copy);
    return 0;
}
