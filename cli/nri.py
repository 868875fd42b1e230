"""`nvc-nri`: GPUs and slices of them by annotations of pods, in the foreground."""

from __future__ import annotations

from typing import NoReturn

from nvc.base.errors import InputError
from nvc.frontends.nri.main import Settings
from nvc_cli.boot import configuration
from nvc_cli.resident import stay

USAGE = """Usage: nvc-nri [options]

Gives containers of containerd or CRI-O the GPUs, or slices of them, that the
annotations of their pods ask for, as a plugin of the Node Resource Interface.
Runs in the foreground, as root, until SIGTERM or until the runtime ends; running
containers keep what they have. See docs/nri.md.

  --socket PATH          the runtime's socket; default: /var/run/nri/nri.sock
  --namespaces LIST      only pods of these namespaces may ask; default: all
  --index NN             place among the runtime's plugins; default: 10
  --root DIR             driver root; default: as configured
  --config FILE          settings; default: the first of /etc/nvc/config.toml and
                         /etc/nvidia-container-runtime/config.toml
  --hook-path FILE       nvc-cdi-hook as the container runtime finds it; default:
                         beside this program
  --version              print the version
  -h, --help             print this
"""
PATHS = ("socket", "root", "config", "hook-path")
OPTIONS = ("namespaces", "index", *PATHS)


def main(program: str = "nvc-nri") -> NoReturn:
    """Run until a signal or the runtime ends it; the exit code is 0 then."""
    stay(program, USAGE, (OPTIONS, PATHS, ()), _run, "protobuf (protobuf)")


def _run(values: dict[str, str]) -> None:
    from nvc.frontends.nri.main import run

    run(settings_of(values), lambda: configuration(values.get("config", ""), values.get("root", "")))


def settings_of(values: dict[str, str]) -> Settings:
    """The settings of the plugin. Raises InputError."""
    from nvc.frontends.nri.main import Settings

    index = values.get("index", "10")
    if not (index.isascii() and index.isdigit() and len(index) == 2):
        raise InputError("--index", index, "want two digits")
    namespaces = tuple(filter(None, values.get("namespaces", "").split(",")))
    if "namespaces" in values and not namespaces:
        raise InputError("--namespaces", values["namespaces"], "want names with commas between them")
    known = {name.replace("-", "_"): values[name] for name in ("socket", "hook-path") if name in values}
    return Settings(**known, index=index, namespaces=namespaces)
