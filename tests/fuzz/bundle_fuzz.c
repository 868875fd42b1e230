/* Fuzzes the readers of what a runtime hands to a hook: the state and the bundle's configuration. What is accepted is
 * within its bounds, and plain text. */
#include "cdi/cdi.h"

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
    if (cdi_config(copy, size, &container))
        plain(container.rootfs_path, sizeof(container.rootfs_path) - 1);
    free(copy);
    return 0;
}
