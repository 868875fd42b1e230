/* Faults that a test switches on, by lines that it writes to the file `faults`:
 *   fail COMMAND STATUS   calls with this command of RM_CONTROL or class of RM_ALLOC (0: all) answer this; hexadecimal
 *   delay MILLISECONDS    each call takes so much longer, in real time, or until this is changed
 *   late MILLISECONDS     records of the switch log come so much later, whatever is flushed
 *   drop RECORDS          so many records of the switch log are lost
 *   none                  all are off */
#include "server.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { STEP_MS = 5 };

static bool set(struct server *server, const char *line)
{
    unsigned int command, status, number;
    if (sscanf(line, "fail %x %x", &command, &status) == 2 && server->rule_count < RM_RULES) {
        server->rules[server->rule_count++] = (struct rule){command, status};
    } else if (sscanf(line, "delay %u", &number) == 1) {
        atomic_store(&server->delay_ms, number);
    } else if (sscanf(line, "late %u", &number) == 1) {
        server->late_ms = number;
    } else if (sscanf(line, "drop %u", &number) == 1) {
        server->drop = number;
    } else if (strcmp(line, "none") == 0) {
        atomic_store(&server->delay_ms, 0);
        server->rule_count = server->late_ms = server->drop = 0;
    } else {
        return false;
    }
    return true;
}

bool faults_set(struct server *server, const char *text, size_t size)
{
    char copy[1024], *rest = copy;
    if (size >= sizeof(copy))
        return false;
    memcpy(copy, text, size);
    copy[size] = '\0';
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n"))
        if (*line && !set(server, line))
            return false;
    return true;
}

void faults_delay(struct server *server)
{
    const struct timespec step = {.tv_nsec = STEP_MS * 1000000};
    for (uint32_t waited = 0; waited < atomic_load(&server->delay_ms) && !atomic_load(&server->ends);
         waited += STEP_MS)
        nanosleep(&step, NULL);
}

uint32_t faults_status(const struct server *server, uint32_t command)
{
    for (uint32_t i = 0; i < server->rule_count; i++)
        if (!server->rules[i].command || server->rules[i].command == command)
            return server->rules[i].status;
    return RM_OK;
}
