/* JSON of foreign origin. The text is checked as a whole, and nothing of it is copied.
 *
 * Stricter than JSON where this makes it simpler: what is refused here can still be judged by whoever asks. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH 64
#define JSON_TOKENS 1048576

/* One value. `kind`: { [ " 0 (a number) t f n. Of a string `start` and `end` are inside the quotes. */
struct json_token {
    uint32_t start, end;
    uint32_t next; /* index of the token behind this one and all in it */
    char kind;
};

struct json {
    const char *text;
    struct json_token
        *tokens; /* from malloc; the first is the whole. An object's are its keys and values in turn */
    size_t count;
};

/* 0; -EBADMSG; -ENOMEM. */
int json_parse(const char *text, size_t size, struct json *json);
void json_free(struct json *json);

/* Below, tokens are indices; 0, the whole document, stands for "not there". */

/* The last value of `key` in the object `at`, 0 where it has none or `at` is none. `*odd` is set where a key could be
 * another spelling of it. */
uint32_t json_get(const struct json *json, uint32_t at, const char *key, bool *odd);
/* Whether it is a string without escapes, which begins with `text` or is `text`. */
bool json_begins(const struct json *json, uint32_t at, const char *text);
bool json_is(const struct json *json, uint32_t at, const char *text);
/* Copies a string of printable ASCII without escapes; false for any other value, and for one without room. */
bool json_text(const struct json *json, uint32_t at, char *out, size_t room);
