"""Answers requests with PyTorch: `requests_load.py MIB [SECONDS]` has so much memory, and works for each line.

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
    rounds = round(20 * seconds / (time.monotonic() - begin))
    print("ready", os.getpid(), flush=True)
    for _ in sys.stdin:
        begin = time.monotonic()
        torch.cuda.synchronize()  # the first call after a while, as a server makes it
        for _ in range(rounds):
            x.max()
        found = int(x[-(1 << 20) :].sum()) >> 20
        print(f"{time.monotonic() - begin:.4f}", found, flush=True)


if __name__ == "__main__":
    main()
