/* Registers and memory of a process that is followed. */
#include "faults_tracee.h"

#include <elf.h>
#include <linux/ptrace.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <unistd.h>

/* <sys/ptrace.h> and <linux/ptrace.h> cannot be included together; only the second one has it all. */
long trace(int request, pid_t pid, void *address, void *data)
{
    return syscall(SYS_ptrace, request, pid, address, data);
}

/* Changes the number of the call that is about to be made. */
void set_number(pid_t pid, int number)
{
#if defined(__x86_64__)
    if (trace(PTRACE_POKEUSR, pid, (void *)offsetof(struct user_regs_struct, orig_rax),
              (void *)(intptr_t)number) < 0)
        die("set number");
#elif defined(__aarch64__)
    struct iovec value = {&number, sizeof(number)};
    if (trace(PTRACE_SETREGSET, pid, (void *)(intptr_t)NT_ARM_SYSTEM_CALL, &value) < 0)
        die("set number");
#else
#error "x86_64 and aarch64 only"
#endif
}

void set_result(pid_t pid, long result)
{
#if defined(__x86_64__)
    if (trace(PTRACE_POKEUSR, pid, (void *)offsetof(struct user_regs_struct, rax), (void *)result) < 0)
        die("set result");
#else
    struct user_regs_struct registers;
    struct iovec value = {&registers, sizeof(registers)};
    if (trace(PTRACE_GETREGSET, pid, (void *)(intptr_t)NT_PRSTATUS, &value) < 0)
        die("get registers");
    registers.regs[0] = (unsigned long)result;
    if (trace(PTRACE_SETREGSET, pid, (void *)(intptr_t)NT_PRSTATUS, &value) < 0)
        die("set result");
#endif
}

void read_text(pid_t pid, uint64_t address, char *text, size_t room)
{
    size_t have = 0;

    /* Page by page: what follows the name may not be mapped. */
    while (address && have < room - 1) {
        size_t size = 4096 - (size_t)((address + have) % 4096);
        if (size > room - 1 - have)
            size = room - 1 - have;
        struct iovec here = {text + have, size}, there = {(void *)(uintptr_t)(address + have), size};
        ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (got <= 0)
            break;
        char *end = memchr(text + have, '\0', (size_t)got);
        have += (size_t)got;
        if (end != NULL)
            have = (size_t)(end - text);
        if (end != NULL)
            break;
    }
    text[have] = '\0';
    for (char *at = text; *at; at++)
        if ((unsigned char)*at <= ' ')
            *at = '?';
}
