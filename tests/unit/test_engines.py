"""Which keys each engine gets. containerd 2 and CRI-O are in no distribution at hand: their documents are."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
from support import REPO, run

from nvc.frontends.engines import (
    EngineError,
    FileEdit,
    Registration,
    Wanted,
    ask,
    containerd,
    crio,
    docker,
    hooksd,
    link,
    podman,
)
from nvc.frontends.engines.ask import ContainerdState
from nvc.frontends.engines.files import change

PATH, HOOK = "/usr/local/bin/nvc-runtime", "/usr/local/bin/nvc-hook"
V2 = "io.containerd.grpc.v1.cri"
V3 = "io.containerd.cri.v1.runtime"


@pytest.fixture
def etc(tmp_path: object) -> str:
    return os.path.realpath(str(tmp_path))


def wanted(config: str = "", **more: Any) -> Wanted:
    return Wanted("nvc", PATH, HOOK, config=config, **more)


def write(path: str, text: str) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    return path


def after(edit: FileEdit) -> Any:
    """The document that an edit leaves."""
    made = change.configure(edit)
    change.make(made)
    return change.document_of(edit.path, edit.form)


def keys(found: Registration) -> dict[tuple[str, ...], Any]:
    return {key.path: key.value for edit in found.edits for key in edit.keys}


def test_docker(etc: str) -> None:
    path = f"{etc}/daemon.json"
    found = docker.registration(wanted(path, default=True, cdi=True), (28, 2))
    assert after(found.edits[0]) == {
        "runtimes": {"nvc": {"path": PATH, "runtimeArgs": []}},
        "default-runtime": "nvc",
        "features": {"cdi": True},
    }
    assert any("--hook-link" in line for line in found.advice)
    found = docker.registration(wanted(path, hook_link="/usr/local/sbin"), ())
    assert found.link == ("/usr/local/sbin/nvidia-container-runtime-hook", HOOK)


@pytest.fixture
def path(etc: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory that stands for all of dockerd's PATH."""
    monkeypatch.setattr(ask, "DIRECTORIES", (f"{etc}/nothing", f"{etc}/bin"))
    os.mkdir(f"{etc}/bin")
    return f"{etc}/bin/{docker.HOOK_NAME}"


def advice(etc: str, *version: int) -> str:
    return " ".join(docker.registration(wanted(f"{etc}/daemon.json"), version).advice)


def test_docker_29_has_a_second_way(etc: str, path: str) -> None:
    """It gives GPUs by CDI where it finds that hook; without either, its message names another vendor."""
    assert 'Docker 29 says "AMD CDI spec not found"' in advice(etc, 29, 8, 1)
    assert "AMD" not in advice(etc, 28, 5, 2)
    os.symlink("/usr/bin/nvc-cdi-hook", f"{etc}/bin/{docker.CDI_NAME}")
    assert "--gpus` uses CDI, and needs its specifications: nvc-cli cdi refresh" in advice(etc, 29, 8, 1)
    assert "--hook-link" in advice(etc, 28, 5, 2)
    os.symlink("/usr/bin/nvc-hook", path)
    assert "--gpus" not in advice(etc, 29, 8, 1)


@pytest.mark.parametrize("target", ["/usr/bin/nvidia-ctk", "bin/nvidia-container-runtime-hook", ""])
def test_docker_names_a_hook_that_is_not_ours(etc: str, path: str, target: str) -> None:
    """Also a link that leads to itself, and a file."""
    os.symlink(os.path.join(etc, target), path) if target else write(path, "")
    assert f"`docker run --gpus` uses {path}, which is not nvc's: {docker.LINK}" in advice(etc)
    with pytest.raises(EngineError, match="already exists"):
        link.state(path, HOOK)


