/* nvc-hook without an interpreter: for containers that ask for nothing (with Podman and CRI-O it is called for every
 * container), and for those that ask for what an earlier one got. */
#include "hook.h"
#include "cdi/cdi.h"
#include "replay/replay.h"
#include "runtime/runtime.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool nothing_to_do(const char *state, size_t size)
{
    struct cdi_container container;
    char config[PATH_MAX];

    return cdi_state(state, size, &container) &&
           snprintf(config, sizeof(config), "%s/config.json", container.bundle) < PATH_MAX &&
           asks_for_nothing(config);
}

/* By what the container asks for, in the words of hooks/prestart.py, _again. */
static void do_again(const char *name, int argc, char **argv, const char *state, size_t size)
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

/* Whether the words ask for the work of a hook, with a configuration file named or not. */
static bool is_called(int argc, char **argv)
{
    static const char *const commands[] = {"prestart", "createRuntime", "createContainer"};
    bool known = false;

    if (argc != 2 && (argc != 4 || strcmp(argv[1], "-config") != 0))
        return false;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        known = known || !strcmp(argv[argc - 1], commands[i]);
    return known;
}

void hook_run(const char *name, int argc, char **argv, void (*settle)(const char *name))
{
    static struct runtimes settings;
    char path[PATH_MAX];
    struct buffer state = {.bytes = NULL};

    if (!is_called(argc, argv))
        return;
    settle(name);
    bool usual = argc == 2 && !runtimes_load(&settings, path) && settings.usual;
    if (buffer_read(&state, 0, STATE_MAX)) {
        if (usual && nothing_to_do(state.bytes, state.size))
            _exit(0);
        if (strcmp(argv[argc - 1], "createContainer") != 0) /* it runs in the container's own namespaces */
            do_again(name, argc, argv, state.bytes, state.size);
    }
    cdi_hand_back(name, &state);
}
