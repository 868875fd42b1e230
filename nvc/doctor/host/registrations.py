"""What container engines are told to run: runtimes and hooks, NVIDIA's and ours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

from nvc.discovery.containers.files import names_in, read_json, table, text
from nvc.discovery.containers.places import places
from nvc.doctor import FAILED, OK, WARNING, Check, Fact, Row, aside, with_systemd
from nvc.doctor.context import Context, read_text
from nvc.doctor.host.installation import PROGRAMS, REINSTALL
from nvc.frontends.engines import RUNTIME, EngineError, ask, containerd, docker
from nvc.frontends.engines.ask import DIRECTORIES, PATH
from nvc.frontends.engines.change import document_of, value_at
from nvc.frontends.engines.hooksd import DEFAULTS
from nvc.frontends.engines.registered import ENGINES, Registered, Runtime, registered
from nvc.kernel.processes import read

OURS, NVIDIAS, OTHER = "nvc", "NVIDIA's toolkit", "other"
NAMES = (
    "nvidia-container-cli",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-container-runtime",
    "nvidia-ctk",
    "nvidia-cdi-hook",
)
#: Runtimes that an engine knows without being told of; the first three are dockerd's.
_BUILT_IN = ("", "runc", "io.containerd.runc.v2", "crun", "kata", "runsc", "youki", "krun")
_OF_DOCKERD = _BUILT_IN[:3]
_WORDS_MAX = 1 << 20  # bytes of a command line
_REGISTER = "then register again: nvc-cli runtime configure --engine docker --hook-link DIR"
NO_GPUS_OPTION = (
    f"{docker.HOOK_NAME} is not on dockerd's PATH: dockerd 20.10 to 28 says: could not select device driver",
    f"dockerd 29 looks for {docker.CDI_NAME} as well, and says: {docker.NO_VENDOR}",
    "to set it up: nvc-cli runtime configure --engine docker --hook-link /usr/local/bin",
)


def kind_of(program: str) -> str:
    """Whose program it is, links followed: NVIDIA's names may lead to ours."""
    name = os.path.basename(os.path.realpath(_which(program) or program))
    if name.startswith("nvc-"):
        return OURS
    return NVIDIAS if name.startswith("nvidia-c") else OTHER


def _which(program: str) -> str:
    """The program that an engine would run, "" where there is none. A bare name is looked for on the PATH."""
    return shutil.which(program, path=PATH) or ""


def _kinds(runtime: Runtime) -> set[str]:
    return {kind_of(program) for program in runtime.programs}


def _engine(engine: str, context: Context) -> Iterator[Fact]:
    found = registered(engine)
    yield from (Fact(error=error) for error in found.problems)
    for runtime in found.runtimes:
        if not any(map(_which, runtime.programs)):
            yield Fact(engine=engine, gone=runtime, file=runtime.file, run=_remove(engine, runtime))
    known = {runtime.name for runtime in found.runtimes}
    if found.default not in known and found.default not in _BUILT_IN and not _which(found.default):
        yield Fact(engine=engine, unregistered=found.default, file=found.file)
    yield from _two_toolkits(engine, found)
    names = [runtime.name for runtime in found.runtimes if _kinds(runtime) - {OTHER}]
    fact = Fact(names=", ".join(names) or "none")
    if engine == "docker":
        yield from _links()
        known_names = map(ask.on_path, (docker.HOOK_NAME, docker.CDI_NAME))
        fact.lacks_gpus = _which("dockerd") and not any(known_names)
    if engine == "containerd":
        yield from _not_imported()
    yield fact


def _remove(engine: str, runtime: Runtime) -> list[str]:
    if any(os.path.basename(program) == RUNTIME for program in runtime.programs):
        return [f"nvc-cli runtime configure --engine {engine} --runtime-name {runtime.name} --remove"]
    return []


