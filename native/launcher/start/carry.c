/* `nvc-cli vgpu run` starts a program of the caller's, and `vgpu check` tries what one would load. That program gets the environment which the caller gave, not
 * the filtered one; the interpreter, which must not obey it, receives it as a file. */
#include "_files.h"
#include "launcher.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static bool starts_a_program(char *const *argv)
{
    for (; argv[0] && argv[1] && strcmp(argv[0], "--"); argv++)
        if (!strcmp(argv[0], "vgpu") && (!strcmp(argv[1], "run") || !strcmp(argv[1], "check")))
            return true;
    return false;
}

void environment_carry(char *const *argv, char *const *given, const char *kept[ENVIRONMENT_MAX],
                       char variable[CARRY_MAX])
{
    size_t count = 0;

    if (!starts_a_program(argv))
        return;
    int fd = memfd_create("environment", 0); /* inherited by the interpreter, which closes it */
    if (fd < 0)
        return;
    for (; *given; given++)
        if (!write_all(fd, *given, strlen(*given) + 1))
            break;
    while (kept[count])
        count++;
    snprintf(variable, CARRY_MAX, "NVC_CALLERS_ENVIRONMENT=%d", fd);
    for (size_t i = 0; i < count; i++) /* the caller does not set it for us */
        if (!strncmp(kept[i], variable, strlen("NVC_CALLERS_ENVIRONMENT=")))
            kept[i] = kept[--count];
    kept[count++] = variable;
    kept[count] = NULL;
}
