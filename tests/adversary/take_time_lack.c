/* Ways of take_time that take from the shim what it needs, each in a process that may die of it. */
#include "take_time.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static void in_child(void (*run)(void))
{
    if (new_child() == 0) {
        begin();
        run();
        _exit(0);
    }
    child_ended();
}

static void lack_descriptors(void)
{
    for (int fd = 3; fd < 4096; fd++)
        close(fd);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3});
    honest();
}

/* Nothing of the shim's is left open when the first kernel is launched, and nothing can be opened. */
static void without_descriptors(void)
{
    in_child(lack_descriptors);
}

static void close_while_busy(void)
{
    Handle stream = new_stream();
    for (int i = 0; more(); i++) {
        launch(stream, 1000);
        if (i == 20)
            for (int fd = 3; fd < 4096; fd++)
                close(fd);
        wait_for(stream);
    }
}

/* The same when kernels run already. */
static void closing(void)
{
    in_child(close_while_busy);
}

static void lack_memory(void)
{
    Handle stream = new_stream();
    setrlimit(RLIMIT_AS, &(struct rlimit){1 << 20, 1 << 20});
    for (; more(); wait_for(stream))
        launch(stream, 1000);
}

static void without_memory(void)
{
    in_child(lack_memory);
}

static void lack_all(void)
{
    static const int limits[] = {RLIMIT_NPROC, RLIMIT_STACK, RLIMIT_MEMLOCK,
                                 RLIMIT_DATA,  RLIMIT_LOCKS, RLIMIT_SIGPENDING};
    Handle stream = new_stream();
    for (size_t i = 0; more(); i++) {
        struct rlimit before;
        bool left = i < sizeof(limits) / sizeof(limits[0]);
        if (left && getrlimit((unsigned)limits[i], &before) == 0)
            setrlimit((unsigned)limits[i], &(struct rlimit){0, before.rlim_max});
        if (!may_launch(stream, 1000) && left)
            setrlimit((unsigned)limits[i], &before); /* the driver itself cannot go on without */
        wait_for(stream);
    }
}

/* Every other limit of the system is the least there is, but for those that the driver cannot do without. */
static void without_anything(void)
{
    in_child(lack_all);
}

/* What of the shim's files is mapped: its path, and the bytes. */
static bool find_mapping(const char *end, char *path, void **at, size_t *size)
{
    char line[PATH_MAX + 128];
    FILE *maps = fopen("/proc/self/maps", "r");
    bool found = false;
    while (maps && !found && fgets(line, sizeof(line), maps)) {
        unsigned long from, to;
        line[strcspn(line, "\n")] = '\0';
        size_t length = strlen(line), wanted = strlen(end);
        if (length < wanted || strcmp(line + length - wanted, end) != 0 ||
            sscanf(line, "%lx-%lx", &from, &to) != 2)
            continue;
        *at = (void *)from;
        *size = to - from;
        strcpy(path, strchr(line, '/'));
        found = true;
    }
    if (maps)
        fclose(maps);
    return found;
}

static void unmap_ledger(void)
{
    char path[PATH_MAX];
    void *at;
    size_t size;
    Handle stream = new_stream();
    for (int i = 0; more(); i++) {
        launch(stream, 1000);
        while (i == 20 && find_mapping("/ledger", path, &at, &size))
            munmap(at, size);
        wait_for(stream);
    }
}

/* The shim's own map of the slice's ledger is gone, of which the process dies; then of the next one. */
static void unmapped(void)
{
    do
        in_child(unmap_ledger);
    while (more());
}

static void cut_ledger(void)
{
    char path[PATH_MAX];
    void *at;
    size_t size;
    Handle stream = new_stream();
    for (int i = 0; more(); i++) {
        launch(stream, 1000);
        if (i == 20 && find_mapping("/ledger", path, &at, &size) && truncate(path, 0) != 0)
            perror(path);
        wait_for(stream);
    }
}

/* The file of the ledger is cut short, of which the process dies. None of the slice gets a context then, this one neither: so
 * the program ends, and on a GPU a test starts it over in a new slice. */
static void cut_short(void)
{
    enum { TRIES = 2 };
    while (more() && early_ends() < TRIES) {
        in_child(cut_ledger);
        pause_for(20000);
    }
    report();
}

static void copy_file(const char *from, const char *to)
{
    static char bytes[1 << 16];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_EXCL, 0700);
    for (ssize_t got; (got = read(in, bytes, sizeof(bytes))) > 0;)
        if (write(out, bytes, (size_t)got) != got)
            _exit(6);
    close(in);
    close(out);
}

/* The files of a second shim, with or without the directory of the slice. */
struct copies {
    char directory[32], library[64], link[64];
};

static void *load_copy(struct copies *copies)
{
    Dl_info info;
    char target[PATH_MAX];
    strcpy(copies->directory, "/tmp/take_time-XXXXXX");
    if (!dladdr(entry("cuLaunchKernel"), &info) || !mkdtemp(copies->directory))
        _exit(6);
    snprintf(copies->library, sizeof(copies->library), "%s/libcuda.so.1", copies->directory);
    snprintf(copies->link, sizeof(copies->link), "%s/nvc", copies->directory);
    snprintf(target, sizeof(target), "%s", info.dli_fname);
    copy_file(target, copies->library);
    strcpy(strrchr(target, '/'), "/nvc");
    return symlink(target, copies->link) ? NULL : dlopen(copies->library, RTLD_NOW);
}

static void remove_copies(const struct copies *copies)
{
    unlink(copies->link);
    unlink(copies->library);
    rmdir(copies->directory);
}

static void use_copies(bool lone)
{
    struct copies copies;
    CUresult(*second) LAUNCH;
    Handle stream = new_stream(), loaded = load_copy(&copies);
    if (lone || !loaded)
        remove_copies(&copies);
    if (!loaded)
        _exit(6);
    *(void **)&second = dlsym(loaded, "cuLaunchKernel");
    bool refused = false;
    for (int i = 0; more(); i++) {
        launcher = i % 2 && !refused ? second : NULL;
        refused |= !may_launch(stream, 3000);
        if (i == 1 && !lone)
            remove_copies(&copies);
        if (i % 4 == 3)
            wait_for(stream);
    }
}

static void use_second(void)
{
    use_copies(false);
}

/* Two copies of the shim in one process, each of which knows half of the launches. */
static void copied(void)
{
    in_child(use_second);
}

static void use_lone(void)
{
    use_copies(true);
}

/* The second finds no quota, and refuses; the first goes on. */
static void lone(void)
{
    in_child(use_lone);
}

const struct way lack_ways[] = {{"no-descriptors", without_descriptors, true},
                                {"closed-descriptors", closing, true},
                                {"no-memory", without_memory, true},
                                {"no-limits", without_anything, true},
                                {"unmapped-ledger", unmapped, true},
                                {"cut-ledger", cut_short, true},
                                {"copied-shim", copied, true},
                                {"lone-shim", lone, true},
                                {0}};
