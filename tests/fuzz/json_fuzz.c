/* Fuzzes the parser of JSON: each token lies in the text and in the one around it, and what is found is in it. */
#include "_json.h"

#include <stdlib.h>
#include <string.h>

static void check(const struct json *json, size_t size)
{
    for (uint32_t i = 0; i < json->count; i++) {
        const struct json_token *token = &json->tokens[i];
        if (token->start > token->end || token->end > size || token->next <= i || token->next > json->count)
            abort();
        for (uint32_t inner = i + 1; inner < token->next; inner++)
            if (json->tokens[inner].start < token->start || json->tokens[inner].end > token->end ||
                json->tokens[inner].next > token->next)
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json json;
    char text[16];
    bool odd = false;
    /* A copy of its own, so that the sanitizer sees a read behind the end. */
    char *copy = malloc(size ? size : 1);

    if (copy == NULL)
        return 0;
    memcpy(copy, data, size);
    if (size <= 4096 && json_parse(copy, size, &json) == 0) {
        check(&json, size);
        for (uint32_t i = 0; i < json.count; i++) {
            uint32_t found = json_get(&json, i, "a", &odd);
            if (found && (found <= i || found >= json.tokens[i].next))
                abort();
            json_is(&json, i, "a");
            if (json_text(&json, i, text, sizeof(text)) && strlen(text) >= sizeof(text))
                abort();
        }
        json_free(&json);
    }
    free(copy);
    return 0;
}
