/* Which low-level runtimes there are to choose from. Every verb of every container passes here, so the one key is
 * read without an interpreter; what else the file says is for others, who read all of it. */
#include "runtime.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

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

const char *runtimes_read(int fd, struct runtimes *runtimes)
{
    static const char table[] = "[nvidia-container-runtime]", key[] = "runtimes";
    bool inside = false;
    size_t size = 0;
    ssize_t got;

    runtimes->count = 0;
    while ((got = read(fd, runtimes->text + size, RUNTIMES_BYTES - size)) > 0)
        size += (size_t)got;
    if (got < 0)
        return strerror(errno);
    if (size == RUNTIMES_BYTES)
        return "the file is too large";
    if (memchr(runtimes->text, '\0', size))
        return "the file holds a NUL byte";
    runtimes->text[size] = '\0';

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
