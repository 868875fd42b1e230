#ifndef NVC_BUILDINFO_H
#define NVC_BUILDINFO_H

/* How this module was built, for --version: date, revision, compiler and flags in lines of ASCII. */
const char *nvc_build(void);

#endif
