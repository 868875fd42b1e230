"""Where loaders and drivers keep libraries."""

from __future__ import annotations

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
