/* Runs a command and makes one of its system calls fail, or ends the process there (ptrace(2)).
 *
 *   faults [-l LOG] [-t SECONDS] [-f PROCESS:NUMBER:ACTION] COMMAND...
 *
 * PROCESS is `0` for the command, `0.1` for the first process that it makes, `0.1.2` for the second of that one.
 * NUMBER counts the system calls of that process from 1; those of the command before it is executed do not count.
 * ACTION: `first` and `second` make the call fail with one of the errors of faults_calls.h, without being made;
 * `kill` ends the process before the call, `tree` all of them, `interrupt` sends it SIGINT.
 * LOG gets a line `call PROCESS NUMBER NAME FIRST SECOND PATH` for each call. Standard output gets a last line
 * `end STATUS LEFT`: the exit status (128 + signal if killed), and how many processes lived on for more than 2 s after
 * the command.
 * Exits 0 when the fault was made or none was wanted, 3 when its call was never reached, 4 after SECONDS.
 */
#include "faults_tracee.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES 256
#define ROLE 64
#define HAPPENS 1
#define WRITES 2 /* to its first argument */
#define WRITTEN 4
#define DESCRIPTORS 1024
#define GRACE_MS 2000

struct call {
    const char *name;
    int first, second, path;
    unsigned flags;
};

#define CALL(name, first, second, path, flags) [SYS_##name] = {#name, first, second, path, flags},
static const struct call CALLS[512] = {
#include "faults_calls.h"
};

enum action { NONE, FIRST, SECOND, KILL, TREE, INTERRUPT };
static const char *const ACTIONS[] = {"", "first", "second", "kill", "tree", "interrupt"};

struct process {
    pid_t pid; /* 0: this place is free */
    char role[ROLE];
    bool known; /* its parent's announcement has come: the role is right */
    bool waits; /* stopped, until its role is known */
    unsigned children, calls;
    bool written[DESCRIPTORS];
    int inject; /* the error that the present call must return */
};

struct run {
    struct process processes[PROCESSES];
    char role[ROLE];
    unsigned number;
    enum action action;
    bool executed, made, ended;
    int status;
    FILE *log;
};

_Noreturn void die(const char *what)
{
    perror(what);
    exit(2);
}

static struct process *find(struct run *run, pid_t pid)
{
    struct process *free_place = NULL;

    for (size_t i = 0; i < PROCESSES; i++) {
        if (run->processes[i].pid == pid)
            return &run->processes[i];
        if (run->processes[i].pid == 0 && free_place == NULL)
            free_place = &run->processes[i];
    }
    if (free_place == NULL) {
        fprintf(stderr, "faults: too many processes\n");
        exit(2);
    }
    memset(free_place, 0, sizeof(*free_place));
    free_place->pid = pid;
    return free_place;
}

static void go_on(struct run *run, struct process *process, int sig)
{
    /* A stop at each call takes as long as the calls: only where they are counted. */
    bool counted = run->log || process->inject ||
                   (!run->made && run->action != NONE && strcmp(process->role, run->role) == 0);

    /* ESRCH: killed meanwhile; its end is still to be waited for. */
    if (trace(counted || !run->executed ? PTRACE_SYSCALL : PTRACE_CONT, process->pid, NULL,
              (void *)(intptr_t)sig) < 0 &&
        errno != ESRCH)
        die("continue");
}

/* The call as it is here: a close cannot fail where nothing was written. */
static struct call look_up(struct process *process, const struct ptrace_syscall_info *info)
{
    struct call call = CALLS[info->entry.nr];
    bool *written = info->entry.args[0] < DESCRIPTORS ? &process->written[info->entry.args[0]] : NULL;

    if (call.flags & WRITTEN && !(written && *written))
        call.first = call.second = 0;
    if (written && call.flags & (WRITES | WRITTEN))
        *written = call.flags & WRITES;
    return call;
}

static void write_call(struct run *run, struct process *process, const struct call *call,
                       const struct ptrace_syscall_info *info)
{
    char path[512] = "";

    if (call->path)
        read_text(process->pid, info->entry.args[call->path - 1], path, sizeof(path));
    fprintf(run->log, "call %s %u %s %d %d %s\n", process->role, process->calls, call->name, call->first,
            call->second, path);
}

static void act(struct run *run, struct process *process, const struct call *call)
{
    run->made = true;
    switch (run->action) {
    case FIRST:
    case SECOND:
        process->inject = run->action == FIRST ? call->first : call->second;
        if (process->inject && !(call->flags & HAPPENS))
            set_number(process->pid, -1);
        break;
    case KILL:
        kill(process->pid, SIGKILL);
        break;
    case TREE:
        for (size_t i = 0; i < PROCESSES; i++)
            if (run->processes[i].pid)
                kill(run->processes[i].pid, SIGKILL);
        break;
    case INTERRUPT:
        kill(process->pid, SIGINT);
        break;
    case NONE:
        break;
    }
}

