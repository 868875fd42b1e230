/* A start that is done again: the record for its words, the looks, the sources, the device rules, the applier. */
#include "replay.h"
#include "apply.h"
#include "cdi/cdi.h"
#include "start/launcher.h"
#include "steps.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEGINNING "nvc-replay 2 " NVC_VERSION " "
#define RECORD_MAX (1u << 20)
#define SOURCES_MAX 4096
#define WAITS 3 /* of a time-out, see nvc/frontends/configure.py */
#define BIT(capability) (1ULL << (capability))
/* What Python gives up only where no modules are to be loaded. */
#define MODULES (BIT(CAP_CHOWN) | BIT(CAP_MKNOD) | BIT(CAP_SYS_MODULE))

/* What decides about an image; see nvc/apply/again.py. */
static const char *const TRAITS[] = {
#if defined(__aarch64__)
    "lib/ld-linux-aarch64.so.1", "lib/ld-musl-aarch64.so.1",
#else
    "lib64/ld-linux-x86-64.so.2", "lib/ld-musl-x86_64.so.1",
#endif
    "etc/debian_version", "usr/local/cuda/compat"};

/* The next field, NULL behind the last one. */
static const char *next_field(struct replay_record *record)
{
    const char *field = record->at;
    const char *end = field ? memchr(field, '\0', (size_t)(record->end - field)) : NULL;

    record->at = end ? end + 1 : NULL;
    return end ? field : NULL;
}

static bool next_number(struct replay_record *record, int base, uint64_t most, uint64_t *number)
{
    const char *field = next_field(record);
    char *end;

    if (!field || !*field || strlen(field) != strspn(field, "0123456789abcdef"))
        return false;
    errno = 0;
    *number = strtoull(field, &end, base);
    return !errno && !*end && *number <= most;
}

/* Whether the image has what Python has looked for; false where it is not told. */
static bool add_traits(int rootfs, char *words)
{
    size_t length = strlen(words);

    for (size_t i = 0; i < sizeof(TRAITS) / sizeof(TRAITS[0]); i++) {
        int fd = nvc_open_below(rootfs, TRAITS[i], O_PATH, 0);
        shut(fd);
        if (fd < 0 && fd != -ENOENT && fd != -ENOTDIR)
            return false;
        words[length++] = fd >= 0 ? '1' : '0';
    }
    words[length] = '\0';
    return true;
}

/* FNV-1a. */
static uint64_t hash_of(const char *text)
{
    uint64_t found = 0xcbf29ce484222325;

    for (; *text; text++)
        found = (found ^ (unsigned char)*text) * 0x100000001b3;
    return found;
}

