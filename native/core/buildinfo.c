/* build.py defines NVC_BUILD_*; __DATE__ would make every build differ. */
#include "buildinfo.h"

#ifndef NVC_BUILD_DATE
#define NVC_BUILD_DATE "unknown"
#define NVC_BUILD_REVISION "unknown"
#define NVC_BUILD_FLAGS "unknown"
#endif

const char *nvc_build_date(void)
{
    return NVC_BUILD_DATE;
}

const char *nvc_build_revision(void)
{
    return NVC_BUILD_REVISION;
}

const char *nvc_build_compiler(void)
{
#ifdef __clang__
    return __VERSION__;
#else
    return "gcc " __VERSION__;
#endif
}

const char *nvc_build_flags(void)
{
    return NVC_BUILD_FLAGS;
}
