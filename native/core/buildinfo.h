#ifndef NVC_BUILDINFO_H
#define NVC_BUILDINFO_H

/* How this module was built, for --version; ASCII, never NULL. */
const char *nvc_build_date(void);
const char *nvc_build_revision(void);
const char *nvc_build_compiler(void);
const char *nvc_build_flags(void);

#endif
