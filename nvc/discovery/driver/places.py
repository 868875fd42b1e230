"""Where loaders and drivers keep libraries."""

from __future__ import annotations

from nvc.base.types import Iterator

#: Where drivers are found that the loader cache does not know.
DIRECTORIES = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/x86_64-linux-gnu/nvidia/current",
               "/usr/lib64/nvidia", "/usr/lib/nvidia", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
               "/run/opengl-driver/lib", "/usr/lib", "/lib64", "/opt/nvidia/lib64", "/usr/lib/wsl/lib"),
    "i386": ("/usr/lib/i386-linux-gnu", "/usr/lib32", "/usr/lib/i386-linux-gnu/nvidia/current",
             "/usr/lib/nvidia", "/usr/lib", "/usr/local/nvidia/lib", "/usr/local/nvidia/lib32",
             "/run/opengl-driver-32/lib", "/usr/lib32/nvidia"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu/nvidia/current",
                "/usr/lib64/nvidia", "/usr/lib/nvidia", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
                "/run/opengl-driver/lib", "/usr/lib", "/lib64"),
    "arm": ("/usr/lib/arm-linux-gnueabihf", "/usr/lib/nvidia", "/usr/lib", "/usr/local/nvidia/lib"),
}  # fmt: skip
#: The 32-bit architecture that a 64-bit one runs as well.
COMPAT = {"x86_64": "i386", "aarch64": "arm"}


def prefixes(directory: str) -> Iterator[str]:
    """Where a driver with libraries in `directory` may be: /usr for /usr/lib/x86_64-linux-gnu."""
    while directory.count("/") > 1:
        directory, _, name = directory.rpartition("/")
        if name in ("lib", "lib64", "lib32"):
            yield directory
