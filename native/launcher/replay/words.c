/* nvc-cli configure, as nvidia-container-cli is called: which words name the container, and which say what it gets. The
 * words of a call that Python has seen mean the same again: cli/configure.py, _again. */
#include "cdi/cdi.h"
#include "start/launcher.h"
#include "replay.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#define PID "--pid="
#define DIGITS_MAX 10
#define TIMEOUT "--timeout="
#define TIMEOUT_MAX 3600
#define SLICE "--vgpu-" /* what these options ask for is Python's */

/* Variables that make a call another one. */
static const char *const MEANT[] = {"NVC_", "_NVC_", "CUDA_MPS_PIPE_DIRECTORY="};

static bool means_the_same(char *const *envp)
{
    for (; *envp; envp++)
        for (size_t i = 0; i < sizeof(MEANT) / sizeof(MEANT[0]); i++)
            if (!strncmp(*envp, MEANT[i], strlen(MEANT[i])))
                return false;
    return true;
}

bool replay_append(char *words, size_t *length, const char *word)
{
    size_t size = strlen(word);

    if (size + 2 > REPLAY_KEY_MAX - *length || !is_plain(word))
        return false;
    memcpy(words + *length, word, size);
    words[*length + size] = '\1';
    *length += size + 1;
    words[*length] = '\0';
    return true;
}

/* A number as it is written without more ado. */
static int number_of(const char *digits)
{
    size_t length = strlen(digits);

    if (!length || length > DIGITS_MAX || length != strspn(digits, "0123456789") || digits[0] == '0')
        return 0;
    long number = strtol(digits, NULL, 10);
    return number <= INT_MAX ? (int)number : 0;
}

/* The seconds in a word such as --timeout=3; as before for another word, or if Python has to say what it means. */
static long timeout_of(const char *word, long before)
{
    const char *digits = word + sizeof(TIMEOUT) - 1;

    if (strncmp(word, TIMEOUT, sizeof(TIMEOUT) - 1) != 0)
        return before;
    int seconds = number_of(digits);
    return seconds && seconds <= TIMEOUT_MAX ? seconds : REPLAY_TIMEOUT_S;
}

/* Whether a word before the command is an option that does not take the next word. */
static bool is_global(const char *word)
{
    return !strncmp(word, "--", 2) && (strchr(word, '=') || !strcmp(word, "--load-kmods"));
}

void replay_configure(const char *name, int argc, char **argv, char **envp, void (*settle)(const char *name))
{
    static char words[REPLAY_KEY_MAX];
    size_t length = 0;
    int pid = 0;
    long timeout = REPLAY_TIMEOUT_S;
    bool configures = false;

    if (argc < 4 || getauxval(AT_SECURE) || !means_the_same(envp) ||
        !replay_append(words, &length, "configure"))
        return;
    for (int i = 1; i < argc - 1; i++) {
        bool named = !strncmp(argv[i], PID, strlen(PID));
        if (!strncmp(argv[i], SLICE, strlen(SLICE)))
            return;
        if (!configures && strcmp(argv[i], "configure") != 0 && !is_global(argv[i]))
            return;
        configures = configures || !strcmp(argv[i], "configure");
        timeout = timeout_of(argv[i], timeout);
        if (named && pid)
            return;
        if (named && !(pid = number_of(argv[i] + strlen(PID))))
            return;
        if (!replay_append(words, &length, named ? "--pid" : argv[i]))
            return;
    }
    if (!configures || !pid || argv[argc - 1][0] != '/')
        return;
    settle(name);
    replay_run(name, words, sizeof(words), pid, true, argv[argc - 1], timeout);
}
