"""Answers requests with PyTorch: `requests_load.py MIB [SECONDS [PART]]` has so much memory, works for each line.

A request takes SECONDS, of which the GPU works for a PART, in ten pieces each second.

It prints the seconds that took, and a sum that shows whether its memory is the same.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    import torch  # type: ignore[import-not-found]

    x = torch.full((int(sys.argv[1]) << 18,), 3, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(20):
        x.max()
    torch.cuda.synchronize()
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    part = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
    pieces = round(10 * seconds)
    rounds = round(20 * 0.1 * part / (time.monotonic() - begin))
    print("ready", os.getpid(), flush=True)
    for _ in sys.stdin:
        begin = time.monotonic()
        torch.cuda.synchronize()  # the first call after a while, as a server makes it
        for _ in range(pieces):
            for _ in range(rounds):
                x.max()
            if part < 1:
                torch.cuda.synchronize()
                time.sleep(0.1 * (1 - part))
        found = int(x[-(1 << 20) :].sum()) >> 20
        print(f"{time.monotonic() - begin:.4f}", found, flush=True)


if __name__ == "__main__":
    main()
