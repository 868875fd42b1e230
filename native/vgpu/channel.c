#include "channel.h"

#include "place.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

int channel_descriptor(const struct process *in)
{
    struct stat status;
    int fd = atomic_load_explicit(&in->channel, memory_order_acquire) - 1;
    if (fd < 0 || !file_status(fd, &status) || status.st_ino != in->channel_inode ||
        !S_ISSOCK(status.st_mode))
        return -1;
    return fd;
}

/* The address has room for 107 bytes. Where the path is longer, its directory is opened, and named by its descriptor. */
static bool address_of(const char *path, int *directory, struct sockaddr_un *out)
{
    char parent[PLACE_MAX];
    const char *name = strrchr(path, '/');
    *directory = -1;
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) < sizeof(out->sun_path)) {
        strcpy(out->sun_path, path);
        return true;
    }
    memcpy(parent, path, (size_t)(name - path));
    parent[name - path] = '\0';
    *directory = file_open(parent, O_PATH | O_DIRECTORY);
    snprintf(out->sun_path, sizeof(out->sun_path), "/proc/self/fd/%d%s", *directory, name);
    return *directory >= 0;
}

static int connect_to(const char *path)
{
    struct sockaddr_un address;
    int directory;
    if (!address_of(path, &directory, &address))
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && syscall(SYS_connect, fd, &address, sizeof(address)) != 0) {
        file_close(fd);
        fd = -1;
    }
    if (directory >= 0)
        file_close(directory);
    return fd;
}

bool channel_open(struct process *in)
{
    char path[PLACE_MAX];
    struct stat status;
    struct nvcd_message hello = {.kind = NVCD_HELLO, .a = NVCD_VERSION};
    int fd = place_join(VGPU_DAEMON_FILE, path) ? connect_to(path) : -1;
    if (fd < 0)
        return false;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 700);
    if (high >= 0) {
        file_close(fd);
        fd = high;
    }
    if (!file_status(fd, &status)) {
        file_close(fd);
        return false;
    }
    in->channel_inode = status.st_ino;
    atomic_store(&in->channel, fd + 1);
    if (channel_send(in, &hello))
        return true;
    channel_close(in);
    return false;
}

void channel_close(struct process *in)
{
    int fd = channel_descriptor(in);
    if (!atomic_exchange(&in->channel, 0) || fd < 0)
        return;
    shutdown(fd, SHUT_RDWR); /* a child has it too */
    file_close(fd);
}

void channel_end(const struct process *in)
{
    int fd = channel_descriptor(in);
    if (fd >= 0)
        shutdown(fd, SHUT_RDWR);
}

bool channel_send(struct process *in, const struct nvcd_message *message)
{
    int fd = channel_descriptor(in);
    /* A full queue is that of an nvcd that does not read: as good as none. */
    return fd >= 0 && syscall(SYS_sendto, fd, message, sizeof(*message), MSG_DONTWAIT | MSG_NOSIGNAL, NULL,
                              0) == sizeof(*message);
}

int channel_receive(struct process *in, struct nvcd_message *out)
{
    int fd = channel_descriptor(in);
    ssize_t got = fd >= 0 ? syscall(SYS_recvfrom, fd, out, sizeof(*out), MSG_DONTWAIT, NULL, NULL) : 0;
    if (got == sizeof(*out))
        return 1;
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}
