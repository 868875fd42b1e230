/* nvidia-cuda-mps-control of a simulated driver: a program of the driver is an ELF file. With words it is the control daemon,
 * which tests/support/mps_control.py is; without, it sends the commands of its standard input and prints the answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The script, then the names and values of variables, each ended by a 0: written into the compiled program, which copies of
 * it for other tests share (tests/support/mps_program.py). */
static volatile char settings[4096] = "mps-settings";

static int pass_on(int from, int to)
{
    char text[4096];
    for (ssize_t got; (got = read(from, text, sizeof(text))) != 0;)
        if (got < 0 || write(to, text, (size_t)got) != got)
            return 1;
    return 0;
}

static int send_commands(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int daemon = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", pipe ? pipe : "/tmp/nvidia-mps");
    if (daemon < 0 || connect(daemon, (struct sockaddr *)&address, sizeof(address)) != 0) {
        puts("Cannot find MPS control daemon process");
        return 1;
    }
    if (pass_on(STDIN_FILENO, daemon) != 0 || shutdown(daemon, SHUT_WR) != 0)
        return 1;
    return pass_on(daemon, STDOUT_FILENO);
}

int main(int argc, char **argv)
{
    char *script = (char *)settings;
    if (argc < 2)
        return send_commands();
    for (char *name = script + strlen(script) + 1, *value; *name; name = value + strlen(value) + 1) {
        value = name + strlen(name) + 1;
        setenv(name, value, 1);
    }
    execv("/usr/bin/python3", (char *[]){"python3", script, argv[1], argc > 2 ? argv[2] : NULL, NULL});
    return 127;
}