def test_a_dry_run_reads_differently(etc: str, launcher: str) -> None:
    """The diff is the same; the line after it says whether it was made."""
    path = f"{etc}/containers.conf"
    words = ("runtime", "configure", "--engine", "podman", "--config", path)
    tried = run(launcher, *words, "--dry-run").stdout
    assert tried.startswith("--- /dev/null\n") and tried.endswith(f"\nwould write {path}\n")
    assert os.listdir(etc) == []
    assert run(launcher, *words).stdout == tried.replace("would write", "wrote") and os.path.exists(path)
    again = run(launcher, *words)
    assert again.stdout == "" and "podman: nothing to change: it is registered already" in again.stderr
    gone = run(launcher, *words, "--remove", "--dry-run").stdout
    assert gone.endswith(f"\nwould remove {path}\n") and os.path.exists(path)
    assert run(launcher, *words, "--remove").stdout == gone.replace("would remove", "removed")
    assert os.listdir(etc) == []


def test_who_unregisters_is_told_to_restart_the_engine(etc: str, launcher: str) -> None:
    """A running dockerd still offers the runtime."""
    words = ("runtime", "configure", "--engine", "docker", "--config", f"{etc}/daemon.json")
    run(launcher, *words)
    assert docker.RESTART in run(launcher, *words, "--remove").stderr
    again = run(launcher, *words, "--remove").stderr
    assert "nothing to remove" in again and docker.RESTART not in again


def test_a_dry_run_of_a_link_that_is_not_ours(etc: str, launcher: str) -> None:
    """It said that it would remove the link, and did not."""
    config = write(f"{etc}/daemon.json", "{}")
    os.symlink("/usr/bin/nvidia-ctk", f"{etc}/{docker.HOOK_NAME}")
    words = (
        "runtime",
        "configure",
        "--engine",
        "docker",
        "--config",
        config,
        "--hook-link",
        etc,
        "--remove",
    )
    assert run(launcher, *words, "--dry-run").stdout == run(launcher, *words).stdout == ""
    os.unlink(f"{etc}/{docker.HOOK_NAME}")
    os.symlink("/usr/bin/nvc-hook", f"{etc}/{docker.HOOK_NAME}")
    line = f"the link {etc}/{docker.HOOK_NAME}\n"
    assert run(launcher, *words, "--dry-run").stdout == f"would remove {line}"
    assert run(launcher, *words).stdout == f"removed {line}"


def test_docker_without_cdi(etc: str) -> None:
    with pytest.raises(EngineError, match=r"dockerd 20\.10\.24 has no CDI, which needs 25\.0"):
        docker.registration(wanted(f"{etc}/d", cdi=True), (20, 10, 24))


@pytest.mark.parametrize("path", ["/usr/bin/nvidia-container-runtime", "nvidia-container-runtime"])
def test_nothing_of_nvidia_is_overwritten(etc: str, path: str) -> None:
    entry = {"path": path, "args": []}
    file = write(
        f"{etc}/daemon.json",
        json.dumps({"runtimes": {"nvidia": entry, "nvc": {"path": "/old/nvc-runtime"}}}),
    )
    with pytest.raises(EngineError, match="nvidia already exists"):
        docker.registration(wanted(file).replace(runtime_name="nvidia"), ())
    assert after(docker.registration(wanted(file), ()).edits[0])["runtimes"]["nvidia"] == entry


def test_hooks_d(etc: str) -> None:
    """What is written is the template that packages install."""
    with open(f"{REPO}/packaging/hooks.d/nvc.json", encoding="utf-8") as template:
        text = template.read()
    assert hooksd.edits(wanted(hook_dir=etc), "", (), [etc])[0].content == text
    document = json.loads(text)
    assert document["version"] == "1.0.0" and document["stages"] == ["prestart"] and document["hook"]["env"]
    with pytest.raises(EngineError, match="a hook is not a runtime"):
        hooksd.edits(wanted(hook_dir=etc, default=True), "", (), [])