def _two_toolkits(engine: str, found: Registered) -> Iterator[Fact]:
    ours = [runtime for runtime in found.runtimes if OURS in _kinds(runtime)]
    theirs = [runtime for runtime in found.runtimes if NVIDIAS in _kinds(runtime)]
    if ours and theirs:
        seen = [f"{one.name}: {one.programs[0]}, in {one.file}" for one in (*ours, *theirs)]
        seen.append(f"the default is {found.default or 'none of them'}")
        yield Fact(engine=engine, ours=ours[0], theirs=theirs[0], seen=seen, run=_remove(engine, ours[0]))


def _remedy(program: str, file: str, after: str) -> dict[str, Any]:
    """What to do about a file that names a program which is not there.

    One of nvc's in a place of programs comes back with an installation.
    The alternatives of a package lead there too.
    """
    directory, name = os.path.split(os.path.realpath(program))
    if name in PROGRAMS and directory in DIRECTORIES:
        return {"advice": REINSTALL}
    return {"run": [aside(file)], "advice": after}


def _links() -> Iterator[Fact]:
    """The name that dockerd looks for on its PATH when `--gpus` is given, where it leads nowhere."""
    for directory in DIRECTORIES:
        path = f"{directory}/{docker.HOOK_NAME}"
        if os.path.islink(path) and not os.path.exists(path):
            yield Fact(link=path, target=os.readlink(path), ends=os.path.realpath(path),
                       **_remedy(path, path, _REGISTER))  # fmt: skip


def _not_imported() -> Iterator[Fact]:
    """A drop-in that containerd does not read: its `config dump` may say otherwise."""
    path, main = containerd.drop_in(containerd.CONFIG), containerd.CONFIG
    try:
        if os.path.exists(path) and not containerd.imports(document_of(main, "toml"), main, path):
            yield Fact(unread=path, main=main)
    except EngineError:
        pass  # it is among the problems


def _names(_: Context) -> Iterator[Fact]:
    found = [path for path in map(_which, NAMES) if path]
    ours = [path for path in found if kind_of(path) == OURS]
    theirs = [path for path in found if kind_of(path) == NVIDIAS]
    if ours and theirs:
        yield Fact(ours=ours[0], theirs=theirs[0],
                   seen=[f"{path} is {os.path.realpath(path)}" for path in (*ours, *theirs)])  # fmt: skip


def _hooks(_: Context) -> Iterator[Fact]:
    engines = {name: registered(name) for name, one in ENGINES.items() if "hook_dir" in one.options}
    named = [place for engine in engines.values() for place in engine.hook_directories]
    first: dict[str, str] = {}  # file of each toolkit
    for directory in dict.fromkeys(map(os.path.realpath, (*DEFAULTS, *named))):
        for path in [f"{directory}/{name}" for name in names_in(directory) if name.endswith(".json")]:
            program = value_at(read_json(path), ("hook", "path"))
            if not isinstance(program, str) or not _which(program):
                yield Fact(path=path, program=program, **_remedy(str(program), path, "or reinstall that program"))
            else:
                first.setdefault(kind_of(program), path)
    if OURS in first and NVIDIAS in first:
        yield Fact(one=first[OURS], other=first[NVIDIAS], aside=aside(first[NVIDIAS]))
    for name, engine in engines.items():
        for runtime in engine.runtimes:
            other = {OURS: NVIDIAS, NVIDIAS: OURS}.keys() & _kinds(runtime)
            files = [path for kind, path in first.items() if kind != OTHER and kind not in other]
            if runtime.name == engine.default and other and files:
                yield Fact(engine=name, twice=files[0], runtime=runtime.name, aside=aside(files[0]))


def _running(_: Context) -> Iterator[Fact]:
    """Docker's running containers whose runtime is registered no more, as after `runtime configure --remove`."""
    known = {runtime.name for runtime in registered("docker").runtimes} | set(_OF_DOCKERD) | _given_to_dockerd()
    for root in places().docker:
        for id in names_in(f"{root}/containers"):
            path = f"{root}/containers/{id}"
            runtime = text(table(read_json(f"{path}/hostconfig.json")).get("Runtime"))
            state = table(read_json(f"{path}/config.v2.json"))
            if runtime not in known and table(state.get("State")).get("Running") is True:
                yield Fact(name=text(state.get("Name")).lstrip("/") or id[:12], runtime=runtime, path=path,
                           config=docker.CONFIG, run=with_systemd("systemctl reload docker"))  # fmt: skip


