/* Makes the driver's ioctls in every way in which a program can, one for each line of its standard input.
 *
 *   rm_calls FILE
 *   break WAY      starts channels (0x2080110b), and writes `survived` if it still can
 *   alloc WAY CLIENT PARENT HANDLE CLASS WORD     writes `alloc STATUS HANDLE`; WORD is what the parameters say
 *   free CLIENT HANDLE                            writes `free STATUS`
 *   forge CLIENT HANDLE                           the same by a call that is not the driver's, with the answer 0
 *   many CLIENT PARENT COUNT                      makes so many subdevices
 *   timeslice CLIENT GROUP
 *   pass           a child goes on with what the process has, and the process ends
 *   leave          the first thread ends, another one goes on
 *   exec           another thread than the first one executes this program anew
 *
 * WAY: plain, wide (NVOS64), xfer, type (of another magic), thread, fork, vfork, parent (CLONE_PARENT), grandchild, and with
 * 64 bits high (the upper half of rax is not 0) and int80. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct alloc {
    uint32_t root, parent, object, class;
    uint64_t parameters;
    uint32_t size, status;
};

struct wide {
    uint32_t root, parent, object, class;
    uint64_t parameters, rights;
    uint32_t size, flags, status, pad;
};

struct control {
    uint32_t client, object, command, flags;
    uint64_t parameters;
    uint32_t size, status;
};

struct free {
    uint32_t root, parent, object, status;
};

struct xfer {
    uint32_t number, size;
    uint64_t at;
};

/* What a call works on: below 4 GiB, so that int 0x80 can name it. */
struct page {
    struct control control;
    struct alloc alloc;
    struct wide wide;
    struct free free;
    struct xfer xfer;
    uint32_t parameters[128];
    char path[16];
    char room[0x20000];
};

static struct page *page;
static int file;
static const char *way;
static char **self;

static void say(const char *text)
{
    if (write(1, text, strlen(text)) < 0)
        _exit(3);
}

static int call(unsigned int number, void *structure, unsigned int size)
{
    bool other = strcmp(way, "type") == 0;
    unsigned long command = _IOC(_IOC_READ | _IOC_WRITE, other ? 'x' : 'F', number, size);

    if (strcmp(way, "xfer") == 0) {
        page->xfer = (struct xfer){number, size, (uintptr_t)structure};
        command = _IOC(_IOC_READ | _IOC_WRITE, 'F', 211, sizeof(page->xfer));
        structure = &page->xfer;
    }
#ifdef __x86_64__
    if (strcmp(way, "high") == 0) {
        long result = (long)0xdead000000000000 | SYS_ioctl;
        __asm__ volatile("syscall"
                         : "+a"(result)
                         : "D"((long)file), "S"(command | 0xbeef00000000), "d"(structure)
                         : "rcx", "r11", "memory");
        return (int)result;
    }
    if (strcmp(way, "int80") == 0) {
        long result = 54;
        __asm__ volatile("int $0x80"
                         : "+a"(result)
                         : "b"((long)file), "c"(command | 0xbeef00000000), "d"(structure)
                         : "r8", "r9", "r10", "r11", "memory");
        return (int)result;
    }
#endif
    return ioctl(file, command, structure);
}

static void start_channels(void)
{
    page->control = (struct control){.client = 1, .object = 2, .command = 0x2080110b};
    call(0x2A, &page->control, sizeof(page->control));
    say("survived\n");
}

static void *in_thread(void *unused)
{
    start_channels();
    return unused;
}

static int in_child(void *unused)
{
    (void)unused;
    start_channels();
    _exit(0);
}

