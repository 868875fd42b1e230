"""NVIDIA's names of programs, for all ways to install: alternatives of the packages, links of `make install`."""

from __future__ import annotations

#: NVIDIA's names, and the program that each is: the launcher goes by the name that it was executed under.
NVIDIAS = {
    "nvidia-container-cli": "nvc-cli",
    "nvidia-ctk": "nvc-cli",
    "nvidia-container-runtime-hook": "nvc-hook",
    "nvidia-container-toolkit": "nvc-hook",
    "nvidia-container-runtime": "nvc-runtime",
    "nvidia-container-runtime.cdi": "nvc-runtime",
    "nvidia-container-runtime.legacy": "nvc-runtime",
    "nvidia-cdi-hook": "nvc-cdi-hook",
}
