/* nvc-runtime: an OCI runtime that gives containers their GPUs and leaves all else to runc or crun.
 *
 * The low-level runtime takes this process's place with the words, environment and descriptors that an engine
 * gave: NOTIFY_SOCKET, LISTEN_FDS, a console's socket and the container's own standard streams pass through
 * untouched. What Python does, for `create` and `run` alone, is done in a child that has none of them. */
#include "start/launcher.h"
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const DIRECTORIES[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin",
                                          "/usr/bin",        "/sbin",          "/bin"};
static const char *const DEFAULTS[] = {"runc", "crun"};

/* One line on stderr and in the runtime's log, and exit 1. */
static _Noreturn void fail(const struct call *call, const char *name, const char *path, const char *cause)
{
    char message[PATH_MAX + 512];

    snprintf(message, sizeof(message), "%s: initialization error: %s: %s", name, path, cause);
    fprintf(stderr, "%s\n", message);
    log_entry(call, "error", message);
    exit(1);
}

/* A file that can be executed, and is not this program under another name, which would never end. */
static bool runnable(const char *path)
{
    struct stat found, own;

    return !stat(path, &found) && S_ISREG(found.st_mode) && !access(path, X_OK) &&
           !stat("/proc/self/exe", &own) && (found.st_dev != own.st_dev || found.st_ino != own.st_ino);
}

static bool find_runtime(const char *wanted, char path[PATH_MAX])
{
    if (wanted[0] == '/')
        return snprintf(path, PATH_MAX, "%s", wanted) < PATH_MAX && runnable(path);
    for (size_t i = 0; !strchr(wanted, '/') && i < sizeof(DIRECTORIES) / sizeof(DIRECTORIES[0]); i++)
        if (snprintf(path, PATH_MAX, "%s/%s", DIRECTORIES[i], wanted) < PATH_MAX && runnable(path))
            return true;
    return false;
}

/* The first of the configured runtimes that is there. Returns whether the settings are usual: see struct runtimes. */
static bool choose_runtime(const struct call *call, const char *name, char path[PATH_MAX])
{
    static struct runtimes runtimes;
    char canonical[PATH_MAX];

    const char *cause = runtimes_load(&runtimes, canonical);
    if (cause)
        fail(call, name, canonical, cause);
    if (!runtimes.count)
        for (size_t i = 0; i < sizeof(DEFAULTS) / sizeof(DEFAULTS[0]); i++)
            runtimes.names[runtimes.count++] = DEFAULTS[i];
    for (size_t i = 0; i < runtimes.count; i++)
        if (find_runtime(runtimes.names[i], path))
            return runtimes.usual;
    fail(call, name, runtimes.names[0],
         "no low-level runtime found; install runc or crun, or name one in `runtimes`");
}

/* `path` below the current directory, unless it is absolute. */
static bool absolute(char out[PATH_MAX], const char *directory, const char *path)
{
    int length = path[0] == '/' ? snprintf(out, PATH_MAX, "%s", path)
                                : snprintf(out, PATH_MAX, "%s/%s", directory, path);
    return length < PATH_MAX;
}

/* Both ends are above the standard streams, any of which a caller may have closed. */
static bool open_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC))
        return false;
    for (int i = 0; i < 2; i++) {
        int low = ends[i];
        ends[i] = fcntl(low, F_DUPFD_CLOEXEC, 3);
        close(low);
    }
    return ends[0] >= 0 && ends[1] >= 0;
}

/* In the child: no stream of the container's, and an end together with the parent's. */
static _Noreturn void edit_in_child(int report, pid_t parent, char **arguments, char **envp,
                                    void (*edit)(char **arguments, char **envp))
{
    dup2(report, STDERR_FILENO);
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
        edit(arguments, envp);
    _exit(1);
}

