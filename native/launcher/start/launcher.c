/* Settles the process, and starts the Python program behind a name from a clean slate. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char odd[] = "the path has characters other than plain ASCII";

_Noreturn void refuse(const char *name, const char *path, const char *cause)
{
    fprintf(stderr, "%s: initialization error: %s: %s\n", name, path, cause);
    exit(1);
}

/* How many sockets systemd hands to this very process, from descriptor 3 on (sd_listen_fds(3)). */
static unsigned sockets_passed(void)
{
    enum { MOST = 16 };
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    long passed = count ? strtol(count, NULL, 10) : 0;

    return pid && strtol(pid, NULL, 10) == getpid() && passed > 0 && passed <= MOST ? (unsigned)passed : 0;
}

/* Descriptors 0 to 2 are open, so that no file that is opened later is taken for them; after them come `kept` more,
 * and all others are gone. */
static bool settle_descriptors(unsigned kept)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    return fd >= 0 && !syscall(SYS_close_range, 3 + kept, ~0U, 0);
}

/* As many descriptors as root allows: a plan opens each of its sources, hundreds with MIG, and 1024 is what
 * systemd gives. Nothing here uses select(2). */
static void settle_limits(void)
{
    struct rlimit files;

    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

static void settle_signals(void)
{
    static const unsigned long standard[8]; /* the kernel's struct sigaction, all zero: SIG_DFL, no flags */
    sigset_t none;

    /* libc's signal() leaves out 32 and 33, its own; posix_spawn(3) sets just those to ignored. Refused for the
     * two that nobody can change. */
    for (int sig = 1; sig < NSIG; sig++)
        syscall(SYS_rt_sigaction, sig, standard, NULL, 8);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* What every program begins with; `sockets` are kept. */
static void settle(const char *name, unsigned sockets)
{
    if (!settle_descriptors(sockets))
        refuse(name, "/dev/null or close_range(2)", strerror(errno));
    settle_limits();
    settle_signals();
    umask(022);
}

void settle_hook(const char *name)
{
    settle(name, 0);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

static void join(char out[PATH_MAX], const char *name, const char *directory, const char *file)
{
    if (snprintf(out, PATH_MAX, "%s/%s", directory, file) >= PATH_MAX)
        refuse(name, directory, "the path is too long");
}

/* The canonical name of what is there and may be trusted; else the program ends. */
static void find(const char *name, const char *path, bool trusted, char canonical[PATH_MAX])
{
    const char *cause = resolve(path, trusted, canonical);

    if (cause)
        refuse(name, canonical, cause);
}

/* Everything that will be executed belongs to root: the code of the program itself. */
static void check_code(const char *name, const char *code, const char *package)
{
    const char *parts[] = {"nvc", "nvc/_syscalls.abi3.so", package};
    char path[PATH_MAX], canonical[PATH_MAX];

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        join(path, name, code, parts[i]);
        find(name, path, true, canonical);
    }
}

/* Directory of the installation, from the file that is being executed: PREFIX/bin/NAME. */
static void find_prefix(const char *name, char prefix[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", prefix, PATH_MAX - 1);

    if (length <= 0)
        refuse(name, "/proc/self/exe", strerror(errno));
    prefix[length] = '\0';
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(prefix, '/');
        if (slash)
            *slash = '\0';
    }
}

/* The canonical name of the archive of modules in `archive`, "" where the installation has none. */
static void find_archive(const char *name, const char *library, bool trusted, char archive[PATH_MAX])
{
    char path[PATH_MAX];

    join(path, name, library, "hot.bin");
    archive[0] = '\0';
    if (access(path, F_OK) && errno == ENOENT)
        return;
    find(name, path, trusted, archive);
    if (!plain_path(archive))
        refuse(name, archive, odd);
}

/* Reads the archive that packaging/archive/build.py made. One that another version of Python made is passed over,
 * as Python does with .pyc files; one that is damaged must not go unnoticed. */
static const char OPEN_ARCHIVE[] =
    "path='%s'\n"
    "from posix import fstat,open,read\n"
    "try:\n"
    " fd=open(path,0)\n"
    " head=read(fd,16)\n"
    "except OSError as error:sys.exit('%s: initialization error: '+path+': '+error.strerror)\n"
    "if head[:4]!=b'nvc\\n'or int.from_bytes(head[8:12],'little')!=fstat(fd).st_size:"
    "sys.exit('%s: initialization error: '+path+': the file is damaged; install nvc again')\n"
    "from _frozen_importlib_external import MAGIC_NUMBER\n"
    "if head[4:8]==MAGIC_NUMBER:\n"
    " from marshal import loads\n"
    " loader,index=loads(read(fd,int.from_bytes(head[12:],'little')))\n"
    " exec(loader);install(path,fd,index)\n";

/* Python: extends sys.path, opens the archive, then `from PACKAGE.MODULE import main;main("NAME")`. */
static void write_boot(const struct program *program, const char *library, const char *code,
                       const char *archive, const struct conf *conf, bool trusted, char *boot, size_t room)
{
    char path[PATH_MAX], canonical[PATH_MAX];

    if (!plain_path(code))
        refuse(program->name, code, odd);
    size_t used = (size_t)snprintf(boot, room, "import sys;sys.path+=['%s'", code);
    for (size_t i = 0; i < conf->count; i++) {
        const char *given = conf->paths[i];
        if (given[0] != '/') {
            join(path, program->name, library, given);
            given = path;
        }
        find(program->name, given, trusted, canonical);
        if (!plain_path(canonical))
            refuse(program->name, canonical, odd);
        used += (size_t)snprintf(boot + used, room - used, ",'%s'", canonical);
    }
    used += (size_t)snprintf(boot + used, room - used, "]\n");
    if (archive[0])
        used +=
            (size_t)snprintf(boot + used, room - used, OPEN_ARCHIVE, archive, program->name, program->name);
    snprintf(boot + used, room - used, "from %s.%s import main;main(\"%s\")", program->package,
             program->module, program->name);
}

_Noreturn void start(const struct program *program, char **argv, char **envp)
{
    static const char *const flags[] = {"-I", "-S", "-B", "-c"};
    enum { FIXED = 2 + sizeof(flags) / sizeof(flags[0]) };
    char prefix[PATH_MAX], library[PATH_MAX], path[PATH_MAX], code[PATH_MAX], interpreter[PATH_MAX],
        canonical[PATH_MAX];
    char archive[PATH_MAX], boot[(CONF_MAX_PATHS + 2) * PATH_MAX + 1024];
    const char *kept[ENVIRONMENT_MAX];
    char variable[CARRY_MAX];
    struct conf conf;

    const char *name = program->name;
    settle(name, program->daemon ? sockets_passed() : 0);
    bool trusted = geteuid() == 0;
    bool hook = program->hook || getauxval(AT_SECURE);

    find_prefix(name, prefix);
    join(library, name, prefix, "lib/nvc");
    join(path, name, library, "launch.conf");
    find(name, path, trusted, canonical);
    int fd = open(canonical, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const char *cause = fd < 0 ? strerror(errno) : conf_read(fd, &conf);
    if (cause)
        refuse(name, canonical, cause);
    find(name, conf.interpreter, trusted, interpreter);
    join(path, name, library, "python");
    find(name, path, trusted, code);
    if (trusted)
        check_code(name, code, program->package);
    find_archive(name, library, trusted, archive);
    write_boot(program, library, code, archive, &conf, trusted, boot, sizeof(boot));

    size_t count = 0;
    while (argv[count])
        count++;
    const char **next = malloc((count + FIXED + 1) * sizeof(*next)), **arguments = next;
    if (!next)
        refuse(name, "arguments", strerror(errno));
    *next++ = interpreter;
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        *next++ = flags[i];
    *next++ = boot;
    for (size_t i = 1; i < count; i++)
        *next++ = argv[i];
    *next = NULL;
    environment_filter(envp, hook, kept);
    if (!hook)
        environment_carry(argv, envp, kept, variable);
    if (hook && chdir("/"))
        refuse(name, "/", strerror(errno));

    /* By name, since the interpreter finds its own library from it; no part of the canonical name can be changed
     * by anyone but root. */
    execve(interpreter, (char **)arguments, (char **)kept);
    refuse(name, interpreter, strerror(errno));
}
