/* A bundle's configuration while it is read: values are indices of tokens, 0 is none. */
#ifndef NVC_CDI_READING_H
#define NVC_CDI_READING_H
#include "_json.h"
#include "cdi.h"

struct reading {
    struct json json;
    bool odd; /* something is not what it should be */
};

/* The value of a key, 0 where it is absent or null; odd where it is of another kind. */
uint32_t typed(struct reading *in, uint32_t at, const char *key, char kind);
/* Goes through a list: the first item, then the next; 0 behind the last. */
uint32_t first(const struct reading *in, uint32_t list);
uint32_t after(const struct reading *in, uint32_t list, uint32_t item);

/* What decides of a slice; see struct cdi_given. `hooks` is the list of createContainer hooks, `environment` that of
 * variables. */
void read_given(struct reading *in, uint32_t hooks, uint32_t environment, struct cdi_given *given);
void free_given(struct cdi_given *given);

#endif
