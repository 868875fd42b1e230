#pragma once

/* How this module was built, for --version: date, revision, compiler and flags in lines of ASCII. */
const char *nvc_build(void);
