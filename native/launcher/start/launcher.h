#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define CONF_MAX_BYTES 4096
#define CONF_MAX_PATHS 8
#define ENVIRONMENT_MAX 96

/* What launch.conf says; the strings point into `text`. */
struct conf {
    const char *interpreter;
    const char *paths[CONF_MAX_PATHS];
    size_t count;
    char text[CONF_MAX_BYTES + 1];
};

struct program {
    const char *called; /* the file name it is started under */
    const char *name;
    const char *package;
    const char *module; /* of the package, has `main` */
    bool hook;
    bool daemon; /* may be handed sockets by systemd */
};

/* Prepares the process to work without an interpreter. As in Python, a failed write is an error and not the end: not of a hook whose warnings nobody
 * reads, nor of an applier that has something to undo. `start` makes them standard again. */
void settle_hook(const char *name);

/* Becomes the interpreter that runs `program` with the words after argv[0]. */
_Noreturn void start(const struct program *program, char **argv, char **envp);

/* One line on stderr, `NAME: initialization error: PATH: CAUSE`, and exit 1. */
_Noreturn void refuse(const char *name, const char *path, const char *cause);

/* Whether `text` is absolute and, since paths become string literals of a line of Python, printable ASCII without
 * quotes and backslashes. */
bool plain_path(const char *text);

/* Reads a text of less than `room` bytes; returns NULL, or what is wrong with it. */
const char *text_read(int fd, char *text, size_t room);

/* Reads and checks launch.conf through `fd`; returns NULL, or what is wrong with it. */
const char *conf_read(int fd, struct conf *conf);

/* The canonical name of `path` in `canonical`. With `trusted`, the file and every directory above it must
 * belong to root and be closed to other writers. Returns NULL, or the cause with the culprit in `canonical`. */
const char *resolve(const char *path, bool trusted, char canonical[PATH_MAX]);

/* Fills `kept` with the variables of `given` that the program may see; all others are left behind. A hook's
 * program sees a fixed PATH and locale only. NULL-terminated; the strings are those of `given`, or constants. */
void environment_filter(char *const *given, bool hook, const char *kept[ENVIRONMENT_MAX]);

#define CARRY_MAX 64

/* For a call that starts a program of the caller's: puts all of `given` into a file whose descriptor is inherited, and
 * adds `variable`, which names it, to `kept`. */
void environment_carry(char *const *argv, char *const *given, const char *kept[ENVIRONMENT_MAX],
                       char variable[CARRY_MAX]);
