/* The command line of nvc-cdi-hook, as far as it names steps that are done here. What it means, and what is wrong with
 * others, Python knows: nvc/frontends/cdi/hooks/arguments.py. */
#include "cdi.h"

#include <stdlib.h>
#include <string.h>

#define LIMITS "slice-memory"
#define OPTIONS_MAX 4
#define WORDS_MAX 65536 /* that Python takes */

struct known {
    const char *name;
    const char *options[OPTIONS_MAX];
    const char *required;
};

static const struct known KNOWN[] = {
    {"create-symlinks", {"link"}, "link"},
    {"create-device-links", {"link"}, "link"},
    {"update-application-profile", {NULL}, NULL},
    {"update-ldcache", {"folder", "ldconfig-path"}, NULL},
    {"create-soname-symlinks", {"folder", "ldconfig-path"}, NULL},
    {"enable-cuda-compat",
     {"host-driver-version", "host-cuda-version", "cuda-compat-container-root"},
     "host-driver-version"},
    {"disable-device-node-modification", {NULL}, NULL},
    {LIMITS, {"driver-root", "ldcache", "library-directory"}, "driver-root"},
};

static const struct known *known_as(const char *word)
{
    for (size_t i = 0; i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++)
        if (!strcmp(KNOWN[i].name, word))
            return &KNOWN[i];
    return NULL;
}

static const char *option_of(const struct known *step, const char *name, size_t length)
{
    for (int i = 0; step && i < OPTIONS_MAX && step->options[i]; i++)
        if (strlen(step->options[i]) == length && !strncmp(step->options[i], name, length))
            return step->options[i];
    return NULL;
}

static bool complete(const struct cdi_step *step, const struct known *known)
{
    for (size_t i = 0; known->required && i < step->count; i++)
        if (!strcmp(step->options[i].name, known->required))
            return true;
    return !known->required;
}

bool cdi_words(int count, char **words, struct cdi_call *call)
{
    const struct known *known = NULL;
    struct cdi_step *step = NULL;

    *call = (struct cdi_call){.steps = calloc((size_t)count + 1, sizeof(*call->steps))};
    struct nvc_steps_option *options = calloc((size_t)count + 1, sizeof(*options));
    if (!call->steps || !options || count > WORDS_MAX)
        return false;
    for (int i = 0; i < count; i++) {
        char *word = words[i];
        if (!is_plain(word))
            return false;
        if (known_as(word)) {
            if (step && !complete(step, known))
                return false;
            known = known_as(word);
            step = &call->steps[call->count++];
            *step = (struct cdi_step){.name = known->name, .options = options};
            call->limits = call->limits || !strcmp(known->name, LIMITS);
            continue;
        }
        const char *name = word + strspn(word, "-");
        if (name == word)
            return false;
        const char *equals = strchr(name, '=');
        size_t length = equals ? (size_t)(equals - name) : strlen(name);
        if (!equals && (!strcmp(name, "quiet") || !strcmp(name, "q"))) {
            call->quiet = true;
            continue;
        }
        const char *option = option_of(known, name, length);
        if (!option || (!equals && ++i == count) || !is_plain(words[i]))
            return false;
        *options++ = (struct nvc_steps_option){option, equals ? equals + 1 : words[i]};
        step->count++;
    }
    return step && complete(step, known);
}
