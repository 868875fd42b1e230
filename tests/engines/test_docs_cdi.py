"""docs/cdi.md and the systemd units: every command as written, on a host with a simulated driver."""

from __future__ import annotations

import os
import re

import pytest
from support import REPO
from support.engines import DRIVER, Host

from nvc.frontends.cdi.document import STRATEGIES
from nvc.frontends.cdi.hooks.arguments import OPTIONS
from nvc_cli.cdi import cdi

with open(os.path.join(REPO, "docs/cdi.md"), encoding="utf-8") as file:
    TEXT = file.read()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
#: What a distribution's podman has by itself, and a test's machine not: limits and cgroups that root may not raise.
#: And no conmon between a container and who reads what it says (DIRECT in tests/support/engines.py).
CONTAINERS_CONF = """[containers]
log_driver = "passthrough"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
"""
STORAGE_CONF = (
    '[storage]\ndriver = "vfs"\nrunroot = "/run/storage"\ngraphroot = "/var/lib/containers/storage"\n'
)
UNITS = os.path.join(REPO, "packaging/systemd")


@pytest.fixture(scope="module")
def machine(host: Host) -> Host:
    """The host with an image named `ubuntu`."""
    host.write("/etc/containers/containers.conf", CONTAINERS_CONF)
    host.write("/etc/containers/storage.conf", STORAGE_CONF)
    host.sh("tar -C /run/rootfs -c . | podman import - localhost/ubuntu:latest")
    host.sh(f"nvc-cli sim destroy {DRIVER}")  # the page begins without
    return host


@pytest.mark.nightly
def test_every_command_of_the_page(machine: Host) -> None:
    assert len(COMMANDS) > 10
    said = {command: machine.sh(command).stdout for command in COMMANDS}
    smi = [out.count("GPU-") for command, out in said.items() if command.endswith("nvidia-smi -L")]
    assert smi == [2, 1]
    parts = [out for command, out in said.items() if command.endswith("ubuntu nvidia-smi")]
    assert "10240MiB" in parts[0] and "20389MiB" in parts[1]
    listed = said[f"nvc-cli --root {DRIVER} cdi list"].split()
    assert {"nvidia.com/gpu=all", "nvidia.com/gpu=0", "nvidia.com/gpu=1"} <= set(listed)


def test_the_page_has_every_option_and_hook() -> None:
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    code = {word for text in re.findall(r"`([^`]+)`", prose) for word in re.split(r"[ =|,\\]+", text)}
    for name, command in cdi.commands.items():
        assert f"cdi {name}" in TEXT
        for parameter in command.params:
            wanted = [option for option in parameter.opts if option.startswith("--")]
            assert not wanted or any(option in TEXT for option in wanted), (name, wanted)
    for name, options in OPTIONS.items():
        assert {name, *(f"--{option}" for option in options)} <= code
    assert set(STRATEGIES) <= code


def test_the_units_are_sound(host: Host) -> None:
    for name in ("nvc-cdi-refresh.service", "nvc-cdi-refresh.path"):
        with open(f"{UNITS}/{name}", encoding="utf-8") as unit:
            host.write(f"/etc/systemd/system/{name}", unit.read())
    done = host.sh("systemd-analyze verify /etc/systemd/system/nvc-cdi-refresh.*", check=False)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "nvc-cdi-refresh" in line]
    assert ours == [] and done.returncode == 0, done


def test_what_the_service_runs(host: Host) -> None:
    """Its command with its capabilities, as systemd would run it, and options from its file."""
    with open(f"{UNITS}/nvc-cdi-refresh.service", encoding="utf-8") as unit:
        settings = dict(line.split("=", 1) for line in unit.read().splitlines() if re.match(r"\w+=", line))
    kept = ",".join(
        "+" + name.removeprefix("CAP_").lower() for name in settings["CapabilityBoundingSet"].split()
    )
    host.sh("rm -rf /run/cdi")
    host.simulate(gpus=2)
    script = f"export NVC_OPTIONS='--root {DRIVER}' NVC_CDI_OPTIONS='--device-name-strategy uuid'\n"
    script += f"setpriv --no-new-privs --bounding-set=-all,{kept} --inh-caps=-all {settings['ExecStart']}"
    assert "written, 3 devices" in host.sh(script).stdout
    assert "unchanged" in host.sh(script).stdout
    assert host.sh("ls -l /run/cdi").stdout.split("\n")[1].startswith("-rw-r--r--")
    host.sh("rm -r /run/cdi")


def test_the_compat_hook_is_left_out_where_the_configuration_says_so(host: Host) -> None:
    host.simulate(gpus=1)
    command = f"nvc-cli --root {DRIVER} cdi generate"
    assert "enable-cuda-compat" in host.sh(command).stdout
    host.write("/etc/nvc/config.toml", "[features]\ndisable-cuda-compat-lib-hook = true\n")
    assert "enable-cuda-compat" not in host.sh(command).stdout
    host.sh("rm /etc/nvc/config.toml")
