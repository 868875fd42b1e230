/* nvc-hook: what a container asks for, in the words of hooks/prestart.py, _again. */
#include "cdi/cdi.h"
#include "replay.h"

#include <string.h>

void replay_hook(const char *name, int argc, char **argv, const char *state, size_t size)
{
    static char words[REPLAY_KEY_MAX], variables[CDI_VARIABLES_MAX];
    struct cdi_container container = {.rootfs = -1, .variables = variables};
    size_t length = 0;
    bool known = replay_append(words, &length, "hook");

    for (int i = 1; i < argc; i++)
        known = known && replay_append(words, &length, argv[i]);
    if (!known || !cdi_state(state, size, &container) || !cdi_bundle(&container) || !container.plain ||
        container.asks || !replay_append(words, &length, container.privileged ? "privileged" : "usual") ||
        strlen(variables) >= sizeof(words) - length)
        return;
    strcpy(words + length, variables);
    replay_run(name, words, sizeof(words), container.pid, false, container.rootfs_path, REPLAY_TIMEOUT_S);
}
