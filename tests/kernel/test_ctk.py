"""nvidia-ctk on a simulated driver: the calls of guides, of configuration management and of other programs."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from typing import Any

import click
import pytest
from support.ctk import Ctk, refused

from nvc.discovery.driver.ldcache import parse_cache
from nvc.frontends.cdi.store import read_spec
from nvc_cli.ctk import tree


def spec(path: str) -> dict[str, Any]:
    """A valid specification."""
    found = read_spec(path)
    assert not found.problems
    return found.document


def nodes(document: dict[str, Any]) -> list[str]:
    """Where the nodes of the first device are on the host."""
    return [node.get("hostPath", node["path"]) for node in document["devices"][0]["containerEdits"]["deviceNodes"]]


# What people type


def test_list(ctk: Ctk, driver: str, scratch: str) -> None:
    ctk("cdi", "generate", "--driver-root", driver, f"--output={scratch}/nvidia.json")
    for call in (ctk("cdi", "list", "--spec-dir", scratch), ctk("cdi", "list", NVIDIA_CTK_CDI_SPEC_DIRS=scratch)):
        assert {"nvidia.com/gpu=0", "nvidia.com/gpu=all"} <= set(call.stdout.splitlines())
    assert ctk("cdi", "list", "--spec-dir", f"{scratch}/none").stdout == ""


def test_every_option_of_generate(ctk: Ctk, driver: str, scratch: str) -> None:
    path = f"{scratch}/all.yaml"
    ctk(
        "--quiet=false", "cdi", "generate", "--mode=nvml", f"--driver-root={driver}", f"--dev-root={driver}",
        "--device-name-strategy=type-index", "--vendor=example.com", "--class=card", f"--output={path}",
        "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook", "--ldconfig-path=/sbin/ldconfig.real",
        "--disable-hook=enable-cuda-compat", "--disable-hook=chmod", "--feature-flag=disable-ipc-discoverer",
        "--no-all-device=true", "--device-id=0",
    )  # fmt: skip
    found = spec(path)
    assert found["kind"] == "example.com/card" and [one["name"] for one in found["devices"]] == ["gpu0"]
    assert all(path.startswith(f"{driver}/dev/") for path in nodes(found))
    hooks = {hook["args"][1]: hook for hook in found["containerEdits"]["hooks"]}
    assert hooks["update-ldcache"]["path"] == "/usr/bin/nvidia-cdi-hook"
    assert "--ldconfig-path=/sbin/ldconfig.real" in hooks["update-ldcache"]["args"]
    assert "enable-cuda-compat" not in hooks
    assert not [mount for mount in found["containerEdits"]["mounts"] if "persistenced" in mount["containerPath"]
                and mount["containerPath"].endswith("socket")]  # fmt: skip


def test_variables_of_generate(ctk: Ctk, driver: str, scratch: str) -> None:
    prefix = "NVIDIA_CTK_CDI_GENERATE_"
    ctk(
        "cdi", "generate",
        NVIDIA_CTK_DRIVER_ROOT=driver, NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=f"{scratch}/spec.json",
        **{f"{prefix}DEVICE_NAME_STRATEGIES": "uuid,type-index", f"{prefix}DEVICE_IDS": "1",
           f"{prefix}NO_ALL_DEVICE": "true", f"{prefix}VENDOR": "example.com"},
    )  # fmt: skip
    found = spec(f"{scratch}/spec.json")
    assert found["kind"] == "example.com/gpu"
    uuid, index = (one["name"] for one in found["devices"])
    assert uuid.startswith("GPU-") and index == "gpu1"


def test_nodes_of_another_root(ctk: Ctk, driver: str, scratch: str) -> None:
    """A driver container whose nodes are the host's: what is not there is left to the engine."""
    words = ("cdi", "generate", "--format=json", f"--driver-root={driver}")
    found = json.loads(ctk(*words, f"--dev-root={scratch}").stdout)
    assert all(path.startswith(f"{scratch}/dev/") for path in nodes(found))
    same = json.loads(ctk(*words).stdout)
    assert all(path.startswith(f"{driver}/dev/") for path in nodes(same)), "what was found is not kept for others"