static void at_call(struct run *run, struct process *process)
{
    struct ptrace_syscall_info info;

    if (trace(PTRACE_GET_SYSCALL_INFO, process->pid, (void *)sizeof(info), &info) < 0)
        return; /* killed meanwhile */
    if (info.op == PTRACE_SYSCALL_INFO_EXIT && process->inject) {
        set_result(process->pid, -process->inject);
        process->inject = 0;
    }
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY || !run->executed)
        return;
    process->calls++;
    if (info.entry.nr >= sizeof(CALLS) / sizeof(CALLS[0]) || CALLS[info.entry.nr].name == NULL) {
        fprintf(stderr, "faults: system call %" PRIu64 " is not in faults_calls.h\n",
                (uint64_t)info.entry.nr);
        exit(2);
    }
    struct call call = look_up(process, &info);
    if (run->log)
        write_call(run, process, &call, &info);
    if (run->action != NONE && process->calls == run->number && strcmp(process->role, run->role) == 0)
        act(run, process, &call);
}

/* A process was made: its number among its parent's says what it is. */
static void announce(struct run *run, struct process *parent)
{
    unsigned long pid;

    if (trace(PTRACE_GETEVENTMSG, parent->pid, NULL, &pid) < 0)
        return;
    struct process *process = find(run, (pid_t)pid);
    parent->children++;
    if ((size_t)snprintf(process->role, ROLE, "%.40s.%u", parent->role, parent->children) >= ROLE)
        die("too deep");
    process->known = true;
    if (process->waits) {
        process->waits = false;
        go_on(run, process, 0);
    }
}

static void at_stop(struct run *run, struct process *process, int status)
{
    int event = status >> 16, sig = WSTOPSIG(status);

    if (!process->known) { /* made, and stopped before anything else */
        process->waits = true;
        return;
    }
    if (sig == (SIGTRAP | 0x80)) {
        at_call(run, process);
        sig = 0;
    } else if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE) {
        announce(run, process);
        sig = 0;
    } else if (event != 0) {
        if (event == PTRACE_EVENT_EXEC)
            run->executed = true;
        sig = 0;
    }
    go_on(run, process, sig);
}

static void on_alarm(int sig)
{
    (void)sig;
    static const char text[] = "faults: timed out\n";
    if (write(2, text, sizeof(text) - 1) < 0)
        _exit(4);
    _exit(4); /* PTRACE_O_EXITKILL ends the rest */
}

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Follows every process to its end; returns how many lived on for too long after the command. */
static unsigned follow(struct run *run, pid_t command)
{
    int64_t deadline = 0;
    const struct timespec pause = {.tv_nsec = 1000000};

    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, __WALL | (run->ended ? WNOHANG : 0));
        if (pid < 0 && errno == ECHILD)
            return 0;
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            die("wait");
        if (pid == 0) {
            if (now_ms() >= deadline)
                break;
            nanosleep(&pause, NULL);
            continue;
        }
        struct process *process = find(run, pid);
        if (WIFSTOPPED(status)) {
            at_stop(run, process, status);
            continue;
        }
        if (pid == command) {
            run->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            run->ended = true;
            deadline = now_ms() + GRACE_MS;
        }
        process->pid = 0;
    }
    unsigned left = 0;
    for (size_t i = 0; i < PROCESSES; i++)
        left += run->processes[i].pid != 0;
    return left;
}

static pid_t start(struct run *run, char **argv)
{
    int ready[2];
    char byte = 0;

    if (pipe(ready) < 0)
        die("pipe");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        close(ready[1]);
        if (read(ready[0], &byte, 1) != 1)
            _exit(2);
        close(ready[0]);
        execv(argv[0], argv);
        perror(argv[0]);
        _exit(127);
    }
    close(ready[0]);
    struct process *process = find(run, pid);
    strcpy(process->role, "0");
    process->known = true;
    if (trace(PTRACE_SEIZE, pid, NULL,
              (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                       PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL)) < 0)
        die("seize");
    if (trace(PTRACE_INTERRUPT, pid, NULL, NULL) < 0)
        die("interrupt");
    if (write(ready[1], &byte, 1) != 1)
        die("write");
    close(ready[1]);
    return pid;
}

static bool parse_fault(struct run *run, char *text)
{
    char *number = strchr(text, ':');
    char *action = number ? strchr(number + 1, ':') : NULL;

    if (action == NULL || (size_t)(number - text) >= ROLE)
        return false;
    *number++ = *action++ = '\0';
    strcpy(run->role, text);
    run->number = (unsigned)strtoul(number, NULL, 10);
    for (enum action a = FIRST; a <= INTERRUPT; a++)
        if (strcmp(action, ACTIONS[a]) == 0)
            run->action = a;
    return run->number > 0 && run->action != NONE;
}

int main(int argc, char **argv)
{
    static struct run run;
    unsigned seconds = 30;
    int option;
    bool good = true;

    while ((option = getopt(argc, argv, "+l:t:f:")) != -1) {
        if (option == 'l')
            good = good && (run.log = fopen(optarg, "we")) != NULL;
        else if (option == 't')
            seconds = (unsigned)strtoul(optarg, NULL, 10);
        else
            good = good && option == 'f' && parse_fault(&run, optarg);
    }
    if (!good || optind >= argc) {
        fprintf(stderr, "usage: faults [-l LOG] [-t SECONDS] [-f PROCESS:NUMBER:ACTION] COMMAND...\n");
        return 2;
    }
    signal(SIGALRM, on_alarm);
    alarm(seconds);
    pid_t command = start(&run, argv + optind);
    unsigned left = follow(&run, command);
    printf("end %d %u\n", run.status, left);
    if (run.log && fclose(run.log) != 0)
        die("log");
    return run.action == NONE || run.made ? 0 : 3;
}
