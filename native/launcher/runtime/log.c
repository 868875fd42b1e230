/* The log file of `--log`, in the two formats of runc. */
#include "runtime.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* `text` as the inside of a quoted string: nothing that would need an escape but quote and backslash. */
static void quote(char *out, size_t room, const char *text)
{
    size_t used = 0;

    for (; *text && used + 3 < room; text++) {
        if (*text == '"' || *text == '\\')
            out[used++] = '\\';
        out[used++] = (unsigned char)*text < ' ' || *text == 127 ? '?' : *text;
    }
    out[used] = '\0';
}

void log_entry(const struct call *call, const char *level, const char *message)
{
    char quoted[4096], entry[4608], when[32];
    time_t now = time(NULL);
    struct tm utc;

    if (!call->log)
        return;
    int fd = open(call->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644);
    if (fd < 0)
        return; /* stderr has it too */
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    quote(quoted, sizeof(quoted), message);
    int length =
        call->json
            ? snprintf(entry, sizeof(entry), "{\"level\":\"%s\",\"msg\":\"%s\",\"time\":\"%s\"}\n", level,
                       quoted, when)
            : snprintf(entry, sizeof(entry), "time=\"%s\" level=%s msg=\"%s\"\n", when, level, quoted);
    (void)!write(fd, entry, (size_t)length);
    close(fd);
}