static void say_end(int status)
{
    char line[64];
    snprintf(line, sizeof(line), "%s %d\n", WIFSIGNALED(status) ? "killed" : "ended",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    say(line);
}

static void wait_for(pid_t pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    say_end(status);
}

/* A child that our parent waits for: whether it lives is seen by its end of a pipe. */
static void with_clone_parent(void)
{
    char *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int ends[2];
    char one;

    if (stack == MAP_FAILED || pipe(ends))
        exit(3);
    if (clone(in_child, stack + 65536, CLONE_PARENT | SIGCHLD, NULL) < 0)
        exit(3);
    close(ends[1]);
    while (read(ends[0], &one, 1) > 0) {
    }
    close(ends[0]);
    say("over\n");
}

static void with_fork(bool quick, int depth)
{
    pid_t pid = quick ? vfork() : fork();

    if (pid == 0) {
        if (depth > 0) {
            with_fork(false, depth - 1);
            _exit(0);
        }
        start_channels();
        _exit(0);
    }
    if (pid < 0)
        exit(3);
    wait_for(pid);
}

static void break_rule(void)
{
    pthread_t thread;

    if (strcmp(way, "thread") == 0) {
        if (pthread_create(&thread, NULL, in_thread, NULL))
            exit(3);
        pthread_join(thread, NULL);
    } else if (strcmp(way, "fork") == 0) {
        with_fork(false, 0);
    } else if (strcmp(way, "vfork") == 0) {
        with_fork(true, 0);
    } else if (strcmp(way, "grandchild") == 0) {
        with_fork(false, 2);
    } else if (strcmp(way, "parent") == 0) {
        with_clone_parent();
    } else {
        start_channels();
    }
}

static void allocate(uint32_t client, uint32_t parent, uint32_t handle, uint32_t class, uint32_t word)
{
    char line[64];
    uint32_t status;

    for (size_t i = 0; i < sizeof(page->parameters) / 4; i++)
        page->parameters[i] = 0;
    page->parameters[class == 0x80 ? 0 : class == 0xa06c ? 3 : 32] = word;
    uint32_t size = class == 0x41 || class == 0x2080 ? 4 : class == 0x80 ? 56 : class == 0xa06c ? 20 : 368;
    if (strcmp(way, "wide") == 0) {
        page->wide =
            (struct wide){client, parent, handle, class, (uintptr_t)page->parameters, 0, size, 0, 0xff, 0};
        call(0x2B, &page->wide, sizeof(page->wide));
        status = page->wide.status;
        handle = page->wide.object;
    } else {
        page->alloc = (struct alloc){client, parent, handle, class, (uintptr_t)page->parameters, size, 0xff};
        call(0x2B, &page->alloc, sizeof(page->alloc));
        status = page->alloc.status;
        handle = page->alloc.object;
    }
    snprintf(line, sizeof(line), "alloc %u %u\n", status, handle);
    say(line);
}

/* lchown16(2) of 32-bit programs has the number that ioctl(2) has for others, and changes nothing here. What an ioctl has in
 * rdi, rsi and rdx says that the driver has freed an object. */
static int forge(uint32_t client, uint32_t handle)
{
#ifdef __x86_64__
    long result = 16, command = _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x29, sizeof(struct free));
    char *at = (char *)page + 0xffff;

    strcpy(page->path, "/dev/null");
    memcpy(at, &(struct free){client, client, handle, 0}, sizeof(struct free));
    __asm__ volatile("int $0x80"
                     : "+a"(result)
                     : "b"(page->path), "c"(0xffffl), "d"(at), "S"(command), "D"((long)file)
                     : "r8", "r9", "r10", "r11", "memory");
    return (int)result;
#else
    (void)client, (void)handle;
    return -1;
#endif
}

static void *anew(void *unused)
{
    execv("/proc/self/exe", self);
    return unused;
}

static void serve(void);

static void *go_on(void *unused)
{
    say("left\n");
    serve();
    _exit(0);
    return unused;
}

static void other_thread(void *(*work)(void *))
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, work, NULL))
        exit(3);
    pthread_detach(thread);
    if (work == go_on)
        pthread_exit(NULL);
    for (;;)
        pause();
}

/* A byte at a time: what the next program of `exec` is to read stays in the pipe. */
static bool read_line(char *line, size_t room)
{
    size_t length = 0;

    while (length + 1 < room && read(0, line + length, 1) == 1) {
        if (line[length] == '\n') {
            line[length] = '\0';
            return true;
        }
        length++;
    }
    return false;
}

static void serve(void)
{
    char line[256], word[32], how[32];
    unsigned int a, b, c, d, e;

    while (read_line(line, sizeof(line))) {
        way = "plain";
        if (sscanf(line, "break %31s", how) == 1) {
            way = how;
            break_rule();
        } else if (sscanf(line, "alloc %31s %u %u %u %u %u", how, &a, &b, &c, &d, &e) == 6) {
            way = how;
            allocate(a, b, c, d, e);
        } else if (sscanf(line, "free %u %u", &a, &b) == 2) {
            page->free = (struct free){a, a, b, 0xff};
            call(0x29, &page->free, sizeof(page->free));
            snprintf(line, sizeof(line), "free %u\n", page->free.status);
            say(line);
        } else if (sscanf(line, "forge %u %u", &a, &b) == 2) {
            snprintf(line, sizeof(line), "forged %d\n", forge(a, b));
            say(line);
        } else if (sscanf(line, "many %u %u %u", &a, &b, &c) == 3) {
            for (d = 0; d < c; d++) {
                page->parameters[0] = 0;
                page->alloc = (struct alloc){a, b, 0, 0x2080, (uintptr_t)page->parameters, 4, 0xff};
                if (call(0x2B, &page->alloc, sizeof(page->alloc)) || page->alloc.status)
                    break;
            }
            snprintf(line, sizeof(line), "many %u\n", d);
            say(line);
        } else if (sscanf(line, "timeslice %u %u", &a, &b) == 2) {
            page->parameters[0] = 3000;
            page->parameters[1] = 0;
            page->control = (struct control){a, b, 0xa06c0103, 0, (uintptr_t)page->parameters, 8, 0xff};
            call(0x2A, &page->control, sizeof(page->control));
            snprintf(line, sizeof(line), "timeslice %u\n", page->control.status);
            say(line);
        } else if (sscanf(line, "%31s", word) == 1 && strcmp(word, "pass") == 0) {
            if (fork() != 0)
                _exit(0);
            snprintf(line, sizeof(line), "passed %d\n", getpid());
            say(line);
        } else if (strcmp(word, "leave") == 0) {
            other_thread(go_on);
        } else if (strcmp(word, "exec") == 0) {
            other_thread(anew);
        } else {
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    self = argv;
    page = mmap((void *)0x20000000, sizeof(*page), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    file = open(argv[1], O_RDWR);
    if (page == MAP_FAILED || file < 0)
        return 3;
    say("ready\n");
    serve();
    return 0;
}
