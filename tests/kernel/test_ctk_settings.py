"""nvidia-ctk config and runtime configure: the files that they print and write."""

from __future__ import annotations

import json
import os

import pytest
from support import run
from support.ctk import Ctk, refused

from nvc.request.config.file import parse

# The configuration


def test_config_prints_what_hooks_read(ctk: Ctk, scratch: str) -> None:
    text = "# mine\n[nvidia-container-cli]\nno-cgroups = false\n"
    with open(f"{scratch}/config.toml", "w", encoding="ascii") as out:
        out.write(text)
    assert ctk("config", "--config-file", f"{scratch}/config.toml").stdout == text
    assert ctk("config", NVIDIA_CTK_CONFIG_FILE_PATH=f"{scratch}/config.toml").stdout == text


def test_config_of_defaults(ctk: Ctk, scratch: str) -> None:
    text = ctk("config", "default").stdout
    assert parse(text.encode(), "") == parse(b"", "") and '\nmode = "auto"\n' in text
    assert "\n#no-cgroups = false\n" in text and "[nvc]" not in text
    ctk("config", "create-default", f"--output={scratch}/new/config.toml", check=False)
    ctk("config", "default", f"--output={scratch}/new/config.toml")
    with open(f"{scratch}/new/config.toml", encoding="utf-8") as file:
        assert file.read() == text
    assert ctk("config", "-c", f"{scratch}/none.toml").stdout == text


def test_config_in_place(ctk: Ctk, scratch: str) -> None:
    path = f"{scratch}/etc/config.toml"
    sets = (
        "nvidia-container-cli.no-cgroups", "nvidia-container-runtime.mode=cdi",
        "nvidia-container-runtime.runtimes=crun:runc", "accept-nvidia-visible-devices-as-volume-mounts=T",
    )  # fmt: skip
    done = ctk("config", f"--config-file={path}", "--in-place", *(word for one in sets for word in ("--set", one)))
    assert done.stdout == ""
    with open(path, "rb") as file:
        found = parse(file.read(), path)
    assert (found.no_cgroups, found.mode, found.runtimes, found.accept_volume_mounts) == (
        True, "cdi", ("crun", "runc"), True,
    )  # fmt: skip
    ctk("config", "-c", path, "-i", "--set", "nvidia-container-runtime.mode=nil", "--set",
        "nvidia-container-runtime.modes.cdi.annotation-prefixes=a.io/,b.io/")  # fmt: skip
    with open(path, "rb") as file:
        found = parse(file.read(), path)
    assert found.mode == "auto" and found.cdi_annotation_prefixes == ("a.io/", "b.io/")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--set", "nvidia-container-cli.no-such"], "unknown key"),
        (["--set", "nvidia-container-runtime.mode"], "want KEY=VALUE"),
        (["--set", "nvidia-container-runtime.mode=often"], "want one of auto"),
        (["--set", "nvidia-container-cli.no-cgroups=perhaps"], "want true or false"),
        (["--in-place", "--output=/tmp/x"], "not together"),
        (["--set", "disable-require", "default"], "for it alone"),
    ],
)
def test_config_refuses(ctk: Ctk, scratch: str, words: list[str], why: str) -> None:
    refused(ctk("config", f"--config-file={scratch}/none.toml", *words, check=False), why)


# Engines


def test_docker(ctk: Ctk, scratch: str, launcher: str) -> None:
    path = f"{scratch}/daemon.json"
    words = ("runtime", "configure", "--runtime=docker", f"--config={path}")
    found = ctk(*words, "--dry-run", "--runtime-path=sh").stdout
    assert '"path": "/usr/bin/sh"' in found, "as dockerd would find it"
    shown = ctk(*words, "--dry-run").stdout
    assert not os.path.exists(path)
    done = ctk(*words)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert text == shown and done.stdout == "" and "systemctl restart docker" in done.stderr
    assert json.loads(text)["runtimes"]["nvidia"]["path"] == f"{os.path.dirname(launcher)}/nvc-runtime"
    ctk(*words, "--set-as-default=true", "--nvidia-runtime-name=other")
    with open(path, encoding="utf-8") as file:
        assert json.load(file)["default-runtime"] == "other"
    assert ctk("--quiet", *words).stderr == ""
    run(launcher, "runtime", "configure", "--engine=docker", "--config", path, "--remove")
    assert not os.path.exists(path)


def test_the_runtime_under_nvidias_name_is_the_same(ctk: Ctk, scratch: str, launcher: str) -> None:
    """What NVIDIA's program has written stays valid when its name leads here."""
    link, path = f"{scratch}/nvidia-container-runtime", f"{scratch}/daemon.json"
    words = ("runtime", "configure", f"--config={path}")
    with open(path, "w", encoding="ascii") as out:
        json.dump({"runtimes": {"nvidia": {"args": [], "path": link}}}, out)
    refused(ctk(*words, check=False), "already exists")
    os.symlink(f"{os.path.dirname(launcher)}/nvc-runtime", link)
    ctk(*words, f"--nvidia-runtime-path={link}")
    with open(path, encoding="utf-8") as file:
        assert json.load(file)["runtimes"]["nvidia"]["path"] == link


def test_crio(ctk: Ctk, scratch: str) -> None:
    path = f"{scratch}/crio.conf.d/99-nvidia.toml"
    ctk("runtime", "configure", "--runtime=crio", f"--drop-in-config={path}", "--cdi.enabled", "--set-as-default")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert 'default_runtime = "nvidia"' in text and "[crio.runtime.runtimes.nvidia]" in text
    ctk("runtime", "configure", "--runtime=crio", f"--config={scratch}/crio.conf", '--drop-in-config=')
    assert os.path.exists(f"{scratch}/crio.conf")


def test_a_hook_in_place_of_the_runtime(ctk: Ctk, scratch: str, launcher: str) -> None:
    words = ("runtime", "configure", "--config-mode=oci-hook")
    hook = json.loads(ctk(*words).stdout)["hook"]
    assert hook["path"] == f"{os.path.dirname(launcher)}/nvc-hook"
    ctk(*words, f"--oci-hook-path={scratch}/hook.json", "--nvidia-runtime-hook-path=/opt/nvc-hook")
    with open(f"{scratch}/hook.json", encoding="utf-8") as file:
        assert json.load(file)["hook"]["path"] == "/opt/nvc-hook"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--runtime=podman"], "podman"),
        (["--config-mode=magic"], "want config-file or oci-hook"),
        (["--drop-in-config=/x"], "dockerd reads one file"),
        (["--config-source=command"], "containerd"),
        (["--executable-path=/bin/true"], "containerd"),
        (["--oci-hook-path=/x"], "--config-mode=oci-hook"),
        (["--nvidia-runtime-path=/nowhere"], "is not a program"),
        (["--runtime=crio", "--drop-in-config=x"], "absolute path"),
    ],
)
def test_runtime_configure_refuses(ctk: Ctk, words: list[str], why: str) -> None:
    refused(ctk("runtime", "configure", *words, check=False), why)