/* What a child writes until it ends, cut to `room`; returns its wait status. */
static int listen_to(pid_t child, int report, char *text, size_t room)
{
    char rest[512];
    size_t used = 0;
    ssize_t got;
    int status;

    for (;;) {
        bool full = used + 1 == room;
        got = full ? read(report, rest, sizeof(rest)) : read(report, text + used, room - 1 - used);
        if (got > 0 && !full)
            used += (size_t)got;
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
    }
    text[used] = '\0';
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return status;
}

/* Runs `edit` in a child, unless there is nothing to edit. What it says goes where engines look; if it fails, so does
 * the call. */
static void edit_bundle(const struct call *call, const char *name, const char *mode, char *runtime,
                        bool usual, char **envp, void (*edit)(char **arguments, char **envp))
{
    char here[PATH_MAX], bundle[PATH_MAX], config[PATH_MAX], text[4096], cause[64], forced[16];
    char own[] = "nvc-runtime", *arguments[] = {own, bundle, config, runtime, mode ? forced : NULL, NULL};
    struct sigaction standard = {.sa_handler = SIG_DFL}, given;
    int ends[2];

    if (!getcwd(here, sizeof(here)))
        fail(call, name, "current directory", strerror(errno));
    if (!absolute(bundle, here, call->bundle ? call->bundle : ".") ||
        !absolute(config, bundle, call->config ? call->config : "config.json"))
        fail(call, name, "bundle", "the path is too long");
    if (usual && !mode && asks_for_nothing(config))
        return;
    snprintf(forced, sizeof(forced), "%s", mode ? mode : "");
    if (!open_pipe(ends))
        fail(call, name, "pipe2", strerror(errno));
    /* With SIGCHLD ignored, which a caller may leave behind, there would be no status to wait for. */
    sigaction(SIGCHLD, &standard, &given);
    pid_t parent = getpid(), child = fork();
    if (child < 0)
        fail(call, name, "fork", strerror(errno));
    if (child == 0)
        edit_in_child(ends[1], parent, arguments, envp, edit);
    close(ends[1]);
    int status = listen_to(child, ends[0], text, sizeof(text));
    close(ends[0]);
    sigaction(SIGCHLD, &given, NULL);

    text[strcspn(text, "\n")] = '\0';
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        if (text[0] && !call->log) /* stderr is the container's, or is about to be */
            fprintf(stderr, "%s\n", text);
        if (text[0])
            log_entry(call, "warning", text);
        return;
    }
    if (!text[0]) {
        snprintf(cause, sizeof(cause), WIFSIGNALED(status) ? "ended by signal %d" : "exit status %d",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        fail(call, name, "editing of config.json", cause);
    }
    fprintf(stderr, "%s\n", text);
    log_entry(call, "error", text);
    exit(1);
}

/* The low-level runtime's own lines come first and unchanged, since engines parse them; then nvc's. */
static _Noreturn void show_version(const struct call *call, const char *name, const char *runtime,
                                   char **argv, char **envp, void (*edit)(char **arguments, char **envp))
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    char own[] = "nvc-runtime", version[] = "--version", *arguments[] = {own, version, NULL};
    int status;

    sigaction(SIGCHLD, &standard, NULL); /* ignored, there would be no status to wait for */
    pid_t child = fork();
    if (child < 0)
        fail(call, name, "fork", strerror(errno));
    if (child == 0) {
        execve(runtime, argv, envp);
        fail(call, name, runtime, strerror(errno));
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail(call, name, "waitpid", strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    edit(arguments, envp);
    exit(1);
}

void runtime_run(const char *name, const char *mode, int argc, char **argv, char **envp,
                 void (*edit)(char **arguments, char **envp))
{
    struct call call = call_read(argc, argv);
    char runtime[PATH_MAX];

    bool usual = choose_runtime(&call, name, runtime);
    if (call.version)
        show_version(&call, name, runtime, argv, envp, edit);
    if (call.creates)
        edit_bundle(&call, name, mode, runtime, usual, envp, edit);
    execve(runtime, argv, envp);
    fail(&call, name, runtime, strerror(errno));
}
