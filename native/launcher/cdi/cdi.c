/* nvc-cdi-hook: every start of a container with CDI devices waits for it, and an interpreter takes longer to start than
 * all of this. So the steps that such containers have are done here. A call with anything else goes on to Python, and so
 * does one that fails: there it is done from the beginning, or refused with a message. */
#include "cdi.h"
#include "start/launcher.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define APPLY_MS 10000
#define WARNING_MAX 512

void cdi_set_deadline(long seconds)
{
    struct itimerval timer = {.it_value = {.tv_sec = seconds}};

    setitimer(ITIMER_REAL, &timer, NULL);
}

void cdi_warn(const char *name, const char *warning)
{
    char line[WARNING_MAX + 1];
    size_t length = strlen(warning);

    snprintf(line, sizeof(line), "%s", warning);
    if (length > WARNING_MAX)
        strcpy(line + WARNING_MAX - 3, "...");
    for (char *at = line; *at; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
    fprintf(stderr, "%s: warning: %s\n", name, line);
}

void cdi_warn_lines(const char *name, char *lines)
{
    char *rest = NULL;

    for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        cdi_warn(name, line);
}

void cdi_begin(void)
{
    sigset_t interrupt;

    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, NULL);
    cdi_set_deadline(0);
}

bool cdi_apply(const uint8_t *program, size_t size, struct nvc_apply_target target, bool recorded,
               struct nvc_report *report)
{
    struct cdi_journal journal;

    if (!cdi_journal_open(target.rootfs, &journal) || (recorded && journal.fd < 0))
        return false;
    target.journal = journal.fd;
    target.fsuid = geteuid();
    target.fsgid = getegid();
    int result = nvc_apply(program, size, &target, report);
    cdi_journal_close(&journal, result == 0 && report->undo_failures == 0);
    return result == 0 && report->error == 0;
}

static bool plan(const struct cdi_call *call, const struct cdi_container *container,
                 struct cdi_program *program)
{
    struct nvc_steps *steps = nvc_steps_new(container->rootfs, container->sliced);
    size_t size;

    for (size_t i = 0; steps && i < call->count; i++)
        if (strcmp(call->steps[i].name, "slice-memory") != 0 &&
            nvc_steps_add(steps, call->steps[i].name, call->steps[i].options, call->steps[i].count) < 0)
            return false;
    if (!steps || nvc_steps_finish(steps) < 0)
        return false;
    const uint8_t *records = nvc_steps_records(steps, &size);
    return cdi_program(records, size, program);
}

/* All of it; false where it is Python's. Memory is freed by the end of the process, or by execve(2). */
static bool run(const struct cdi_call *call, const char *state, size_t size)
{
    struct cdi_container container = {.rootfs = -1};
    struct nvc_report report = {.error = 0};
    struct cdi_program program = {.code.size = 0};

    if (!cdi_state(state, size, &container) || !cdi_bundle(&container))
        return false;
    if (call->limits && (container.sliced || container.asks || !cdi_noted(CDI_NOTE_WHOLE)))
        return false;
    if (!cdi_enter(&container) || cdi_interrupted(container.rootfs) || !plan(call, &container, &program))
        return false;
    struct nvc_apply_target target = {
        .mount_namespace = -1, .rootfs = container.rootfs, .timeout_ms = APPLY_MS};
    if (program.code.size) {
        cdi_begin();
        if (!cdi_apply((uint8_t *)program.code.bytes, program.code.size, target, false, &report))
            return false;
    }
    const char *end = program.warnings.bytes + program.warnings.size;
    for (const char *at = program.warnings.bytes; !call->quiet && at < end; at += strlen(at) + 1)
        cdi_warn("nvc-cdi-hook", at);
    if (!call->quiet)
        cdi_warn_lines("nvc-cdi-hook", report.warnings);
    return true;
}

void cdi_hand_back(const char *name, const struct buffer *state)
{
    if (!state->size)
        return;
    int fd = memfd_create("state", MFD_CLOEXEC);
    if (fd < 0 || !write_all(fd, state->bytes, state->size) || lseek(fd, 0, SEEK_SET) < 0 || dup2(fd, 0) < 0)
        refuse(name, "standard input", "cannot be handed on");
}

void cdi_run(const char *name, int argc, char **argv, void (*settle)(const char *name))
{
    struct cdi_call call;
    struct buffer state = {.bytes = NULL};

    if (!cdi_words(argc - 1, argv + 1, &call))
        return;
    settle(name);
    cdi_set_deadline(CDI_DEADLINE_S);
    if (buffer_read(&state, 0, STATE_MAX) && run(&call, state.bytes, state.size))
        _exit(0);
    cdi_set_deadline(0);
    cdi_hand_back(name, &state);
}