def test_podman(etc: str) -> None:
    path = f"{etc}/containers.conf"
    found = podman.registration(wanted(path, default=True))
    assert after(found.edits[0]) == {"engine": {"runtime": "nvc", "runtimes": {"nvc": [PATH]}}}
    write(path, '[engine.runtimes]\nnvc = ["/usr/bin/crun"]\n')
    with pytest.raises(EngineError, match="already exists: /usr/bin/crun"):
        podman.registration(wanted(path))


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("", [hooksd.BUILT_IN[0], "/h"]),
        ('[engine]\nhooks_dir = ["/a"]\n', ["/a", "/h"]),
        ('[engine]\nhooks_dir = ["/h"]\n', None),
    ],
)
def test_podman_reads_the_directory(etc: str, there: str, expected: list[str] | None) -> None:
    path = write(f"{etc}/containers.conf", there)
    found = podman.registration(wanted(path, hook_dir="/h"))
    assert keys(found) == ({} if expected is None else {("engine", "hooks_dir"): expected})


def test_crio(etc: str) -> None:
    path = f"{etc}/crio.conf"
    found = crio.registration(wanted(path, default=True))
    runtime = {"runtime_path": PATH, "runtime_type": "oci"}
    document = {"crio": {"runtime": {"default_runtime": "nvc", "runtimes": {"nvc": runtime}}}}
    assert after(found.edits[0]) == document
    assert after(crio.registration(wanted(path, default=True)).edits[0]) == document


@pytest.mark.parametrize(("there", "verb"), [(True, "reload"), (False, "restart")])
def test_crio_does_not_reload_a_directory_that_is_new(etc: str, there: bool, verb: str) -> None:
    if there:
        os.mkdir(f"{etc}/crio.conf.d")
    (line,) = crio.registration(wanted(f"{etc}/crio.conf.d/99-nvc.conf")).advice
    assert re.findall("systemctl (\\w+) crio", line)[0] == verb


def test_crio_copies_what_its_default_runtime_needs(etc: str) -> None:
    path = write(
        f"{etc}/crio.conf",
        '[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n'
        'monitor_path = "/usr/libexec/crio/conmon"\nallowed_annotations = ["a"]\nruntime_root = "/run/crun"\n',
    )
    made = after(crio.registration(wanted(path)).edits[0])["crio"]["runtime"]
    assert made["default_runtime"] == "crun"
    assert made["runtimes"]["nvc"] == {
        "runtime_path": PATH, "runtime_type": "oci", "runtime_root": "/run/crun",
        "monitor_path": "/usr/libexec/crio/conmon", "allowed_annotations": ["a"],
    }  # fmt: skip


def test_crio_hooks(etc: str) -> None:
    path = write(f"{etc}/crio.conf", "")
    found = crio.registration(wanted(path, hook_dir="/etc/containers/oci/hooks.d"))
    assert keys(found) == {
        ("crio", "runtime", "hooks_dir"): [
            "/usr/share/containers/oci/hooks.d",
            "/etc/containers/oci/hooks.d",
        ]
    }
    assert found.edits[0].path == "/etc/containers/oci/hooks.d/nvc.json"
    assert len(crio.registration(wanted(path, hook_dir=hooksd.BUILT_IN[0])).edits) == 1


def effective(version: int, plugin: str, **more: Any) -> dict[str, Any]:
    """As `containerd config dump` shows a release's defaults."""
    runc = {
        "runtime_type": "io.containerd.runc.v2", "runtime_path": "", "pod_annotations": [],
        "sandboxer": "podsandbox",
        "privileged_without_host_devices": False, "options": {"BinaryName": "", "SystemdCgroup": False, "Root": ""},
    }  # fmt: skip
    plugins = {plugin: {"containerd": {"default_runtime_name": "runc", "runtimes": {"runc": runc}}}}
    return {"version": version, "plugins": plugins, **more}


