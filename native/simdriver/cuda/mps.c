/* The client's side of MPS. Without a control daemon that listens, programs run without MPS. With one, the server ends
 * all of its clients at a fault of one, and they notice that it is gone. Kernels are executed as without it. */
#include "mps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATIENCE = 10 /* seconds */, PERCENT = 100 };

/* What the server answers, and what it says later. */
enum { ADMITTED = 'a', FULL = 'm', NOT_READY = 'n', FAULT = 'f' };

static int connect_to(const char *directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = PATIENCE};
    int place = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = place >= 0 ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd >= 0) { /* a path may be longer than an address has room for */
        snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/client", place);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
            close(fd);
            fd = -1;
        }
    }
    if (place >= 0)
        close(place);
    return fd;
}

static CUresult refused(char answer)
{
    switch (answer) {
    case FULL:
        return CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
    case NOT_READY:
        return CUDA_ERROR_MPS_SERVER_NOT_READY;
    default:
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    }
}

CUresult mps_start(struct driver *to)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    char hello[128], answer = 0;
    to->mps_percent =
        percent && atoi(percent) > 0 && atoi(percent) < PERCENT ? (uint32_t)atoi(percent) : PERCENT;
    int fd = connect_to(directory ? directory : "/tmp/nvidia-mps");
    if (fd < 0) {
        to->mps_percent = PERCENT;
        return CUDA_SUCCESS;
    }
    int length = snprintf(hello, sizeof(hello), "%u %.40s\n", to->mps_percent, limit ? limit : "-");
    if (send(fd, hello, (size_t)length, MSG_NOSIGNAL) != length || recv(fd, &answer, 1, 0) != 1)
        answer = 0;
    if (answer != ADMITTED) {
        close(fd);
        return refused(answer);
    }
    to->mps = fd + 1;
    return CUDA_SUCCESS;
}

CUresult mps_look(struct driver *to)
{
    char word;
    if (!to->mps || to->mps_error != CUDA_SUCCESS)
        return to->mps_error;
    ssize_t got = recv(to->mps - 1, &word, 1, MSG_DONTWAIT);
    if (got > 0 && word == FAULT)
        to->mps_error = CUDA_ERROR_ILLEGAL_ADDRESS;
    else if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        to->mps_error = CUDA_ERROR_MPS_RPC_FAILURE;
    return to->mps_error;
}

void mps_fault(struct driver *to)
{
    char word = FAULT;
    if (to->mps && send(to->mps - 1, &word, 1, MSG_NOSIGNAL) != 1)
        to->mps_error = CUDA_ERROR_MPS_RPC_FAILURE;
}
