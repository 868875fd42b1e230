/* Starts that Python has done before, done again without it: nvc/apply/again.py says which, nvc/apply/replay.py writes
 * the records. Where anything is not as it was then, the call is Python's. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A container that is being created, held by descriptors. */
struct replay_container {
    int pidfd, proc, mount_namespace, rootfs;
};

enum { REPLAY_DRIVER, REPLAY_SYSTEM, REPLAY_NODES, REPLAY_HOST, REPLAY_ROOTS };

/* A record, read from its beginning to its end. */
struct replay_record {
    const char *at, *end;
    int roots[REPLAY_ROOTS];
};

/* What came in the place of a device program. */
struct replay_change {
    const char *name;     /* of the program, for messages */
    int cgroup, old, new; /* descriptors; new is -1 where nothing need be changed */
};

/* How a look ended. */
enum replay_look { REPLAY_SAME, REPLAY_OTHER, REPLAY_UNKNOWN };

#define REPLAY_KEY_MAX 65536

/* The container of process `pid` whose root file system is `rootfs`, as nvc/apply/target.py opens it. The process may
 * be a tenant's that `runs`, unlike that of a runtime which calls a hook. */
bool replay_open(int pid, bool runs, const char *rootfs, struct replay_container *container);

/* Compares what is at a place (root, kind, path) with an answer of nvc/discovery/key.py or nvc/apply/replay.py. With
 * `kept`, the place is a source and its descriptor is for the caller. */
enum replay_look replay_look(const struct replay_record *record, const char *place, const char *answer,
                             int *kept);

/* The kernel's tag of the device program of the cgroup of the process whose /proc directory is open as `proc`, "none"
 * where it has none. False where its rules are Python's. */
#define REPLAY_TAG 17
bool replay_rules(int proc, char tag[REPLAY_TAG], struct replay_change *change);
/* Loads the same program behind the instructions of `block`, hexadecimal digits. "": the program allows all of it. */
bool replay_load(const char *block, struct replay_change *change);
/* Puts it in the place of the old program. Nothing was changed where it returns false. */
bool replay_allow(struct replay_change *change);
/* Puts the old program back; a failure is told. */
void replay_disallow(struct replay_change *change);

#define REPLAY_TIMEOUT_S 10 /* where a call names none, as in nvc/request/config */
/* Does for the container what the record for `words` says, and exits; `words` are the fields of nvc.apply.again.Call,
 * each followed by byte 1, `room` being more than their size. Returns where it is Python's; the container is as it was.
 * Looks into a container whose file system does not answer end the process after three times `timeout` seconds. */
void replay_run(const char *name, char *words, size_t room, int pid, bool runs, const char *rootfs,
                long timeout);

/* nvc-cli configure. */
void replay_configure(const char *name, int argc, char **argv, char **envp,
                      void (*settle)(const char *name));

/* Appends a word of printable ASCII and byte 1 to what has `length` bytes and room for REPLAY_KEY_MAX. */
bool replay_append(char *words, size_t *length, const char *word);
