#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define RUNTIMES_MAX 16
#define RUNTIMES_BYTES 65536

/* One call of an OCI runtime, as far as it matters here. NULL: not given. */
struct call {
    bool creates; /* `create` or `run`, and not only to ask for its help */
    bool version; /* only to print its version */
    const char *bundle;
    const char *config; /* crun's --config: another name for config.json */
    const char *log;
    bool json;
};

/* The low-level runtimes to choose from; the strings point into `text`. */
struct runtimes {
    const char *names[RUNTIMES_MAX];
    size_t count;
    bool usual; /* nothing else in the file concerns containers that ask for nothing in the usual ways */
    char text[RUNTIMES_BYTES + 1];
};

/* What `argv` asks of a runtime: runc's and crun's spellings of options are both understood. */
struct call call_read(int argc, char **argv);

/* Reads `runtimes` of the table [nvidia-container-runtime] from the configuration file; names is empty where it does not
 * say. Returns NULL, or what is wrong with the file whose name is in `canonical` then. */
const char *runtimes_load(struct runtimes *runtimes, char canonical[PATH_MAX]);

/* Whether a container can only ask in the usual ways, by what the configuration file `text` says; in doubt not. */
bool settings_are_usual(const char *text);

/* Whether the bundle's configuration file `config` asks for nothing in the usual ways; in doubt not. */
bool asks_for_nothing(const char *config);

/* Appends one entry to the runtime's log, where engines read the cause of a failure. */
void log_entry(const struct call *call, const char *level, const char *message);

/* Edits the bundle where a container is created, then becomes the low-level runtime. `mode` replaces the configuration's
 * unless it is NULL. */
_Noreturn void runtime_run(const char *name, const char *mode, int argc, char **argv, char **envp,
                           void (*edit)(char **arguments, char **envp));
