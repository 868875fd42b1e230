/* The environment is built anew from an allow-list. Removing what is known to be bad would not do: the dynamic
 * loader, libc and the interpreter each obey variables (LD_*, GCONV_PATH, PYTHON*, ...), and learn new ones. */
#include "_files.h"
#include "launcher.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define FIXED_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

enum kind { WORD, DIRECTORY, TEXT };

struct rule {
    const char *name;
    enum kind kind;
    size_t limit; /* bytes of the value */
};

static const struct rule RULES[] = {
    {"PATH", TEXT, 4096},
    {"TERM", WORD, 64},
    {"COLUMNS", WORD, 16},
    {"LINES", WORD, 16},
    {"NO_COLOR", WORD, 16},
    {"CLICOLOR_FORCE", WORD, 16},
    {"LANG", WORD, 64},
    {"LC_ALL", WORD, 64},
    {"LC_CTYPE", WORD, 64},
    {"HOME", DIRECTORY, 4096},
    {"XDG_RUNTIME_DIR", DIRECTORY, 4096},
    {"CUDA_MPS_PIPE_DIRECTORY", DIRECTORY, 4096},
    /* What systemd tells a service (sd_listen_fds(3), sd_notify(3)). */
    {"LISTEN_PID", WORD, 16},
    {"LISTEN_FDS", WORD, 16},
    {"LISTEN_FDNAMES", TEXT, 256},
    {"NOTIFY_SOCKET", TEXT, 256},
    {"WATCHDOG_USEC", WORD, 32},
    /* Where a pod finds the API server. */
    {"KUBERNETES_SERVICE_HOST", TEXT, 256},
    {"KUBERNETES_SERVICE_PORT", WORD, 16},
    /* Of nvidia-ctk. */
    {"ROOT", DIRECTORY, 4096},
    {"DRIVER_ROOT", DIRECTORY, 4096},
    {"DEV_ROOT", DIRECTORY, 4096},
    {"DEV_CHAR_PATH", DIRECTORY, 4096},
    {"DRY_RUN", WORD, 16},
    {"CREATE_ALL", WORD, 16},
    {"CREATE_DEVICE_NODES", WORD, 16},
    {"LOAD_KERNEL_MODULES", WORD, 16},
    {"NVIDIA_DRIVER_ROOT", DIRECTORY, 4096},
    {"NVIDIA_DEV_ROOT", DIRECTORY, 4096},
    {"_NVC_CLI_COMPLETE", WORD, 32},
    {"COMP_WORDS", TEXT, 16384},
    {"COMP_CWORD", TEXT, 4096}, /* a number, but in fish the word that was begun */
};
static const struct rule FAMILIES[] = {{"NVC_", TEXT, 4096}, {"NVIDIA_CTK_", TEXT, 4096}};

static bool word(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
              strchr("_.@+-", c)))
            return false;
    }
    return true;
}

static const struct rule *rule_for(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof(RULES) / sizeof(RULES[0]); i++)
        if (strlen(RULES[i].name) == length && !memcmp(RULES[i].name, name, length))
            return &RULES[i];
    for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(FAMILIES[0]); i++) {
        size_t prefix = strlen(FAMILIES[i].name);
        if (length > prefix && length <= 64 && !memcmp(name, FAMILIES[i].name, prefix) && word(name, length))
            return &FAMILIES[i];
    }
    return NULL;
}

static bool allowed(const char *entry, size_t length)
{
    const struct rule *rule = rule_for(entry, length);
    const char *value = entry + length + 1;

    if (!rule || strlen(value) > rule->limit)
        return false;
    return rule->kind == TEXT || (rule->kind == DIRECTORY ? value[0] == '/' : word(value, strlen(value)));
}

static bool present(const char *const *kept, size_t count, const char *entry, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (!strncmp(kept[i], entry, length + 1)) /* with its `=` */
            return true;
    return false;
}

void environment_filter(char *const *given, bool hook, const char *kept[ENVIRONMENT_MAX])
{
    size_t count = 0;

    for (; !hook && *given && count < ENVIRONMENT_MAX - 4; given++) {
        const char *equals = strchr(*given, '=');
        if (!equals)
            continue;
        size_t length = (size_t)(equals - *given);
        if (allowed(*given, length) && !present(kept, count, *given, length))
            kept[count++] = *given;
    }
    if (!present(kept, count, "PATH=", 4))
        kept[count++] = "PATH=" FIXED_PATH;
    /* Without any locale the interpreter would coerce one, and start its decoding twice. */
    if (!present(kept, count, "LC_ALL=", 6) && !present(kept, count, "LC_CTYPE=", 8) &&
        !present(kept, count, "LANG=", 4))
        kept[count++] = "LC_ALL=C.UTF-8";
    kept[count] = NULL;
}

/* `nvc-cli vgpu run` starts a program of the caller's, and `vgpu check` tries what one would load. That program gets the
 * environment which the caller gave, not the filtered one; the interpreter, which must not obey it, receives it as a file. */
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
