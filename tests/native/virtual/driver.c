/* Calls of the driver's resource manager: what answers them, native/simdriver/rm, takes no part in the world's time. */
#include "clocks.h"

#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

enum { CONTROL = 0x2A, DISABLE = 0x2080110b };
#define SET_TIMESLICE 0xa06c0103u
#define FLUSH 0x90cd0104u

/* As measured with driver 580. */
enum { CALL_NS = 20000, STOP_NS = 500000, START_NS = 300000, TIMESLICE_NS = 270000, FLUSH_NS = 80000 };

/* As long as they take on an H100: who has stopped others goes on when they are. */
static uint64_t takes(unsigned long request, const void *data)
{
    uint32_t command;
    uint64_t parameters;
    if (_IOC_NR(request) != CONTROL)
        return CALL_NS;
    memcpy(&command, (const char *)data + 8, sizeof(command));
    memcpy(&parameters, (const char *)data + 16, sizeof(parameters));
    if (command == SET_TIMESLICE)
        return TIMESLICE_NS;
    if (command == FLUSH)
        return FLUSH_NS;
    if (command != DISABLE || !parameters)
        return CALL_NS;
    return *(const uint8_t *)(uintptr_t)parameters ? STOP_NS : START_NS;
}

WORLD_API int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    void *data = va_arg(list, void *);
    va_end(list);
    int result = (int)world_call(SYS_ioctl, fd, request, data);
    if (result == 0 && world_self && _IOC_TYPE(request) == 'F' && _IOC_NR(request) >= 0x20)
        world_spend(takes(request, data));
    return result;
}