def test_the_driver_root_of_a_configuration(ctk: Ctk, driver: str, scratch: str) -> None:
    with open(f"{scratch}/config.toml", "w", encoding="ascii") as out:
        out.write(f'[nvidia-container-cli]\nroot = "{driver}"\n')
    for done in (
        ctk("--config", f"{scratch}/config.toml", "cdi", "generate", "--format=json"),
        ctk("cdi", "generate", "--format=json", NVIDIA_CTK_CONFIG=f"{scratch}/config.toml"),
    ):
        assert driver in nodes(json.loads(done.stdout))[0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--mode=csv"], "no driver of Tegra systems"),
        (["--mode=mig-caps"], "come with --mode=nvml"),
        (["--mode=nothing"], "want auto, nvml, wsl, gds"),
        (["--mode=wsl"], "this is not WSL"),
        (["--csv.file=/etc/x.csv"], "no driver of Tegra systems"),
        (["--config-search-path=/etc"], "leave it out"),
        (["--feature-flag=enable-coherent-annotations"], "no annotations"),
        (["--enable-hook=all"], "all"),
        (["--device-name-strategy=name"], "name"),
        (["--dev-root=dev"], "absolute path"),
        (["--no-all-device=perhaps"], "true or false"),
        (["--nonsense"], "unrecognized option"),
    ],
)
def test_what_makes_no_sense_is_refused(ctk: Ctk, driver: str, words: list[str], why: str) -> None:
    refused(ctk("cdi", "generate", f"--driver-root={driver}", *words, check=False), why)


def test_transform(ctk: Ctk, driver: str, scratch: str) -> None:
    ctk("cdi", "generate", "--driver-root", driver, f"--output={scratch}/in.yaml")
    ctk("cdi", "transform", "root", f"--from={driver}", "--to=/host", f"--input={scratch}/in.yaml",
        f"--output={scratch}/out.yaml")  # fmt: skip
    assert all(path.startswith("/host/dev/") for path in nodes(spec(f"{scratch}/out.yaml")))
    refused(ctk("cdi", "transform", "root", "--relative-to=moon", check=False), "moon")


def test_control_devices(ctk: Ctk, driver: str, scratch: str) -> None:
    wanted = {"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"}
    os.makedirs(f"{scratch}/dev")
    words = ["system", "create-device-nodes", "--control-devices"]
    words += [f"--driver-root={driver}", f"--dev-root={scratch}"]
    told = ctk(*words, DRY_RUN="true").stderr
    assert os.listdir(f"{scratch}/dev") == [] and all(f"would make {scratch}/dev/{one} " in told for one in wanted)
    ctk(*words)
    assert set(os.listdir(f"{scratch}/dev")) == wanted
    for one in wanted:
        made, there = os.stat(f"{scratch}/dev/{one}"), os.stat(f"{driver}/dev/{one}")
        assert stat.S_ISCHR(made.st_mode) and made.st_rdev == there.st_rdev and made.st_mode & 0o777 == 0o666
    assert ctk(*words).stderr == "", "what is there stays"
    assert ctk("system", "create-device-nodes", f"--driver-root={driver}").stderr == ""


def test_no_driver_no_nodes(ctk: Ctk, scratch: str) -> None:
    done = ctk("system", "create-device-nodes", "--control-devices", f"--dev-root={scratch}", check=False)
    refused(done, "kernel modules are not loaded; add --load-kernel-modules")


def test_dev_char_links(ctk: Ctk, driver: str, scratch: str) -> None:
    words = ["system", "create-dev-char-symlinks", f"--driver-root={driver}", f"--dev-char-path={scratch}/char"]
    assert "would link" in ctk(*words, "--dry-run").stderr and not os.path.exists(f"{scratch}/char")
    ctk(*words)
    links = {name: os.readlink(f"{scratch}/char/{name}") for name in os.listdir(f"{scratch}/char")}
    number = os.stat(f"{driver}/dev/nvidia1").st_rdev
    assert links[f"{os.major(number)}:{os.minor(number)}"] == f"{driver}/dev/nvidia1"
    ctk(*words, "--create-all")
    assert set(links) < set(os.listdir(f"{scratch}/char")), "also for MIG devices that nobody has made yet"
    assert ctk(*words, "--create-all").stderr == ""
    os.unlink(f"{scratch}/char/195:255")
    os.symlink("/dev/null", f"{scratch}/char/195:255")
    assert "it stays" in ctk(*words).stderr and os.readlink(f"{scratch}/char/195:255") == "/dev/null"


@pytest.mark.parametrize("option", ["--load-kernel-modules", "--create-device-nodes", "--watch"])
def test_dev_char_links_refuse(ctk: Ctk, option: str) -> None:
    refused(ctk("system", "create-dev-char-symlinks", option, check=False), option)


def test_print_ldcache(ctk: Ctk, driver: str) -> None:
    with open(f"{driver}/etc/ld.so.cache", "rb") as file:
        paths = {path for _, _, path in parse_cache(file.read())}
    assert set(ctk("system", "print-ldcache", f"--driver-root={driver}").stdout.splitlines()) == paths


# The program itself


def test_every_help_fits_a_terminal(ctk: Ctk) -> None:
    def paths(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            for one in command.list_commands(ctx):
                inner = command.get_command(ctx, one)
                assert inner is not None
                yield from paths(inner, (*words, one))

    for words in paths(tree, ()):
        if words != ("hook",):
            shown = ctk(*words, "--help").stdout
            assert shown.startswith("Usage: nvidia-ctk") and max(map(len, shown.splitlines())) <= 80, words
