/* An NVML for tests: one well-behaved GPU, and one kind of trouble, which tests write into the built file.
 * With -DBARE it lacks every optional function, but tells the name that -DNAME gives. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum trouble {
    NONE,
    HANG,         /* never returns */
    LATE,         /* returns once somebody writes to the pipe /gate, as without persistence */
    HANG_SIGNALS, /* the same, with every signal blocked */
    CRASH,        /* writes to address 0 */
    EXIT,         /* ends the process by itself */
    GARBAGE,      /* writes nonsense where the answer should go */
    FLOOD,        /* writes 10 MiB to every descriptor */
    FORGE,        /* writes a whole answer that lies, then ends */
    ENDLESS,      /* strings without end */
    MANY,         /* 65 GPUs */
    SPAWN,        /* starts a process that keeps all descriptors */
    THREAD,       /* works in a thread, which is allowed */
    SPIN,         /* burns processor time */
    EAT,          /* takes all memory */
    LOST,         /* the second of three GPUs has fallen off the bus */
    GAPS,         /* MIG devices with gaps between them */
    TELL,         /* tells in the GPU's name what the process may do */
};

static const volatile struct {
    char mark[8];
    uint32_t trouble;
} chosen = {"TROUBLE=", NONE};
#define TROUBLE chosen.trouble

#if !defined(BARE) || defined(NAME)
#define HAS_NAME
#endif
#ifndef NAME
#define NAME "Test GPU"
#endif
#ifndef VERSION
#define VERSION "580.159.04"
#endif

static void *work(void *result)
{
    *(int *)result = 1;
    return result;
}

#ifndef BARE
/* What the process can still do; every number but the ids is 0 in a confined one. */
static void tell(char *text, unsigned size)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {{0}};
    int bounding = 0, held = 0, descriptors = 0, variables = 0;
    struct rlimit core = {0};

    syscall(SYS_capget, &header, sets);
    for (int word = 0; word < 2; word++)
        held |= (sets[word].effective | sets[word].permitted | sets[word].inheritable) != 0;
    for (int capability = 0; capability < 41; capability++)
        bounding += prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1;
    for (int fd = 4; fd < 1024; fd++)
        descriptors += fcntl(fd, F_GETFD) >= 0;
    for (char **entry = environ; entry && *entry; entry++)
        variables++;
    getrlimit(RLIMIT_CORE, &core);
    snprintf(text, size, "bounding=%d caps=%d fds=%d env=%d privs=%d core=%d groups=%d fork=%d ids=%u:%u",
             bounding, held, descriptors, variables, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1,
             core.rlim_cur != 0, getgroups(0, NULL),
             fork() >= 0 || errno != EPERM ||
                 prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) == 0, /* outlive the parent */
             getuid(), getgid());
}
#endif

EXPORT int nvmlInit_v2(void)
{
    static char block[1 << 20];
    int done = 0;
    pthread_t thread;

    switch (TROUBLE) {
    case LATE:
        if (open("/gate", O_RDONLY) < 0)
            return 1;
        break;
    case HANG_SIGNALS: {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
    }
        /* fall through */
    case HANG:
        for (;;)
            pause();
    case CRASH:
        *(volatile int *)0 = 1;
        break;
    case EXIT:
        _exit(3);
    case GARBAGE:
        memset(block, 'x', sizeof(block));
        if (write(3, block, 4096) < 0)
            return 1;
        _exit(0);
    case FLOOD:
        memset(block, 'x', sizeof(block));
        for (int fd = 0; fd < 64; fd++)
            for (int n = 0; n < 10; n++)
                if (write(fd, block, sizeof(block)) < 0)
                    break;
        break;
    case FORGE: {
        static const char forged[] = "[0,0,\"\",\"\",[\"580.159.04\",13000,\"\",[5],[],[]]]";
        if (write(3, forged, sizeof(forged) - 1) < 0)
            return 1;
        _exit(0);
    }
    case SPAWN:
        if (fork() == 0)
            for (;;)
                pause();
        if (vfork() == 0)
            _exit(0);
        break;
    case THREAD:
        if (pthread_create(&thread, NULL, work, &done) != 0 || pthread_join(thread, NULL) != 0 || !done)
            return 999;
        break;
    case SPIN:
        for (volatile long n = 0;; n++)
            ;
    case EAT:
        for (;;) {
            char *more = malloc(64 << 20);
            if (!more)
                return 20; /* NVML_ERROR_MEMORY */
        }
    default:
        break;
    }
    return 0;
}

EXPORT const char *nvmlErrorString(int code)
{
    return code == 15 ? "GPU is lost" : code == 20 ? "Insufficient Memory" : "Unknown Error";
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    if (TROUBLE == ENDLESS)
        memset(text, '5', size);
    else
        snprintf(text, size, "%s", VERSION);
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = TROUBLE == MANY ? 65 : TROUBLE == LOST ? 3 : 1;
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(uintptr_t)(0x1000 + index);
    return 0;
}

static unsigned index_of(void *device)
{
    return (unsigned)((uintptr_t)device - 0x1000);
}

EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned size)
{
    unsigned index = index_of(device);

    if (TROUBLE == LOST && index == 1)
        return 15;
    snprintf(text, size, "%s-00000000-1111-2222-3333-%012x", index >= 0x100 ? "MIG" : "GPU", index);
    return 0;
}

EXPORT int nvmlDeviceGetPciInfo_v3(void *device, char *info)
{
    uint32_t address[3] = {0, 0x1b + index_of(device), 0};

    memcpy(info + 16, address, sizeof(address));
    return 0;
}

#ifdef HAS_NAME
EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned size)
{
    (void)device;
#ifndef BARE
    if (TROUBLE == TELL) {
        tell(text, size);
        return 0;
    }
#endif
    snprintf(text, size, "%s", NAME);
    return 0;
}
#endif

#ifndef BARE
EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = 13000;
    return 0;
}

EXPORT int nvmlDeviceGetMinorNumber(void *device, unsigned *minor)
{
    *minor = index_of(device);
    return 0;
}

EXPORT int nvmlDeviceGetBrand(void *device, unsigned *brand)
{
    (void)device;
    *brand = 14;
    return 0;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    (void)device;
    *major = 9;
    *minor = 0;
    return 0;
}

EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    (void)device;
    *current = *pending = TROUBLE == GAPS;
    return TROUBLE == GAPS ? 0 : 3;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count)
{
    (void)device;
    *count = 7;
    return 0;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **mig)
{
    (void)device;
    if (index % 2 == 0)
        return 6; /* NVML_ERROR_NOT_FOUND */
    *mig = (void *)(uintptr_t)(0x1100 + index);
    return 0;
}

EXPORT int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id)
{
    *id = 7 + (index_of(device) & 0xff);
    return 0;
}

EXPORT int nvmlDeviceGetComputeInstanceId(void *device, unsigned *id)
{
    (void)device;
    *id = 0;
    return 0;
}
#endif
