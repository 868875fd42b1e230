/* Drives nvc_ldcache_merge for the tests.
 *
 *   ldcache_tool merge OLD OUT [add SONAME PATH FLAGS]...   OLD `-`: none
 *   ldcache_tool time OLD ROUNDS [add ...]...                 prints the fastest round in us of processor time
 *   ldcache_tool mutate ROUNDS SEED OLD...                              merges ROUNDS damaged copies, checks each
 *
 * Exit status 0, 1 for wrong usage, or 2 with the name of the error on stdout.
 */
#include "ldcache_checked.h"

#include <time.h>

#define ITEMS_MAX 4096

struct request {
    struct nvc_ldcache_entry add[ITEMS_MAX];
    size_t count;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = strcmp(path, "-") == 0 ? NULL : fopen(path, "rb");
    uint8_t *bytes;

    *size = 0;
    if (file == NULL && strcmp(path, "-") == 0)
        return NULL;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        die(path);
    *size = (size_t)ftell(file);
    rewind(file);
    /* Exactly as large as the file, so that the sanitizer sees a read behind the end. */
    bytes = malloc(*size);
    if (bytes == NULL || fread(bytes, 1, *size, file) != *size)
        die(path);
    fclose(file);
    return bytes;
}

static const struct request *parse(int argc, char **argv, struct request *request)
{
    for (int i = 0; i < argc;) {
        if (strcmp(argv[i], "add") == 0 && i + 3 < argc && request->count < ITEMS_MAX) {
            uint32_t flags = (uint32_t)strtoul(argv[i + 3], NULL, 0);
            request->add[request->count++] = (struct nvc_ldcache_entry){argv[i + 1], argv[i + 2], flags};
            i += 4;
        } else {
            fprintf(stderr, "ldcache_tool: wrong argument: %s\n", argv[i]);
            exit(1);
        }
    }
    return request;
}

static int merge(const char *old_path, const char *out_path, const struct request *request)
{
    size_t size, merged_size;
    uint8_t *merged, *old = read_file(old_path, &size);
    int result = checked_merge(old, size, request->add, request->count, &merged, &merged_size);

    if (result != 0) {
        puts(strerrorname_np(-result));
        free(old);
        return 2;
    }
    FILE *out = fopen(out_path, "wb");
    if (out == NULL || fwrite(merged, 1, merged_size, out) != merged_size || fclose(out) != 0)
        die(out_path);
    free(merged);
    free(old);
    return 0;
}

static int measure(const char *old_path, int rounds, const struct request *request)
{
    size_t size, merged_size;
    uint8_t *merged, *old = read_file(old_path, &size);
    double best = 1e9;
    int result = 0;

    while (rounds-- > 0) {
        struct timespec start, end;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
        result = nvc_ldcache_merge(old, size, request->add, request->count, &merged, &merged_size);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
        free(merged);
        double spent =
            (double)(end.tv_sec - start.tv_sec) * 1e6 + (double)(end.tv_nsec - start.tv_nsec) / 1e3;
        best = spent < best ? spent : best;
    }
    free(old);
    printf("%s %.0f\n", result ? strerrorname_np(-result) : "0", best);
    return 0;
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Damages `bytes` at a few places: mostly the fields of headers and entries, which are offsets and counts. */
static size_t damage(uint8_t *bytes, size_t size, uint64_t *state)
{
    const uint32_t lies[] = {0, 1, UINT32_MAX, INT32_MAX, (uint32_t)size, (uint32_t)size - 1, 1u << 31, 48};
    uint64_t places = 1 + next(state) % 6;

    while (places-- > 0 && size > 4) {
        uint64_t kind = next(state) % 8, near = next(state) % 2 ? size : size < 256 ? size : 256;
        uint64_t at = next(state) % (near - 3);
        uint32_t value = lies[next(state) % (sizeof(lies) / sizeof(lies[0]))];
        if (kind == 0)
            size = at + 1;
        else if (kind == 1)
            bytes[at] ^= (uint8_t)(1 << next(state) % 8);
        else if (kind == 2)
            memmove(bytes + at, bytes + at / 2, next(state) % (size - at));
        else if (kind == 3)
            value = (uint32_t)(next(state) % (size + 16));
        if (kind >= 3)
            memcpy(bytes + at / 4 * 4, &value, 4);
    }
    return size;
}

static int mutate(uint64_t rounds, uint64_t state, char **paths, size_t count)
{
    static const struct nvc_ldcache_entry add[] = {
        {"libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", 0x0303},
        {"libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1", 0x0003},
        {"libc.so.6", "/opt/driver/libc.so.6", 0x0303},
        {"libnvctest.so.1", "/opt/driver/libnvctest.so.1", 0x0303},
    };
    uint64_t refused = 0;

    for (uint64_t round = 0; round < rounds; round++) {
        size_t size, left, merged_size;
        uint8_t *merged, *whole = read_file(paths[round % count], &size), *old;
        left = damage(whole, size, &state);
        old = malloc(left); /* no larger than what is left, for the sanitizer's sake */
        if (old == NULL)
            die("malloc");
        memcpy(old, whole, left);
        if (checked_merge(old, left, add, 4, &merged, &merged_size) == 0)
            free(merged);
        else
            refused++;
        free(old);
        free(whole);
    }
    printf("%llu %llu\n", (unsigned long long)(rounds - refused), (unsigned long long)refused);
    return 0;
}

int main(int argc, char **argv)
{
    struct request request = {.count = 0};

    if (argc >= 4 && strcmp(argv[1], "merge") == 0)
        return merge(argv[2], argv[3], parse(argc - 4, argv + 4, &request));
    if (argc >= 4 && strcmp(argv[1], "time") == 0)
        return measure(argv[2], atoi(argv[3]), parse(argc - 4, argv + 4, &request));
    if (argc >= 5 && strcmp(argv[1], "mutate") == 0)
        return mutate(strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0), argv + 4, (size_t)argc - 4);
    fputs("usage: ldcache_tool merge|time|mutate ...\n", stderr);
    return 1;
}
