"""Applies the hand-written plan once: `python -m support.apply_once DRIVER PID ROOTFS [die|refused]`.

With `refused` the plan has no tmpfs, and its last operation fails: all is undone. With `die` the process ends like
a killed one when its applier is killed: nothing is repaired, the journal stays.
"""

from __future__ import annotations

import os
import sys

from nvc.apply import executor
from nvc.base.errors import NvcError
from nvc.plan.ops import Symlink
from support.plans import apply, plan_of


def main() -> None:
    """Exit 0 when applied, 1 with the error on stderr, 9 when it died."""
    driver, pid, rootfs = sys.argv[1:4]
    if sys.argv[4:] == ["die"]:
        executor._repair = lambda *_: os._exit(9)
    plan = plan_of(driver)
    if sys.argv[4:] == ["refused"]:
        plan = plan.replace(ops=(*plan.ops[1:], Symlink("anything", "/etc")))
    try:
        apply(plan, int(pid), rootfs)
    except NvcError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
