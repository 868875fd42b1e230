/* nvc-cdi-hook without an interpreter: the steps that every container with GPUs has. */
#pragma once
#include "_files.h"
#include "apply.h"
#include "files.h"
#include "steps.h"

#include <limits.h>
#include <linux/capability.h>
#include <time.h>

#define CDI_BIT(capability) (1ULL << (capability))
/* As nvc/kernel/privileges.py has them for `configure`. */
#define CDI_KEPT                                                                                            \
    (CDI_BIT(CAP_DAC_OVERRIDE) | CDI_BIT(CAP_DAC_READ_SEARCH) | CDI_BIT(CAP_FOWNER) | CDI_BIT(CAP_KILL) |   \
     CDI_BIT(CAP_SETGID) | CDI_BIT(CAP_SETUID) | CDI_BIT(CAP_SETPCAP) | CDI_BIT(CAP_NET_ADMIN) |            \
     CDI_BIT(CAP_SYS_CHROOT) | CDI_BIT(CAP_SYS_PTRACE) | CDI_BIT(CAP_SYS_ADMIN) | CDI_BIT(CAP_SYSLOG) |     \
     CDI_BIT(CAP_PERFMON) | CDI_BIT(CAP_BPF))
#define CDI_VARIABLES_MAX 32768
#define CDI_DEADLINE_S                                                                                      \
    30 /* to look into a container whose file system may not answer; see nvc/base/deadline.py */

/* One step of a call; the strings are the caller's words, or constants. */
struct cdi_step {
    const char *name;
    struct nvc_steps_option *options;
    size_t count;
};

struct cdi_call {
    struct cdi_step *steps;
    size_t count;
    bool quiet;
    bool limits; /* slice-memory is among the steps */
};

#define CDI_ID_MAX 1024

/* What was read of the container. */
struct cdi_container {
    char bundle[PATH_MAX];
    char rootfs_path[2 * PATH_MAX];
    char id[CDI_ID_MAX + 1];
    int pid;
    bool named;      /* `id` is what the runtime says */
    bool sliced;     /* hooks of the bundle make slices */
    bool asks;       /* its variables may ask for one */
    bool privileged; /* CAP_SYS_ADMIN is in the bounding set */
    bool plain;      /* its mounts do not ask for anything */
    char *
        variables; /* NULL, or room for CDI_VARIABLES_MAX bytes: those by which it asks, each followed by byte 1 */
    int rootfs;
};

/* The lock of the container, and the record of what is done to it; see nvc/apply/journal.py. */
struct cdi_journal {
    int fd; /* -1: nowhere to keep one */
    char path[PATH_MAX];
};

/* A program for nvc_apply, and what it refers to. */
struct cdi_program {
    struct buffer code;
    struct buffer warnings; /* each ends with a NUL */
};

/* Every function says whether that worked; where it did not, the call is Python's. */

/* The words behind the program's name; nothing but the steps above in what they take. */
bool cdi_words(int count, char **words, struct cdi_call *call);

/* The state document, and the bundle that it names. */
bool cdi_state(const char *text, size_t size, struct cdi_container *container);
bool cdi_bundle(struct cdi_container *container);
/* The bundle's configuration, once it is read. */
bool cdi_config(const char *text, size_t size, struct cdi_container *container);
#define STATE_MAX (1u << 20)
/* Gives standard input back what was read of it. */
void cdi_hand_back(const char *name, const struct buffer *state);

/* Gives up every capability but these, for good. */
bool cdi_drop(uint64_t kept);
/* Whether this is root of the host. */
bool cdi_is_host_root(void);
/* A process's number where /proc counts from, which need not be where this process does; 0: not shown there. */
int cdi_number_in_proc(int pidfd);
/* Whether a namespace, "mnt" or "user", of the process of a pidfd with this number is this process's: 1 or 0; -1 where
 * it is not told, -2 where our own is not. And a descriptor of it, -1 where there is none. */
int cdi_shares(int pidfd, int number, const char *kind);
int cdi_namespace(int pidfd, int number, const char *kind);
/* From now on this process has so many seconds; 0: for ever. */
void cdi_set_deadline(long seconds);
/* A warning on standard error, one line: it may quote a hostile name. And one for each line of a text. */
void cdi_warn(const char *name, const char *warning);
void cdi_warn_lines(const char *name, char *lines);

/* From now on an exit code other than 0 says that the container is as it was: nothing interrupts. */
void cdi_begin(void);
/* Executes a program. On a failure all is undone; if not even that went well, the journal tells Python. Where there is
 * none, which is a failure if it is to be `recorded`, Python finds done what was done, and does the rest. */
bool cdi_apply(const uint8_t *program, size_t size, struct nvc_apply_target target, bool recorded,
               struct nvc_report *report);
/* Whether two descriptors are of the same file. */
bool cdi_same(int one, int other);
long long cdi_nanoseconds(const struct timespec *time);

/* Capabilities go, and the container's root is opened. */
bool cdi_enter(struct cdi_container *container);
/* Whether Python has found and noted this of the configuration as it is now, or there is none. */
#define CDI_NOTE_WHOLE "config-whole" /* nothing in it limits containers that do not ask for it */
bool cdi_noted(const char *note);
/* False too where an earlier run has left something to undo, or another one is at work. */
bool cdi_journal_open(int rootfs, struct cdi_journal *journal);
bool cdi_interrupted(int rootfs);
/* `done`: there is nothing to undo. */
void cdi_journal_close(struct cdi_journal *journal, bool done);

/* Adds to a program what records of steps say; sources are opened. */
bool cdi_program(const uint8_t *records, size_t size, struct cdi_program *program);

/* Does what a call asks for and exits. Returns where Python has to do it: standard input is as it was then, and so is
 * the container. `settled`: prepares the process, see start/launcher.h. */
void cdi_run(const char *name, int argc, char **argv, void (*settle)(const char *name));
