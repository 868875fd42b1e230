/* What the files of take_time share. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int CUresult;
typedef void *Handle;
typedef unsigned long long Address;

#define LAUNCH                                                                                              \
    (Handle kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,           \
     unsigned shared, Handle stream, void **values, void **extra)

enum { BLOCKS = 264, THREADS = 1024, NOT_READY = 600, NOT_SUPPORTED = 801 };

struct way {
    const char *name;
    void (*run)(void);
    bool before_init; /* each of its processes calls `begin` itself */
};

extern const struct way launch_ways[], wait_ways[], graph_ways[], copy_ways[], process_ways[], lack_ways[],
    end_ways[], hold_ways[], change_ways[]; /* end with {0} */

extern const char spin_text[]; /* PTX of the kernel: it takes as many rounds as its argument says */
extern Handle context, function;
extern CUresult(*launcher) LAUNCH;    /* with which `launch` launches; NULL: cuLaunchKernel */
extern double rounds_a_us, us_a_call; /* of a way that sets or copies memory; 0: it is not known */

void *entry(const char *name);
void begin(void); /* the driver, a context, the kernel; the first one's moment is when the program began */
double now(void); /* seconds */
bool more(void);  /* the time is not over; it begins with the program's first context */
void used(double us);                           /* GPU time, of all processes together */
void failed(const char *name, CUresult result); /* ends the program */
void launch(Handle stream, double us);
bool may_launch(Handle stream, double us); /* false: the launch was refused */
void report(void);                         /* ends the program */
Handle new_module(void);
Handle function_of(Handle module);
Handle new_stream(void);
void wait_for(Handle stream);
void wait_for_all(void);
void pause_for(double us);
void honest(void);
void print_lengths(void);          /* ends the program */
int early_ends(void);              /* how many of its processes ended early */
bool child_ended(void);            /* waits for one, and notes if it ended early; false: there is none */
int new_child(void);               /* fork(2); it ends with its parent, and when the time is long over */
void start_over(const char *name); /* the program again, in the same process, for the time that is left */

#define CU(name, types, ...)                                                                                \
    do {                                                                                                    \
        static CUresult(*call_) types;                                                                      \
        if (!call_)                                                                                         \
            call_ = (CUresult(*) types)entry(#name);                                                        \
        CUresult result_ = call_(__VA_ARGS__);                                                              \
        if (result_)                                                                                        \
            failed(#name, result_);                                                                         \
    } while (0)
