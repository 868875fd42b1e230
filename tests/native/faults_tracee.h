#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What is done to a process that is stopped at a system call. All end this program when they fail. */
long trace(int request, pid_t pid, void *address, void *data);
void set_number(pid_t pid, int number);
void set_result(pid_t pid, long result);
void read_text(pid_t pid, uint64_t address, char *text, size_t room);
_Noreturn void die(const char *what);
