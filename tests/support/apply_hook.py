"""A prestart hook that applies the hand-written plan itself: `python -m support.apply_hook DRIVER REPORT`."""

from __future__ import annotations

import json
import os
import sys

from support.plans import apply, plan_of


def main() -> None:
    """Read the state on stdin, apply, and write what came of it to REPORT."""
    driver, report = sys.argv[1:]
    state = json.load(sys.stdin)
    with open(os.path.join(state["bundle"], "config.json"), encoding="utf-8") as config:
        rootfs = json.load(config)["root"]["path"]
    outcome = apply(plan_of(driver), state["pid"], rootfs)
    with open(report, "w", encoding="utf-8") as out:
        json.dump({"changes": outcome.changes, "warnings": outcome.warnings}, out)


if __name__ == "__main__":
    main()
