/* Whether a container can be told to ask for no GPU without an interpreter. Where nvc is an engine's default runtime,
 * most containers do, and Python would take as long to see it as the low-level runtime takes to create one.
 *
 * Nothing is parsed here. nvc/request/environment.py and nvc/frontends/runtime/choice.py decide what a container asks for; a
 * configuration without any of the words that they look for asks for nothing, whatever its structure. In doubt, the
 * answer is no. A configuration that is malformed, too, is then left to the low-level runtime, which says so. */
#include "cdi/variables.h"
#include "runtime.h"

#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_BYTES (1 << 20)

/* In destinations of mounts. Others are names of variables. */
#define MOUNTS "nvidia-container-devices"
/* Escapes that Go and Python write, none of which stands for a character of those words. */
static const char *const ESCAPES[] = {"003c", "003e", "0026", "2028", "2029"};
/* Keys that make other words ask, or want it written down that nothing is asked for. */
static const char *const KEYS[] = {"swarm-resource", "mode", "debug", "log"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool harmless_escapes(const char *text, size_t size)
{
    const char *end = text + size;

    while ((text = memmem(text, (size_t)(end - text), "\\u", 2))) {
        bool known = false;
        text += 2;
        for (size_t i = 0; i < COUNT(ESCAPES) && end - text >= 4; i++)
            known = known || !strncasecmp(text, ESCAPES[i], 4);
        if (!known)
            return false;
    }
    return true;
}

bool asks_for_nothing(const char *config)
{
    struct stat st;
    bool nothing = false;
    int fd = open(config, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

    if (fd < 0)
        return false;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= CONFIG_BYTES) {
        static char text[CONFIG_BYTES];
        size_t size = (size_t)st.st_size;
        nothing = read(fd, text, size) == st.st_size && harmless_escapes(text, size);
        nothing = nothing && !memmem(text, size, MOUNTS, strlen(MOUNTS));
        for (size_t i = 0; i < VARIABLE_COUNT && nothing; i++)
            nothing = !(VARIABLES[i].asks & FOR_GPUS) ||
                      !memmem(text, size, VARIABLES[i].name, strcspn(VARIABLES[i].name, "="));
    }
    close(fd);
    return nothing;
}

/* Whether a line of TOML sets none of the keys: an empty one, a comment, a table's name, or a plain key with its value. */
static bool usual_line(const char *line, size_t length)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz-", automatic[] = "= \"auto\"";
    size_t at = strspn(line, " \t\r");

    if (at >= length || line[at] == '#')
        return true;
    if (line[at] == '[')
        return !memchr(line, '"', length) && !memchr(line, '\'', length);
    const char *key = line + at;
    size_t of_key = strspn(key, letters), to_value = of_key + strspn(key + of_key, " \t");
    if (of_key == 0 || key[to_value] != '=' || memchr(key, '{', length - at))
        return false; /* quoted, dotted, in an inline table, or of a value that began above */
    for (size_t i = 0; i < COUNT(KEYS); i++)
        if (strlen(KEYS[i]) == of_key && !memcmp(KEYS[i], key, of_key))
            return !strcmp(KEYS[i], "mode") && !strncmp(key + to_value, automatic, sizeof(automatic) - 1);
    return true;
}

bool settings_are_usual(const char *text)
{
    for (;;) {
        size_t length = strcspn(text, "\n");
        if (!usual_line(text, length))
            return false;
        if (!text[length])
            return true;
        text += length + 1;
    }
}
