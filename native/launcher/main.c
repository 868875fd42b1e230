/* nvc-cli, nvidia-ctk, nvc-hook, nvc-cdi-hook, nvc-runtime, nvcd, nvc-kubelet-plugin, nvc-nri: starts the Python program
 * behind each name from a clean slate.
 *
 * A hook may inherit its environment, directory and descriptors from a container image, and an engine may start
 * nvc-cli with whatever it was itself given. A dynamically linked interpreter obeys LD_PRELOAD before its first
 * instruction, so no Python code can defend itself: this static program comes first. Where code is found depends
 * on this file's own place and on launch.conf beside it, never on arguments or environment.
 *
 * nvc-cdi-hook does without an interpreter what it can: cdi/. So do nvc-cli configure and nvc-hook: replay/.
 *
 * The dumpable flag is left alone: execve(2) would set it again. */
#include "cdi/cdi.h"
#include "hook.h"
#include "replay/replay.h"
#include "runtime/runtime.h"
#include "start/launcher.h"

#include <string.h>
#include <sys/auxv.h>

static const struct program PROGRAMS[] = {
    {"nvc-cli", "nvc-cli", "nvc_cli", "boot", false, false},
    /* Callers parse its messages, which begin with its name. */
    {"nvidia-container-cli", "nvidia-container-cli", "nvc_cli", "boot", false, false},
    {"nvidia-ctk", "nvidia-ctk", "nvc_cli", "ctk", false, false},
    {"nvc-hook", "nvc-hook", "nvc_hooks", "boot", true, false},
    {"nvidia-container-runtime-hook", "nvc-hook", "nvc_hooks", "boot", true, false},
    {"nvidia-container-toolkit", "nvc-hook", "nvc_hooks", "boot", true, false}, /* its name before 1.6 */
    {"nvc-cdi-hook", "nvc-cdi-hook", "nvc_hooks", "boot", true, false},
    {"nvidia-cdi-hook", "nvc-cdi-hook", "nvc_hooks", "boot", true, false},
    {"nvc-runtime", "nvc-runtime", "nvc_hooks", "runtime", true, false},
    {"nvidia-container-runtime", "nvc-runtime", "nvc_hooks", "runtime", true, false},
    /* The word behind the dot is the mode, whatever the configuration says. */
    {"nvidia-container-runtime.cdi", "nvc-runtime", "nvc_hooks", "runtime", true, false},
    {"nvidia-container-runtime.legacy", "nvc-runtime", "nvc_hooks", "runtime", true, false},
    {"nvcd", "nvcd", "nvc_cli", "daemon", false, true},
    {"nvc-kubelet-plugin", "nvc-kubelet-plugin", "nvc_cli", "kubelet_plugin", false, false},
    {"nvc-nri", "nvc-nri", "nvc_cli", "nri", false, false},
};

static const struct program *program_called(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *base = slash ? slash + 1 : path;

    for (size_t i = 0; base && i < sizeof(PROGRAMS) / sizeof(PROGRAMS[0]); i++)
        if (!strcmp(PROGRAMS[i].called, base))
            return &PROGRAMS[i];
    return NULL;
}

/* Takes `hook` out of the words of nvidia-ctk: without it they are nvidia-cdi-hook's. Whether it was there, as in
 * specifications of its earlier releases. */
static bool take_hook(int *argc, char **argv)
{
    int at = 1;

    while (at < *argc && argv[at][0] == '-')
        at++;
    if (at == *argc || strcmp(argv[at], "hook"))
        return false;
    memmove(argv + at, argv + at + 1, (size_t)(*argc - at) * sizeof(*argv));
    --*argc;
    return true;
}

static void edit(char **argv, char **envp)
{
    start(program_called("nvc-runtime"), argv, envp);
}

int main(int argc, char **argv, char **envp)
{
    const struct program *program = argc > 0 ? program_called(argv[0]) : NULL;

    if (!program)
        program = program_called((const char *)getauxval(AT_EXECFN));
    if (!program)
        program = &PROGRAMS[0];
    if (!strcmp(program->name, "nvidia-ctk") && take_hook(&argc, argv))
        program = program_called("nvc-cdi-hook");
    if (!strcmp(program->name, "nvc-cdi-hook"))
        cdi_run(program->name, argc, argv, settle_hook);
    if (!strcmp(program->name, "nvc-hook"))
        hook_run(program->name, argc, argv, settle_hook);
    if (!strcmp(program->package, "nvc_cli") && !strcmp(program->module, "boot"))
        replay_configure(program->name, argc, argv, envp, settle_hook);
    if (!strcmp(program->module, "runtime")) {
        const char *mode = strchr(program->called, '.');
        runtime_run(program->name, mode ? mode + 1 : NULL, argc, argv, envp, edit);
    }
    start(program, argv, envp);
}
