#pragma once

#include <stdbool.h>

/* Before a call that would wait in the kernel: waits in the world's time. False: a signal came. */
bool descriptor_await(int fd, short events);

/* After a call that others may see. Returns its result. */
long descriptor_seen(long result);
