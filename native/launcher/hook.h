#pragma once

/* nvc-hook for a container that asks for nothing, or for what an earlier one got: exits. Else it returns, with standard
 * input as it was. `settle` prepares the process, see start/launcher.h. */
void hook_run(const char *name, int argc, char **argv, void (*settle)(const char *name));
