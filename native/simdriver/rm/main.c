#define FUSE_USE_VERSION 35

#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOUNT_POINT "/proc/driver/nvidia/sim/rm"

static const double FOREVER = 1e9;

static struct server *server_of(fuse_req_t request)
{
    return fuse_req_userdata(request);
}

struct node *node_find(struct server *server, uint64_t number)
{
    struct node *node = server->nodes;
    while (node && node->number != number)
        node = node->next;
    return node;
}

void node_invalidate(struct server *server, uint64_t number)
{
    fuse_lowlevel_notify_inval_inode(server->session, number, 0, 0);
}

static struct stat attributes(uint64_t number, bool faults)
{
    struct stat st = {.st_ino = number, .st_nlink = 1, .st_mode = S_IFREG | (faults ? 0600 : 0666)};
    if (number == FUSE_ROOT_ID) {
        st.st_mode = S_IFDIR | 0755;
        st.st_nlink = 2;
    } else if (!faults) {
        st.st_size = RM_FILE_SIZE;
    }
    return st;
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct server *server = server_of(request);
    bool faults = strcmp(name, "faults") == 0;
    struct node *node = NULL;
    if (parent == FUSE_ROOT_ID && (faults || strcmp(name, "nvidiactl") == 0))
        node = calloc(1, sizeof(*node));
    if (!node) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    pthread_mutex_lock(&server->lock);
    node->number = ++server->numbers;
    node->lookups = 1;
    node->faults = faults;
    node->next = server->nodes;
    server->nodes = node;
    struct fuse_entry_param entry = {.ino = node->number, .generation = 1, .attr_timeout = FOREVER};
    pthread_mutex_unlock(&server->lock);
    entry.attr = attributes(entry.ino, faults);
    fuse_reply_entry(request, &entry);
}

static void do_forget(fuse_req_t request, fuse_ino_t number, uint64_t lookups)
{
    struct server *server = server_of(request);
    pthread_mutex_lock(&server->lock);
    for (struct node **at = &server->nodes; *at; at = &(*at)->next) {
        struct node *node = *at;
        if (node->number != number)
            continue;
        node->lookups -= lookups < node->lookups ? lookups : node->lookups;
        if (!node->lookups) {
            *at = node->next;
            memory_drop(node->memory);
            free(node);
        }
        break;
    }
    pthread_mutex_unlock(&server->lock);
    fuse_reply_none(request);
}

static bool is_faults(struct server *server, fuse_ino_t number)
{
    pthread_mutex_lock(&server->lock);
    const struct node *node = node_find(server, number);
    bool found = node && node->faults;
    pthread_mutex_unlock(&server->lock);
    return found;
}

static void do_getattr(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    (void)file;
    struct stat st = attributes(number, is_faults(server_of(request), number));
    fuse_reply_attr(request, &st, FOREVER);
}

/* Of the files, nothing can be set; to empty `faults` when it is opened changes nothing. */
static void do_setattr(fuse_req_t request, fuse_ino_t number, struct stat *wanted, int which,
                       struct fuse_file_info *file)
{
    (void)wanted;
    if (which & ~(FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_CTIME))
        fuse_reply_err(request, EPERM);
    else
        do_getattr(request, number, file);
}

static void do_open(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    struct server *server = server_of(request);
    bool faults = is_faults(server, number);
    if (faults && fuse_req_ctx(request)->uid != 0) {
        fuse_reply_err(request, EACCES);
        return;
    }
    pthread_mutex_lock(&server->lock);
    file->fh = ++server->numbers;
    pthread_mutex_unlock(&server->lock);
    file->direct_io = faults;
    file->keep_cache = !faults;
    fuse_reply_open(request, file);
}

static void do_release(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    struct server *server = server_of(request);
    (void)number;
    pthread_mutex_lock(&server->lock);
    clients_free(server, file->fh);
    pthread_mutex_unlock(&server->lock);
    fuse_reply_err(request, 0);
}

/* What a mapping shows. Always as much as is asked for: the kernel takes less for the end of the file. */
static void do_read(fuse_req_t request, fuse_ino_t number, size_t size, off_t from,
                    struct fuse_file_info *file)
{
    struct server *server = server_of(request);
    (void)file;
    char *out = calloc(1, size ? size : 1);
    pthread_mutex_lock(&server->lock);
    const struct node *node = node_find(server, number);
    const struct memory *memory = node ? node->memory : NULL;
    bool readable = out && memory;
    if (readable && (uint64_t)from < memory->size) {
        uint64_t left = memory->size - (uint64_t)from;
        memcpy(out, memory->bytes + from, left < size ? left : size);
    }
    pthread_mutex_unlock(&server->lock);
    if (readable)
        fuse_reply_buf(request, out, size);
    else
        fuse_reply_err(request, out ? EINVAL : ENOMEM);
    free(out);
}

static void do_write(fuse_req_t request, fuse_ino_t number, const char *text, size_t size, off_t at,
                     struct fuse_file_info *file)
{
    struct server *server = server_of(request);
    (void)at;
    (void)file;
    bool faults = is_faults(server, number);
    pthread_mutex_lock(&server->lock);
    bool done = faults && faults_set(server, text, size);
    pthread_mutex_unlock(&server->lock);
    if (done)
        fuse_reply_write(request, size);
    else
        fuse_reply_err(request, EINVAL);
}

