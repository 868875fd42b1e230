/* Faults that a test switches on, by lines that it writes to the file `faults`:
 *   fail COMMAND STATUS   calls with this command of RM_CONTROL or class of RM_ALLOC (0: all) answer this; hexadecimal
 *   drop RECORDS          so many records of the switch log are lost
 *   none                  all are off */
#include "server.h"

#include <stdio.h>
#include <string.h>

static bool set(struct server *server, const char *line)
{
    unsigned int command, status, number;
    if (sscanf(line, "fail %x %x", &command, &status) == 2 && server->rule_count < RM_RULES) {
        server->rules[server->rule_count++] = (struct rule){command, status};
    } else if (sscanf(line, "drop %u", &number) == 1) {
        server->drop = number;
    } else if (strcmp(line, "none") == 0) {
        server->rule_count = server->drop = 0;
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

uint32_t faults_status(const struct server *server, uint32_t command)
{
    for (uint32_t i = 0; i < server->rule_count; i++)
        if (!server->rules[i].command || server->rules[i].command == command)
            return server->rules[i].status;
    return RM_OK;
}