@pytest.mark.parametrize(("version", "plugin"), [(1, "cri"), (2, V2)])
def test_containerd_in_place(etc: str, version: int, plugin: str) -> None:
    """Copied from the runtime that the file has as its default, which is kept."""
    stated = "" if version == 1 else f"version = {version}\n"
    table = f'plugins."{plugin}".containerd'
    path = write(
        f"{etc}/config.toml",
        f'{stated}[{table}.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n  pod_annotations = ["p"]\n'
        f"  [{table}.runtimes.runc.options]\n    SystemdCgroup = true # as the kubelet\n",
    )
    found = containerd.registration(wanted(path, default=True), ContainerdState((1, 6, 20), effective(2, V2)))
    assert [edit.path for edit in found.edits] == [path]
    made = after(found.edits[0])["plugins"][plugin]["containerd"]
    assert made["default_runtime_name"] == "nvc"
    assert made["runtimes"]["nvc"] == {
        "runtime_type": "io.containerd.runc.v2", "pod_annotations": ["p"],
        "options": {"SystemdCgroup": True, "BinaryName": PATH},
    }  # fmt: skip
    assert made["runtimes"]["runc"]["options"] == {"SystemdCgroup": True}
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert "# as the kubelet" in text
    again = containerd.registration(wanted(path, default=True), ContainerdState((1, 6, 20), effective(2, V2)))
    assert [change.diff(change.configure(edit)) for edit in again.edits] == [""]


def test_containerd_2_has_drop_ins_that_merge(etc: str) -> None:
    path = write(f"{etc}/config.toml", "version = 3\n# mine\n")
    found = containerd.registration(wanted(path), ContainerdState((2, 1, 4), effective(3, V3, imports=[])))
    drop_in, main = (after(edit) for edit in found.edits)
    assert main == {"version": 3, "imports": [f"{etc}/conf.d/*.toml"]}
    assert drop_in["version"] == 3
    runtimes = drop_in["plugins"][V3]["containerd"]["runtimes"]
    assert runtimes["nvc"] == {
        "runtime_type": "io.containerd.runc.v2", "sandboxer": "podsandbox", "options": {"BinaryName": PATH},
    }  # fmt: skip
    for name, form in containerd.files(wanted(path)).paths:
        made = change.remove(name, form)
        assert made is not None
        change.make(made)
    assert os.listdir(etc) == ["config.toml"] and change.read(path) == b"version = 3\n# mine\n"


@pytest.mark.parametrize(
    ("text", "adds"),
    [
        ("", True),
        ("version = 3\n", True),
        ('version = 3\nimports = ["{etc}/*.toml"]\n', True),  # `*` stands for no slash
        ('version = 3\nimports = ["{etc}/conf.d/*.toml"]\n', False),
        ('version = 3\nimports = ["conf.d/*.toml"]\n', False),  # relative to the file
    ],
)
def test_containerd_imports_only_what_the_file_names(etc: str, text: str, adds: bool) -> None:
    """`config dump` of 2.2 and newer shows the pattern for every file; the daemon follows the file's own alone."""
    path = f"{etc}/config.toml"
    if text:
        write(path, text.format(etc=etc))
    state = ContainerdState((2, 3, 4), effective(3, V3, imports=[f"{etc}/conf.d/*.toml"]))
    found = containerd.registration(wanted(path), state)
    assert [edit.path for edit in found.edits] == [f"{etc}/conf.d/99-nvc.toml", *([path] if adds else [])]


@pytest.mark.parametrize(
    ("version", "expected"), [((1, 7, 0), True), ((2, 0, 0), True), ((2, 4, 0), None), ((), True)]
)
def test_containerd_cdi(etc: str, version: tuple[int, ...], expected: bool | None) -> None:
    path = write(f"{etc}/config.toml", "version = 2\n")
    found = containerd.registration(wanted(path, cdi=True), ContainerdState(version, {}))
    assert keys(found).get(("plugins", V2, "enable_cdi")) is expected


def test_containerd_without_the_plugin(etc: str) -> None:
    path = write(f"{etc}/config.toml", 'disabled_plugins = ["cri"]\n')
    found = containerd.registration(wanted(path), ContainerdState())
    assert any("disables the CRI plugin" in line for line in found.advice)


@pytest.mark.parametrize("version", ["5", "0", '"2"', "true"])
def test_containerd_of_an_unknown_version(etc: str, version: str) -> None:
    path = write(f"{etc}/config.toml", f"version = {version}\n")
    with pytest.raises(EngineError, match="is not one of 1 to 4"):
        containerd.registration(wanted(path), ContainerdState())