static void do_ioctl(fuse_req_t request, fuse_ino_t number, unsigned int command, void *argument,
                     struct fuse_file_info *file, unsigned int flags, const void *in, size_t in_size,
                     size_t out_size)
{
    const struct fuse_ctx *context = fuse_req_ctx(request);
    struct call call = {
        .server = server_of(request), .thread = context->pid, .user = context->uid, .file = file->fh};
    uint64_t data[64];
    (void)argument;
    (void)flags;
    int error = in_size != out_size || in_size > sizeof(data) || is_faults(call.server, number) ? EINVAL : 0;
    if (!error) {
        memcpy(data, in, in_size);
        error = ioctl_answer(&call, command, data, in_size);
    }
    if (error)
        fuse_reply_err(request, error);
    else
        fuse_reply_ioctl(request, 0, data, out_size);
}

static void do_readdir(fuse_req_t request, fuse_ino_t number, size_t size, off_t from,
                       struct fuse_file_info *file)
{
    static const char *const names[] = {".", "..", "nvidiactl", "faults"};
    char out[512];
    size_t used = 0, room = size < sizeof(out) ? size : sizeof(out);
    (void)file;
    if (number != FUSE_ROOT_ID) {
        fuse_reply_err(request, ENOTDIR);
        return;
    }
    for (size_t i = (size_t)from; i < sizeof(names) / sizeof(*names); i++) {
        struct stat st = {.st_ino = FUSE_ROOT_ID, .st_mode = i < 2 ? S_IFDIR : S_IFREG};
        size_t entry = fuse_add_direntry(request, out + used, room - used, names[i], &st, (off_t)i + 1);
        if (entry > room - used)
            break;
        used += entry;
    }
    fuse_reply_buf(request, out, used);
}

static const struct fuse_lowlevel_ops operations = {
    .lookup = do_lookup,
    .forget = do_forget,
    .getattr = do_getattr,
    .setattr = do_setattr,
    .open = do_open,
    .readdir = do_readdir,
    .release = do_release,
    .read = do_read,
    .write = do_write,
    .ioctl = do_ioctl,
};

/* When the test has ended, or closes its end. The main thread waits for the signal. */
static void *await_end(void *none)
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    kill(getpid(), SIGTERM);
    return none;
}

static int fail(const char *step, const char *path, const char *cause)
{
    fprintf(stderr, "simrm: %s: %s: %s\n", step, path, cause);
    return 1;
}

/* What an earlier server left is gone. */
static void begin_state(struct server *server)
{
    struct sim_rm *rm = &server->state->rm;
    uint64_t number = 0;
    for (uint32_t group = 0; group < SIM_GROUPS; group++)
        atomic_store(&rm->groups[group].id, 0);
    for (uint32_t partition = 0; partition < SIM_PARTITIONS; partition++)
        atomic_store(&rm->active[partition], 0);
    server->read = atomic_load(&rm->regions_written);
    if (getrandom(&number, sizeof(number), 0) != sizeof(number) || !number)
        number = 1;
    atomic_store(&rm->served, number);
}

static bool start(struct server *server, void *(*run)(void *))
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

static int serve(struct server *server, const char *path)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct fuse_loop_config config = {.max_idle_threads = 4};
    fuse_opt_add_arg(&args, "simrm");
    fuse_opt_add_arg(&args, "-oallow_other,fsname=simrm");
    server->session = fuse_session_new(&args, &operations, sizeof(operations), server);
    fuse_opt_free_args(&args);
    if (!server->session)
        return fail("start", path, "libfuse refuses");
    fuse_set_signal_handlers(server->session);
    if (fuse_session_mount(server->session, path) != 0)
        return fail("mount", path, strerror(errno));
    begin_state(server);
    if (!start(server, await_end) || !start(server, log_main))
        return fail("start", path, "no thread");
    puts("ready");
    fflush(stdout);
    fuse_session_loop_mt(server->session, &config);
    pthread_mutex_lock(&server->lock);
    clients_free(server, UINT64_MAX);
    atomic_store(&server->state->rm.served, 0);
    pthread_mutex_unlock(&server->lock);
    umount2(path, MNT_DETACH); /* what others hold open ends with us */
    return 0;
}

int main(int count, char **words)
{
    static struct server server = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .draining = PTHREAD_MUTEX_INITIALIZER, .numbers = FUSE_ROOT_ID};
    char message[SIM_MAX_PATH], path[SIM_MAX_PATH];
    const char *clock = getenv("NVC_SIM_CLOCK");
    if (count != 2) {
        fputs("usage: simrm ROOT\n", stderr);
        return 2;
    }
    if (sim_root_at(&server.root, words[1], message, sizeof(message)) != 0)
        return fail("read", words[1], message);
    server.state = sim_state_map(&server.root, true, &server.state_fd, message, sizeof(message));
    if (!server.state)
        return fail("map", words[1], message);
    int error = clock ? clock_open(&server, clock) : 0;
    if (error)
        return fail("map", clock, strerror(error));
    if (!sim_root_join(&server.root, MOUNT_POINT, path))
        return fail("mount", words[1], "the path is too long");
    return serve(&server, path);
}
