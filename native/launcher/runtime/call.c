/* Which verb, which bundle, which log: the words of a call as runc (Go: one or two dashes, `=` or a space) and
 * crun (also `-bDIR`) read them. A verb is never guessed from a value: options that take one are known. */
#include "runtime.h"

#include <string.h>

static const char *const GLOBAL_VALUES[] = {"log",  "log-format", "log-level",      "root",       "r",
                                            "criu", "rootless",   "cgroup-manager", "kata-config"};
static const char *const CREATE_VALUES[] = {"bundle",        "b", "config", "f", "pid-file", "preserve-fds",
                                            "console-socket"};
static const char *const VERBS[] = {
    "checkpoint", "create", "delete",  "events", "exec", "features", "help",  "kill",  "list",  "mounts",
    "pause",      "ps",     "restore", "resume", "run",  "spec",     "start", "state", "update"};

static bool one_of(const char *word, size_t length, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(words[i]) == length && !memcmp(words[i], word, length))
            return true;
    return false;
}

/* Reads the option at argv[*at]; the value, if `values` says that it takes one, may be the next word, which is
 * then passed over. Returns the value or NULL. */
static const char *option(int argc, char **argv, int *at, const char *const *values, size_t count,
                          const char **name, size_t *length)
{
    const char *word = argv[*at] + (argv[*at][1] == '-' ? 2 : 1);
    const char *equals = strchr(word, '=');

    *name = word;
    *length = equals ? (size_t)(equals - word) : strlen(word);
    if (equals)
        return equals + 1;
    if (one_of(word, *length, values, count))
        return *at + 1 < argc ? argv[++*at] : NULL;
    if (argv[*at][1] != '-' && *length > 1 && (word[0] == 'b' || word[0] == 'f')) {
        *length = 1;
        return word + 1;
    }
    return NULL;
}

static bool named(const char *name, size_t length, const char *one, const char *other)
{
    const char *const both[] = {one, other};
    return one_of(name, length, both, 2);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct call call_read(int argc, char **argv)
{
    struct call call = {0};
    const char *name, *value;
    bool verb = false;
    size_t length;

    for (int i = 1; i < argc; i++) {
        if (verb && !strcmp(argv[i], "--"))
            break;
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            if (verb || !one_of(argv[i], strlen(argv[i]), VERBS, COUNT(VERBS)))
                continue; /* the container's id, or the value of an option that nobody here knows */
            verb = true;
            call.creates = !strcmp(argv[i], "create") || !strcmp(argv[i], "run");
            if (!call.creates)
                break;
            continue;
        }
        value = verb ? option(argc, argv, &i, CREATE_VALUES, COUNT(CREATE_VALUES), &name, &length)
                     : option(argc, argv, &i, GLOBAL_VALUES, COUNT(GLOBAL_VALUES), &name, &length);
        if (named(name, length, "help", "h"))
            call.creates = false, verb = true;
        else if (!verb && (named(name, length, "version", "v") || named(name, length, "V", "V")))
            call.version = true;
        else if (verb && named(name, length, "bundle", "b"))
            call.bundle = value;
        else if (verb && named(name, length, "config", "f"))
            call.config = value;
        else if (!verb && named(name, length, "log", "log"))
            call.log = value;
        else if (!verb && named(name, length, "log-format", "log-format"))
            call.json = value && !strcmp(value, "json");
    }
    call.creates = call.creates && !call.version;
    return call;
}
