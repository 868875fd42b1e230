/* What the files of take_time share. */
#ifndef NVC_TAKE_TIME_H
#define NVC_TAKE_TIME_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

typedef int CUresult;
typedef void *Handle;
typedef unsigned long long Address;

extern Handle context;
extern _Atomic double used_us;

void *entry(const char *name);
bool more(void);
void launch(Handle stream, double us);
Handle new_stream(void);
void wait_for(Handle stream);
void wait_for_all(void);
void honest(void);

#define CU(name, types, ...)                                                                                \
    do {                                                                                                    \
        static CUresult(*call) types;                                                                       \
        if (!call)                                                                                          \
            call = (CUresult(*) types)entry(#name);                                                         \
        CUresult result = call(__VA_ARGS__);                                                                \
        if (result)                                                                                         \
            fprintf(stderr, "%s: %d\n", #name, result), exit(4);                                            \
    } while (0)

void without_descriptors(void);
void without_memory(void);
void short_threads(void);
void null_stream(void);
void by_callback(void);
void waited_for_by_another(void);
void beside_a_capture(void);
void long_behind_short(void);

#endif
