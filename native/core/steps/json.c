/* A parser of JSON without a table of its own: one pass, bounded depth, bounded number of values. */
#include "_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 20 /* characters */

struct parser {
    const char *text;
    size_t size, at;
    struct json *json;
    size_t room;
    int error;
};

static bool value(struct parser *p, unsigned depth);

static int peek(const struct parser *p)
{
    return p->at < p->size ? (unsigned char)p->text[p->at] : -1;
}

static int blanks(struct parser *p)
{
    while (p->at < p->size && memchr(" \t\r\n", p->text[p->at], 4) != NULL)
        p->at++;
    return peek(p);
}

/* Adds a token that begins here. */
static struct json_token *token(struct parser *p, char kind)
{
    struct json *json = p->json;

    if (json->count == p->room) {
        size_t room = p->room ? 2 * p->room : 256;
        struct json_token *larger =
            json->count < JSON_TOKENS ? realloc(json->tokens, room * sizeof(*larger)) : NULL;
        if (larger == NULL) {
            p->error = json->count < JSON_TOKENS ? -ENOMEM : -EBADMSG;
            return NULL;
        }
        json->tokens = larger;
        p->room = room;
    }
    json->tokens[json->count] = (struct json_token){.kind = kind, .start = (uint32_t)p->at};
    return &json->tokens[json->count++];
}

/* The bytes of one character of UTF-8 at `at`, 0 where it is none. */
static size_t character(const unsigned char *at, size_t left)
{
    size_t length = at[0] < 0x80   ? 1
                    : at[0] < 0xc2 ? 0
                    : at[0] < 0xe0 ? 2
                    : at[0] < 0xf0 ? 3
                    : at[0] < 0xf5 ? 4
                                   : 0;

    if (length > left)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    /* Too long, half of a pair, beyond the last one. */
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
        (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return length;
}

static bool escape(struct parser *p)
{
    int kind = peek(p);

    p->at++;
    if (kind != 'u')
        return kind > 0 && strchr("\"\\/bfnrt", kind) != NULL;
    for (int i = 0; i < 4; i++, p->at++)
        if (peek(p) < 0 || strchr("0123456789abcdefABCDEF", peek(p)) == NULL || peek(p) == 0)
            return false;
    return true;
}

static bool string(struct parser *p)
{
    if (peek(p) != '"')
        return false;
    p->at++;
    struct json_token *found = token(p, '"');
    if (found == NULL)
        return false;
    while (peek(p) >= 0x20 && peek(p) != '"') {
        if (peek(p) == '\\') {
            p->at++;
            if (!escape(p))
                return false;
            continue;
        }
        size_t length = character((const unsigned char *)p->text + p->at, p->size - p->at);
        if (length == 0)
            return false;
        p->at += length;
    }
    found->end = (uint32_t)p->at;
    found->next = (uint32_t)p->json->count;
    return peek(p) == '"' && p->at++;
}

static bool digits(struct parser *p)
{
    size_t start = p->at;

    while (peek(p) >= '0' && peek(p) <= '9')
        p->at++;
    return p->at > start;
}

static bool number(struct parser *p)
{
    size_t start = p->at;
    struct json_token *found = token(p, '0');

    if (found == NULL)
        return false;
    p->at += peek(p) == '-';
    bool zero = peek(p) == '0';
    size_t first = p->at;
    if (!digits(p) || (zero && p->at - first > 1))
        return false;
    if (peek(p) == '.') {
        p->at++;
        if (!digits(p))
            return false;
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        p->at++;
        p->at += peek(p) == '-' || peek(p) == '+';
        if (!digits(p))
            return false;
    }
    found->end = (uint32_t)p->at;
    found->next = (uint32_t)p->json->count;
    return p->at - start <= NUMBER_MAX;
}

static bool word(struct parser *p, const char *text)
{
    size_t length = strlen(text);
    struct json_token *found = token(p, text[0]);

    if (found == NULL || p->size - p->at < length || memcmp(p->text + p->at, text, length) != 0)
        return false;
    p->at += length;
    found->end = (uint32_t)p->at;
    found->next = (uint32_t)p->json->count;
    return true;
}

/* An array, or an object: keys stand before their values. */
static bool several(struct parser *p, unsigned depth, char open, char close)
{
    size_t index = p->json->count;

    if (depth == JSON_DEPTH || token(p, open) == NULL)
        return false;
    p->at++;
    for (int next = blanks(p); next != close;) {
        if (open == '{' && (!string(p) || blanks(p) != ':' || !++p->at))
            return false;
        if (!value(p, depth + 1))
            return false;
        next = blanks(p);
        if (next == ',') {
            p->at++;
            next = blanks(p);
            if (next == close)
                return false;
        } else if (next != close) {
            return false;
        }
    }
    p->at++;
    p->json->tokens[index].end = (uint32_t)p->at;
    p->json->tokens[index].next = (uint32_t)p->json->count;
    return true;
}

static bool value(struct parser *p, unsigned depth)
{
    switch (blanks(p)) {
    case '{':
        return several(p, depth, '{', '}');
    case '[':
        return several(p, depth, '[', ']');
    case '"':
        return string(p);
    case 't':
        return word(p, "true");
    case 'f':
        return word(p, "false");
    case 'n':
        return word(p, "null");
    default:
        return number(p);
    }
}

int json_parse(const char *text, size_t size, struct json *json)
{
    struct parser p = {.text = text, .size = size, .json = json, .error = -EBADMSG};

    *json = (struct json){.text = text};
    if (size < UINT32_MAX && value(&p, 0) && blanks(&p) < 0)
        return 0;
    json_free(json);
    return p.error;
}

void json_free(struct json *json)
{
    free(json->tokens);
    json->tokens = NULL;
    json->count = 0;
}

static bool has_escape(const struct json *json, uint32_t at)
{
    const struct json_token *token = &json->tokens[at];

    return memchr(json->text + token->start, '\\', token->end - token->start) != NULL;
}

bool json_is(const struct json *json, uint32_t at, const char *text)
{
    return json->tokens[at].end - json->tokens[at].start == strlen(text) && json_begins(json, at, text);
}

bool json_begins(const struct json *json, uint32_t at, const char *text)
{
    const struct json_token *token = &json->tokens[at];
    size_t length = strlen(text);

    return token->kind == '"' && token->end - token->start >= length &&
           memcmp(json->text + token->start, text, length) == 0;
}

uint32_t json_get(const struct json *json, uint32_t at, const char *key, bool *odd)
{
    uint32_t found = 0, next;

    if (json->tokens[at].kind != '{')
        return 0;
    for (uint32_t i = at + 1; i < json->tokens[at].next; i = next) {
        next = json->tokens[i + 1].next;
        if (has_escape(json, i))
            *odd = true;
        if (json_is(json, i, key))
            found = i + 1;
    }
    return found;
}

bool json_text(const struct json *json, uint32_t at, char *out, size_t room)
{
    const struct json_token *token = &json->tokens[at];
    size_t length = token->end - token->start;

    if (token->kind != '"' || length >= room)
        return false;
    for (size_t i = 0; i < length; i++) {
        char c = json->text[token->start + i];
        if (c < ' ' || c > '~' || c == '\\')
            return false;
        out[i] = c;
    }
    out[length] = '\0';
    return true;
}
