"""What must be seen in a mount namespace all the same, where that covers directories of the host.

A checkout and what was built lie anywhere: in /srv, in /tmp. A host or a node of tests has its own /srv and /run.
"""

from __future__ import annotations

import shlex


def uncover(*paths: str) -> str:
    """Shell lines that hold directories, and the function `uncover`, which brings back what mounts have hidden.

    What it needs on the way is made in what was mounted.
    """
    held, back = [], []
    for descriptor, path in enumerate(dict.fromkeys(paths), 3):
        word = shlex.quote(path)
        held.append(f"exec {descriptor}<{word}")
        # Without -c, mount(8) takes the name that the link has, which leads to what covers it.
        bind = f"mkdir -p {word} && mount -c --rbind /proc/self/fd/{descriptor} {word}"
        back.append(f"[ -e {word} ] || {{ {bind}; }}")
    return "\n".join([*held, "uncover() {", *back, "}"]) + "\n"