/* The file's bytes where it is a private one of ours; the descriptor of its directory in `base`. */
static bool read_record(const char *name, int *base, struct buffer *record)
{
    struct stat st;

    *base = open("/run/nvc", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*base < 0)
        return false;
    bool ours = !fstat(*base, &st) && st.st_uid == 0 && !(st.st_mode & 022);
    int fd = ours ? openat(*base, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    bool read = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == 0 && !(st.st_mode & 077) &&
                buffer_read(record, fd, RECORD_MAX);
    shut(fd);
    return read;
}

/* Whether the record is whole and for these words: its beginning, then a sum, then as many words of 8 bytes. */
static bool is_whole(const char *bytes, size_t size, const char *words, struct replay_record *record)
{
    uint64_t given, sum = 0, word;

    *record = (struct replay_record){.at = bytes, .end = bytes + size};
    const char *head = next_field(record);
    if (!head || strncmp(head, BEGINNING, strlen(BEGINNING)) != 0)
        return false;
    char *end;
    given = strtoull(head + strlen(BEGINNING), &end, 16);
    if (*end || (record->end - record->at) % 8)
        return false;
    for (const char *at = record->at; at < record->end; at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        sum += word;
    }
    const char *key = next_field(record);
    return sum == given && key && strcmp(key, words) == 0;
}

static bool open_roots(struct replay_record *record)
{
    for (int i = 0; i < REPLAY_ROOTS; i++) {
        const char *path = i == REPLAY_HOST ? "/" : next_field(record);
        record->roots[i] = path ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
        if (record->roots[i] < 0)
            return false;
    }
    return true;
}

/* A number of looks; with `kept`, of sources, whose descriptors go there. */
static enum replay_look all_looks(struct replay_record *record, int *kept)
{
    uint64_t count;

    if (!next_number(record, 10, SOURCES_MAX, &count))
        return REPLAY_OTHER;
    for (uint64_t i = 0; i < count; i++) {
        const char *place = next_field(record), *answer = next_field(record);
        if (!place || !answer || !place[0])
            return REPLAY_OTHER;
        enum replay_look look = replay_look(record, place, answer, kept ? kept + i : NULL);
        if (look != REPLAY_SAME)
            return look;
    }
    if (kept)
        kept[count] = -1;
    return REPLAY_SAME;
}

/* Puts descriptors in the place of sources' numbers; false for a program that is none. */
static bool set_sources(uint8_t *program, size_t size, const int *sources)
{
    struct nvc_op_header head;
    int count = 0;

    while (sources[count] >= 0)
        count++;
    for (size_t at = 0; at < size;) {
        if (size - at < sizeof(head))
            return false;
        memcpy(&head, program + at, sizeof(head));
        if (head.kind == NVC_OP_BIND) {
            if (head.fd < 0 || head.fd >= count)
                return false;
            head.fd = sources[head.fd];
            memcpy(program + at, &head, sizeof(head));
        }
        uint64_t step = sizeof(head) + (uint64_t)head.target_length + head.first_length + 2;
        if (size - at < step)
            return false;
        at += step;
    }
    return true;
}

/* The rest of the record, behind the looks: what is to be done. */
static enum replay_look do_again(struct replay_record *record, const struct replay_container *container,
                                 struct replay_change *change, int timeout_ms, struct nvc_report *report)
{
    static int sources[SOURCES_MAX + 1];
    uint64_t size;

    enum replay_look look = all_looks(record, sources);
    if (look != REPLAY_SAME)
        return look;
    if (!next_number(record, 10, RECORD_MAX, &size) || !record->at ||
        size > (uint64_t)(record->end - record->at))
        return REPLAY_OTHER;
    uint8_t *program = malloc(size + 1);
    if (!program)
        return REPLAY_UNKNOWN;
    memcpy(program, record->at, size);
    if (!set_sources(program, size, sources))
        return REPLAY_OTHER;
    struct nvc_apply_target target = {.mount_namespace = container->mount_namespace,
                                      .rootfs = container->rootfs,
                                      .timeout_ms = timeout_ms};
    cdi_begin();
    if (!replay_allow(change))
        return REPLAY_UNKNOWN;
    if (cdi_apply(program, size, target, true, report))
        return REPLAY_SAME;
    replay_disallow(change);
    return REPLAY_UNKNOWN;
}

/* Whether the image has no libraries that are to be taken before the driver's. `driver` is its version, "" where nobody
 * asks. */
static bool has_no_compat(int rootfs, const char *driver)
{
    const struct nvc_steps_option version = {"host-driver-version", driver};
    size_t size = 1;

    if (!*driver)
        return true;
    struct nvc_steps *steps = nvc_steps_new(rootfs, 0);
    if (!steps || nvc_steps_add(steps, "enable-cuda-compat", &version, 1) < 0 || nvc_steps_finish(steps) < 0)
        return false;
    nvc_steps_records(steps, &size);
    return size == 0;
}

/* A record that does not hold any more is removed: Python writes another one. */
static enum replay_look follow(struct replay_record *record, const struct replay_container *container,
                               struct replay_change *change, struct nvc_report *report)
{
    uint64_t kept, timeout_ms;

    if (!next_number(record, 16, ~0ULL, &kept) || !next_number(record, 10, 3600000, &timeout_ms) || !kept)
        return REPLAY_OTHER;
    const char *driver = next_field(record), *block = next_field(record);
    if (!driver || !block)
        return REPLAY_OTHER;
    if (!cdi_drop(kept) || !replay_load(block, change))
        return REPLAY_UNKNOWN;
    cdi_set_deadline((long)(WAITS * timeout_ms / 1000) + 1);
    if (!has_no_compat(container->rootfs, driver))
        return REPLAY_UNKNOWN;
    if (!open_roots(record))
        return REPLAY_OTHER;
    enum replay_look look = all_looks(record, NULL);
    return look == REPLAY_SAME ? do_again(record, container, change, (int)timeout_ms, report) : look;
}

/* By the record for `words`, if there is one. */
static enum replay_look run(const char *words, const struct replay_container *container,
                            struct replay_change *change, struct nvc_report *report)
{
    struct replay_record record;
    char file[64];
    struct buffer bytes = {.bytes = NULL};
    int base;

    snprintf(file, sizeof(file), "replay-%016llx", (unsigned long long)hash_of(words));
    if (!read_record(file, &base, &bytes))
        return REPLAY_UNKNOWN;
    enum replay_look end = !is_whole(bytes.bytes, bytes.size, words, &record)
                               ? REPLAY_OTHER
                               : follow(&record, container, change, report);
    if (end == REPLAY_OTHER)
        unlinkat(base, file, 0);
    return end;
}

void replay_run(const char *name, char *words, size_t room, int pid, bool runs, const char *rootfs,
                long timeout)
{
    struct replay_container container = {-1, -1, -1, -1};
    struct replay_change change = {name, -1, -1, -1}, none = change;
    struct nvc_report report = {.error = 0};

    if (strlen(words) + sizeof(TRAITS) / sizeof(TRAITS[0]) + REPLAY_TAG >= room || geteuid() != 0 ||
        !cdi_is_host_root() || !cdi_drop(CDI_KEPT | MODULES))
        return;
    cdi_set_deadline(WAITS * timeout);
    if (replay_open(pid, runs, rootfs, &container) && add_traits(container.rootfs, words) &&
        !cdi_interrupted(container.rootfs)) {
        char *tag = words + strlen(words);
        enum replay_look end = REPLAY_UNKNOWN;
        if (replay_rules(container.proc, tag, &change))
            end = run(words, &container, &change, &report);
        *tag = '\0'; /* a call that leaves device rules alone */
        if (end == REPLAY_UNKNOWN)
            end = run(words, &container, &none, &report);
        if (end == REPLAY_SAME) {
            cdi_warn_lines(name, report.warnings);
            _exit(0);
        }
    }
    cdi_set_deadline(0);
}
