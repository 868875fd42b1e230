/* launch.conf: what to run and where its code is. Written by the installation, read strictly all the same:
 *
 *     interpreter /usr/bin/python3.11
 *     path /usr/lib/nvc/site
 *
 * A relative path begins at the directory of launch.conf: pip's packages are made before it is known where they will
 * be installed.
 */
#include "_files.h"
#include "launcher.h"

#include <string.h>

static bool plain(const char *text)
{
    return strlen(text) < PATH_MAX && is_plain(text) && !strpbrk(text, "'\"\\");
}

bool plain_path(const char *text)
{
    return text[0] == '/' && plain(text);
}

static const char *parse_line(char *line, struct conf *conf)
{
    char *value = strchr(line, ' ');

    if (line[0] == '\0' || line[0] == '#')
        return NULL;
    if (!value)
        return "a line is neither `interpreter PATH` nor `path DIR`";
    *value++ = '\0';
    bool path = !strcmp(line, "path") && value[0];
    if (!(path ? plain(value) : plain_path(value)))
        return "a path is not absolute or has characters other than plain ASCII";
    if (!strcmp(line, "interpreter") && !conf->interpreter) {
        conf->interpreter = value;
        return NULL;
    }
    if (!path)
        return "an unknown or repeated key";
    if (conf->count == CONF_MAX_PATHS)
        return "too many `path` lines";
    conf->paths[conf->count++] = value;
    return NULL;
}

const char *text_read(int fd, char *text, size_t room)
{
    size_t size = 0;
    ssize_t got;

    while ((got = read(fd, text + size, room - size)) > 0)
        size += (size_t)got;
    if (got < 0)
        return strerror(errno);
    if (size == room)
        return "the file is too large";
    if (memchr(text, '\0', size))
        return "the file holds a NUL byte";
    text[size] = '\0';
    return NULL;
}

const char *conf_read(int fd, struct conf *conf)
{
    const char *unread = text_read(fd, conf->text, sizeof(conf->text));

    conf->interpreter = NULL;
    conf->count = 0;
    if (unread)
        return unread;
    for (char *line = conf->text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        const char *wrong = parse_line(line, conf);
        if (wrong)
            return wrong;
    }
    return conf->interpreter ? NULL : "no `interpreter` line";
}
