"""nvidia-ctk beside NVIDIA's own program: its options and variables, its exit codes, and the names of devices."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import chain

import click
import pytest
import yaml
from support import foreign, run
from support.clients import client_ran
from support.ctk import Ctk

from nvc_cli.ctk import tree

pytestmark = pytest.mark.nightly
COMMANDS = (
    "", "cdi generate", "cdi list", "cdi transform root", "system create-device-nodes",
    "system create-dev-char-symlinks", "config", "config default", "runtime configure",
)  # fmt: skip
CALLS = (
    "", "--version", "info", "cdi", "smi", "cdi smi", "hook", "hook later", "hook later --folder /x",
    "cdi generate --x", "cdi generate --format=toml", "cdi generate --vendor=-", "cdi generate --mode=some",
    "cdi generate --device-name-strategy=some", "cdi generate --enable-hook=all", "cdi list --spec-dir /nowhere",
    "cdi list --quiet --spec-dir /nowhere", "cdi list --config /nowhere -d", "config default --debug",
    "cdi transform root --relative-to=some", "cdi transform root --input=/nowhere", "config", "config default",
    "config --set some.key", "config --set nvidia-container-cli.no-cgroups=some", "config --set swarm-resource",
    "runtime configure --runtime=podman", "runtime configure --dry-run --config=/nowhere",
    "runtime configure --dry-run=true --runtime=crio --config=/nowhere", "runtime configure --drop-in-config=/x",
    "runtime configure --runtime=crio --drop-in-config=x", "runtime configure --config-mode=oci-hook",
    "runtime configure --runtime=crio --nvidia-runtime-path=runtime", "system create-device-nodes",
    "system create-device-nodes --control-devices --dry-run", "system create-dev-char-symlinks --dry-run",
    "system create-dev-char-symlinks --create-all --dry-run",
)  # fmt: skip


@pytest.fixture(scope="module")
def peer() -> str:
    return os.path.join(foreign.toolkit(), "nvidia-ctk")


def found(words: list[str]) -> click.Command:
    """The command of these words."""
    command: click.Command = tree
    for word in words:
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), word)
        assert inner is not None
        command = inner
    return command


def test_version() -> None:
    """That of its sources: a program that is built of a module alone does not know it."""
    what = "nvc's program has its commands, options, variables, exit codes and names of devices"
    client_ran("nvidia-ctk", foreign.TOOLKIT.lstrip("v"), "root", what)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_and_variable(peer: str, words: str) -> None:
    text = run(peer, *words.split(), "--help").stdout.partition("OPTIONS:\n")[2].partition("GLOBAL OPTIONS")[0]
    theirs = set(re.findall(r"(?<![\w-])--?[a-z][a-z.-]*", " ".join(re.findall(r"^ +(-.*?)(?:  |$)", text, re.M))))
    assert "--help" in theirs and len(theirs) > 2
    options = [one for one in found(words.split()).get_params(click.Context(tree)) if isinstance(one, click.Option)]
    ours = set(chain.from_iterable(one.opts for one in options))
    assert theirs - ours == {"-h"}
    variables = set(re.findall(r"\$([A-Z_]+)", " ".join(re.findall(r"\[(\$[^\]]+)\]", text))))
    envvars = [one.envvar or () for one in options]
    known = {name for one in envvars for name in ([one] if isinstance(one, str) else one)}
    assert variables - known == set()


@pytest.mark.parametrize("words", CALLS)
def test_every_exit_code(ctk: Ctk, peer: str, words: str) -> None:
    assert ctk(*words.split(), check=False).returncode == run(peer, *words.split(), check=False).returncode


def test_the_names_of_devices(ctk: Ctk, peer: str, sim_root: Callable[..., str]) -> None:
    """NVIDIA's program reads capabilities below the host's own /proc."""
    root = sim_root(gpus=2, mig=("", "1g.10gb,2g.20gb"))
    script = 'mount --bind "$1/proc/driver" /proc/driver && exec "$2" cdi generate --driver-root="$1"'
    theirs = yaml.safe_load(run("unshare", "--mount", "sh", "-c", script, "sh", root, peer).stdout)
    ours = yaml.safe_load(ctk("cdi", "generate", f"--driver-root={root}").stdout)
    assert {one["name"] for one in ours["devices"]} == {one["name"] for one in theirs["devices"]}
    assert ours["kind"] == theirs["kind"] and ours["cdiVersion"] == theirs["cdiVersion"]
