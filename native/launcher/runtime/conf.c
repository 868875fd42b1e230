/* Reads the names of low-level runtimes from the configuration file, and whether other settings let containers ask for
 * GPUs in unusual ways. nvc-runtime is called for each verb of each container, so no interpreter is started for this. Python
 * reads the rest of the file where it is needed. */
#include "start/launcher.h"
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* The first file that exists; nvc/request/config has the same two. */
static const char *const CONFIGURATIONS[] = {"/etc/nvc/config.toml",
                                             "/etc/nvidia-container-runtime/config.toml"};

static char *blanks(char *at)
{
    return at + strspn(at, " \t\r");
}

/* Passes over blanks, line ends and comments: what may stand between the items of a list. */
static char *between(char *at)
{
    for (;;) {
        at += strspn(at, " \t\r\n");
        if (*at != '#')
            return at;
        at += strcspn(at, "\n");
    }
}

/* The list that begins at `at`. */
static const char *read_list(char *at, struct runtimes *runtimes)
{
    static const char wrong[] = "`runtimes` is not a list of plain strings";

    if (*at++ != '[')
        return wrong;
    for (at = between(at); *at != ']'; at = between(at)) {
        char quote = *at;
        if (quote != '"' && quote != '\'')
            return wrong;
        size_t length = strcspn(++at, "\"'\\\n");
        if (at[length] != quote || length == 0)
            return wrong;
        if (runtimes->count == RUNTIMES_MAX)
            return "`runtimes` names too many";
        runtimes->names[runtimes->count++] = at;
        at[length] = '\0';
        at = between(at + length + 1);
        if (*at == ',')
            at++;
        else if (*at != ']')
            return wrong;
    }
    return NULL;
}

static const char *runtimes_read(int fd, struct runtimes *runtimes)
{
    static const char table[] = "[nvidia-container-runtime]", key[] = "runtimes";
    bool inside = false;
    const char *unread = text_read(fd, runtimes->text, RUNTIMES_BYTES);

    if (unread)
        return unread;
    runtimes->usual = settings_are_usual(runtimes->text);

    for (char *line = runtimes->text; line; line = strchr(line, '\n')) {
        line = blanks(line + (*line == '\n'));
        if (*line == '[')
            inside = !strncmp(line, table, sizeof(table) - 1);
        else if (inside && !strncmp(line, key, sizeof(key) - 1)) {
            line = blanks(line + sizeof(key) - 1);
            if (*line == '=')
                return read_list(blanks(line + 1), runtimes);
        }
    }
    return NULL;
}

const char *runtimes_load(struct runtimes *runtimes, char canonical[PATH_MAX])
{
    runtimes->count = 0;
    runtimes->usual = true;
    for (size_t i = 0; i < sizeof(CONFIGURATIONS) / sizeof(CONFIGURATIONS[0]); i++) {
        if (access(CONFIGURATIONS[i], F_OK) && errno == ENOENT)
            continue;
        const char *cause = resolve(CONFIGURATIONS[i], geteuid() == 0, canonical);
        if (cause)
            return cause;
        int fd = open(canonical, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        cause = fd < 0 ? strerror(errno) : runtimes_read(fd, runtimes);
        close(fd);
        return cause;
    }
    return NULL;
}
