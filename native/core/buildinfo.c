/* build.py defines NVC_BUILD_*; __DATE__ would make every build differ. */
#include "buildinfo.h"

#ifndef NVC_BUILD_DATE
#define NVC_BUILD_DATE "unknown"
#define NVC_BUILD_REVISION "unknown"
#define NVC_BUILD_FLAGS "unknown"
#endif
#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char *nvc_build(void)
{
    return NVC_BUILD_DATE "\n" NVC_BUILD_REVISION "\n" COMPILER "\n" NVC_BUILD_FLAGS;
}