def _given_to_dockerd() -> set[str]:
    """The runtimes that dockerd has from its command line."""
    found = set()
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        if read_text(f"/proc/{pid}/comm") == "dockerd":
            try:
                words = read(pid, "cmdline", _WORDS_MAX).decode("utf-8", "replace").replace("=", "\0").split("\0")
            except OSError:  # it has ended, or is another's that is called so and does not answer
                continue
            found |= {name for option, name in zip(words, words[1:]) if option == "--add-runtime"}
    return found


_RESTART = "take it out of {file}; then restart {engine}"
_ENGINE = (
    Row(FAILED, "{error.path}: {error.step}: {error.cause}", "error",
        advice="correct it: the engine cannot start with this file"),
    Row(FAILED, "{engine}: runtime {gone.name} of {file} is {gone.programs[0]}, which does not exist", "gone",
        advice=f"install it, or {_RESTART}"),
    Row(FAILED, "{engine}: the default runtime {unregistered} of {file} is not registered", "unregistered",
        run=("nvc-cli runtime configure --engine {engine} --runtime-name {unregistered}",),
        advice="or take the default out of {file}; then restart {engine}"),
    Row(WARNING, f"{{engine}}: two toolkits are registered, {{ours.name}} ({OURS}) and {{theirs.name}} ({NVIDIAS})",
        "theirs", advice=f"keep one: the command takes {OURS} out; for the other, remove "
        "{theirs.name} from {theirs.file}"),
    Row(FAILED, "{link} leads to {target}, which does not exist: docker run --gpus fails", "link",
        seen=("it ends at {ends}",), advice="{advice}"),
    Row(FAILED, "containerd does not read {unread}: {main} does not import it", "unread",
        run=("nvc-cli runtime configure --engine containerd", "systemctl restart containerd")),
    Row(OK, "runtimes for GPUs: {names}; docker run --gpus is not set up", "lacks_gpus", seen=NO_GPUS_OPTION),
    Row(OK, "runtimes for GPUs: {names}"),
)  # fmt: skip


def _of_engine(name: str) -> Check:
    return Check(f"engines.{name}", ENGINES[name].checked, lambda context: _engine(name, context), _ENGINE)


CHECKS = (
    *map(_of_engine, ENGINES),
    Check("engines.names", "NVIDIA's program names on the PATH: only one toolkit", _names, (
        Row(WARNING, "{ours} is nvc's, {theirs} is of NVIDIA's toolkit: they may not understand each other's "
            "options", advice="make all names belong to one toolkit: update-alternatives --config NAME"),
    )),
    Check("engines.hooks", "files of hooks.d: their programs, two toolkits", _hooks, (
        Row(FAILED, "{path} is not a hook: it names no program", lambda it: it.path and not it.program),
        Row(FAILED, "{path} calls {program}, which does not exist: containers do not start", "path",
            advice="{advice}"),
        Row(FAILED, "two toolkits have a hook for every container: {one} and {other}", "one", run=("{aside}",),
            advice="keep one of the two files"),
        Row(FAILED, "{engine}: containers get GPUs twice, by {twice} and by the default runtime {runtime}",
            run=("{aside}",)),
    )),
    Check("engines.running", "Docker's running containers: whether their runtime is registered", _running, (
        Row(WARNING, "docker: the container {name} runs with the runtime {runtime}, which is registered no more",
            seen=("{config} does not name {runtime}, {path}/hostconfig.json does",),
            run=("nvc-cli runtime configure --engine docker --runtime-name {runtime}",),
            advice="after its next start, dockerd can neither stop nor start it: register it, or end it now"),
    )),
)  # fmt: skip
