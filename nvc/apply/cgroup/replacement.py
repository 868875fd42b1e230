"""One device program of a cgroup put in the place of another, at once.

Each kind of attachment has its own exchange (kernel/bpf/cgroup.c); with none of them is there a moment with
no program, or with both:

    among several (BPF_F_ALLOW_MULTI)      attach with BPF_F_REPLACE and the old program
    alone (0 or BPF_F_ALLOW_OVERRIDE)      attach again with the same flags
    held by a bpf link                     update the link, naming the old program
"""

from __future__ import annotations

import errno
import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.kernel import bpf


class Replacement:
    """A program that is attached, the one that takes its place, and where. Owns both descriptors."""

    def __init__(self, directory: int, flags: int, old: int, old_id: int, new: int) -> None:
        identity = bpf.identify_program(new)
        self.new_id, self.new_tag = identity.id, identity.tag
        self._directory = directory
        self._flags = flags
        self._old = old
        self._old_id = old_id
        self._new = new
        self._exchanged = False
        self._links: list[int] = []

    def apply(self) -> bool:
        """Exchange the programs; False when the old one is not there any more. Raises OSError."""
        if not self._flags & bpf.ALLOW_MULTI:
            # The kernel replaces whatever is attached: a look before is all that can be done.
            if bpf.attached(self._directory)[0] != (self._old_id,):
                return False
            bpf.attach(self._directory, self._new, self._flags)
            self._exchanged = True
            return True
        try:
            bpf.replace(self._directory, self._new, self._old)
            self._exchanged = True
        except FileNotFoundError:
            pass  # held by a link, or gone
        if not self._exchanged or self._old_id in bpf.attached(self._directory)[0]:
            self._update_links()
        return self._exchanged or bool(self._links)

    def _update_links(self) -> None:
        for link in bpf.links(os.fstat(self._directory).st_ino, self._old_id):
            try:
                bpf.update_link(link, self._new, self._old)
                self._links.append(link)
                link = -1
            except PermissionError:
                pass  # it holds another program by now
            finally:
                if link >= 0:
                    os.close(link)

    def undo(self) -> None:
        """Put the old program back wherever the new one still is. Raises OSError."""
        while self._links:
            link = self._links.pop()
            try:
                bpf.update_link(link, self._old, self._new)
            except OSError as error:
                # Another program by now, or its cgroup is gone.
                if error.errno not in (errno.EPERM, errno.ENOLINK):
                    raise
            finally:
                os.close(link)
        if not self._exchanged:
            return
        self._exchanged = False
        try:
            if self._flags & bpf.ALLOW_MULTI:
                bpf.replace(self._directory, self._old, self._new)
            elif bpf.attached(self._directory)[0] == (self.new_id,):
                bpf.attach(self._directory, self._old, self._flags)
        except OSError as error:
            # Replaced by somebody else, or the cgroup is gone.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def close(self) -> None:
        """Close everything; what is attached stays so."""
        for descriptor in (self._old, self._new, *self._links):
            os.close(descriptor)
        self._links = []
