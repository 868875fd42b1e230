"""What the tracer adds to every system call of the host, and to ioctls: nanoseconds, without it and with it.

    python3 tests/bench/tracer.py [--rounds 9] [--json FILE]

As root. It is loaded into a file system of its own in every second round. An nvcd that runs is in both
figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: By the least of some loops: what disturbs only adds.
PROGRAM = r"""
#include <stdio.h>
#include <sys/ioctl.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
static double least(int fd, unsigned long command, void *argument)
{
    double best = 1e9;
    for (int loop = 0; loop < 20; loop++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int i = 0; i < 20000; i++)
            if (fd < 0)
                syscall(SYS_getppid);
            else
                ioctl(fd, command, argument);
        clock_gettime(CLOCK_MONOTONIC, &b);
        double ns = ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / 20000;
        best = ns < best ? ns : best;
    }
    return best;
}
int main(void)
{
    char control[32] = {0};
    int fd = open("/dev/null", O_RDWR);
    printf("%.1f %.1f %.1f\n", least(-1, 0, 0), least(fd, 0x5401, control), least(fd, 0xc020462a, control));
    return 0;
}
"""
NAMES = ("any system call", "another ioctl", "a control call of the driver")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    sys.path.insert(0, REPO)
    from nvc.kernel.tracer import Tracer

    figures: dict[bool, list[list[float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as work:
        program, source = f"{work}/calls", f"{work}/calls.c"
        with open(source, "w", encoding="ascii") as file:
            file.write(PROGRAM)
        subprocess.run(["gcc", "-O1", "-o", program, source], check=True)
        for _ in range(options.rounds):
            for loaded in (False, True):
                tracer = Tracer.open(f"{work}/bpf") if loaded else None
                out = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
                figures[loaded].append([float(word) for word in out.split()])
                if tracer:
                    tracer.close()
                    subprocess.run(["umount", f"{work}/bpf"], check=True)
    found = {}
    print(f"{'':30} {'without':>9} {'with':>9} {'more':>9}   ns")
    for place, name in enumerate(NAMES):
        bare, traced = (statistics.median(row[place] for row in figures[each]) for each in (False, True))
        found[name] = {"without_ns": bare, "with_ns": traced}
        print(f"{name:30} {bare:9.1f} {traced:9.1f} {traced - bare:9.1f}")
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
