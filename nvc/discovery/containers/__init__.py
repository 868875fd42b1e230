"""What container engines on this host call their containers, read from the files that they keep.

No engine is asked: a daemon that hangs would hold up whoever lists slices. Nothing in these files is trusted: reads
are bounded, links are not followed, and names lose their control characters. What cannot be read has no name.
"""

from __future__ import annotations

from nvc.base.value import Value

SHORT_ID = 12  # characters of a long id that engines show


class ContainerName(Value):
    """What an engine calls one container. Each field is printable text; "" where it is not known."""

    engine: str = ""  # docker, podman, containerd or cri-o
    id: str = ""
    name: str = ""
    pod: str = ""  # in Kubernetes
    namespace: str = ""  # of the pod
    realm: str = ""  # containerd's own namespace, such as k8s.io

    @property
    def short_id(self) -> str:
        """The id as `docker ps` shows it; an id that somebody chose stays whole."""
        return self.id[:SHORT_ID] if is_long_id(self.id) else self.id

    @property
    def label(self) -> str:
        """For people: NAMESPACE/POD/NAME in Kubernetes, else the name, else the short id."""
        if self.pod and self.name:
            return "/".join(part for part in (self.namespace, self.pod, self.name) if part)
        return self.name or self.short_id

    @property
    def aliases(self) -> tuple[str, ...]:
        """Everything that a user may call it, apart from the beginning of its id."""
        found = [self.label, self.name, self.id]
        if self.pod:
            found += [self.pod, f"{self.pod}/{self.name}"]
        elif self.realm and self.name:
            found.append(f"{self.realm}/{self.name}")
        return tuple(dict.fromkeys(alias for alias in found if alias))


def is_long_id(text: str) -> bool:
    """Whether this is an id as engines make them: 64 hexadecimal digits."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")
