/* Stands for a program of the driver that has nothing to do without hardware. Built once for each, with its
 * NAME, so that what is mounted into containers is a real ELF file that runs. */
#include <stdio.h>

int main(void)
{
    if (fputs(NAME " of a simulated NVIDIA driver: it does nothing\n", stdout) == EOF || fflush(stdout) != 0)
        return 1;
    return 0;
}
