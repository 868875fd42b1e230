"""What container engines are told to run: runtimes and hooks, NVIDIA's and ours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from nvc.discovery.containers.files import names_in, read_json, table, text
from nvc.discovery.containers.places import places
from nvc.doctor import FAILED, OK, WARNING, Check, Fact, Row, aside, with_systemd
from nvc.doctor.context import Context, read_text
from nvc.frontends.engines import RUNTIME, EngineError, ask, containerd, docker
from nvc.frontends.engines.ask import PATH
from nvc.frontends.engines.files.change import document_of, value_at
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


def _of(kind: str, runtimes: tuple[Runtime, ...]) -> list[Runtime]:
    return [one for one in runtimes if kind in map(kind_of, one.programs)]


def _engine(engine: str) -> Iterator[Fact]:
    found = registered(engine)
    yield from (Fact(error=error) for error in found.problems)
    for runtime in found.runtimes:
        if not any(map(_which, runtime.programs)):
            yield Fact(engine=engine, gone=runtime, run=_remove(engine, runtime))
    known = {runtime.name for runtime in found.runtimes}
    if found.default not in known and found.default not in _BUILT_IN and not _which(found.default):
        yield Fact(engine=engine, unregistered=found.default, file=found.file)
    ours, theirs = _of(OURS, found.runtimes), _of(NVIDIAS, found.runtimes)
    if ours and theirs:
        yield Fact(engine=engine, ours=ours[0], theirs=theirs[0], run=_remove(engine, ours[0]),
                   seen=[f"the default is {found.default or 'none of them'}"])  # fmt: skip
    link = ask.on_path(docker.HOOK_NAME) if engine == "docker" else ""
    if link and not os.path.exists(link):
        yield Fact(link=link, target=os.path.realpath(link))
    if engine == "containerd":
        yield from _not_imported()
    dockerd = engine == "docker" and _which("dockerd")
    yield Fact(names=", ".join(one.name for one in (*ours, *theirs)) or "none",
               lacks_gpus=dockerd and not link and not ask.on_path(docker.CDI_NAME))  # fmt: skip


def _remove(engine: str, runtime: Runtime) -> list[str]:
    if any(os.path.basename(program) == RUNTIME for program in runtime.programs):
        return [f"nvc-cli runtime configure --engine {engine} --runtime-name {runtime.name} --remove"]
    return []


def _not_imported() -> Iterator[Fact]:
    """A drop-in that containerd does not read: its `config dump` may say otherwise."""
    path, main = containerd.drop_in(containerd.CONFIG), containerd.CONFIG
    try:
        if os.path.exists(path) and not containerd.imports(document_of(main, "toml"), main, path):
            yield Fact(unread=path, main=main)
    except EngineError:
        pass  # it is among the problems


def _names(_: Context) -> Iterator[Fact]:
    found = {kind_of(path): path for path in map(_which, NAMES) if path}
    if OURS in found and NVIDIAS in found:
        yield Fact(ours=found[OURS], theirs=found[NVIDIAS])


def _hooks(_: Context) -> Iterator[Fact]:
    engines = {name: registered(name) for name, one in ENGINES.items() if "hook_dir" in one.options}
    named = [place for engine in engines.values() for place in engine.hook_directories]
    first: dict[str, str] = {}  # file of each toolkit
    for directory in dict.fromkeys(map(os.path.realpath, (*DEFAULTS, *named))):
        for path in [f"{directory}/{name}" for name in names_in(directory) if name.endswith(".json")]:
            program = value_at(read_json(path), ("hook", "path"))
            if isinstance(program, str) and _which(program):
                first.setdefault(kind_of(program), path)
            else:
                calls = f"{program}, which does not exist" if isinstance(program, str) else "no program"
                yield Fact(path=path, calls=calls)
    ours, theirs = first.get(OURS), first.get(NVIDIAS)
    if ours and theirs:
        yield Fact(ours=ours, theirs=theirs, run=[aside(theirs)])
    for name, engine in engines.items():
        yield from _twice(name, engine, {OURS: theirs, NVIDIAS: ours})


def _twice(name: str, engine: Registered, others: dict[str, str | None]) -> Iterator[Fact]:
    """The default runtime of one toolkit, where there is a file of the other's for every container."""
    for kind, path in others.items():
        if path and engine.default in [runtime.name for runtime in _of(kind, engine.runtimes)]:
            yield Fact(engine=name, twice=path, runtime=engine.default, run=[aside(path)])


def _running(_: Context) -> Iterator[Fact]:
    """Docker's running containers whose runtime is registered no more, as after `runtime configure --remove`."""
    known = {runtime.name for runtime in registered("docker").runtimes}.union(_OF_DOCKERD, _words_of_dockerd())
    for path in [f"{root}/containers/{id}" for root in places().docker for id in names_in(f"{root}/containers")]:
        runtime = text(table(read_json(f"{path}/hostconfig.json")).get("Runtime"))
        state = table(read_json(f"{path}/config.v2.json"))
        if runtime not in known and table(state.get("State")).get("Running") is True:
            yield Fact(name=text(state.get("Name")).lstrip("/"), runtime=runtime,
                       run=with_systemd("systemctl reload docker"))  # fmt: skip


def _words_of_dockerd() -> list[str]:
    """Its command line can name runtimes: --add-runtime NAME=PROGRAM."""
    try:
        words = read(int(read_text("/run/docker.pid")), "cmdline", _WORDS_MAX)
    except (OSError, ValueError):  # it does not run
        return []
    return words.decode("utf-8", "replace").replace("=", "\0").split("\0")


_ENGINE = (
    Row(FAILED, "{error.path}: {error.step}: {error.cause}", "error",
        advice="correct it: the engine cannot start with this file"),
    Row(FAILED, "{engine}: runtime {gone.name} of {gone.file} is {gone.programs[0]}, which does not exist", "gone",
        advice="install it, or take it out of {gone.file}; then restart {engine}"),
    Row(FAILED, "{engine}: the default runtime {unregistered} of {file} is not registered", "unregistered",
        run=("nvc-cli runtime configure --engine {engine} --runtime-name {unregistered}",),
        advice="or take the default out of {file}; then restart {engine}"),
    Row(WARNING, "{engine}: two toolkits are registered, {ours.name} (nvc) and {theirs.name} (NVIDIA's)", "theirs",
        advice="keep one: the command takes nvc out; for the other, remove {theirs.name} from {theirs.file}"),
    Row(FAILED, "{link} leads to {target}, which does not exist: docker run --gpus fails", "link",
        advice="install that program again, or remove the link"),
    Row(FAILED, "containerd does not read {unread}: {main} does not import it", "unread",
        run=("nvc-cli runtime configure --engine containerd", "systemctl restart containerd")),
    Row(OK, "runtimes for GPUs: {names}; docker run --gpus is not set up", "lacks_gpus", seen=NO_GPUS_OPTION),
    Row(OK, "runtimes for GPUs: {names}"),
)  # fmt: skip


def _of_engine(name: str) -> Check:
    return Check(f"engines.{name}", ENGINES[name].checked, lambda _: _engine(name), _ENGINE)


CHECKS = (
    *map(_of_engine, ENGINES),
    Check("engines.names", "NVIDIA's program names on the PATH: only one toolkit", _names, (
        Row(WARNING, "{ours} is nvc's, {theirs} is of NVIDIA's toolkit: they may not understand each other's "
            "options", advice="make all names belong to one toolkit: update-alternatives --config NAME"),
    )),
    Check("engines.hooks", "files of hooks.d: their programs, two toolkits", _hooks, (
        Row(FAILED, "{path} calls {calls}: containers do not start", "path",
            advice="install that program again, or move the file away"),
        Row(FAILED, "two toolkits have a hook for every container: {ours} and {theirs}", "ours",
            advice="keep one of the two files"),
        Row(FAILED, "{engine}: containers get GPUs twice, by {twice} and by the default runtime {runtime}"),
    )),
    Check("engines.running", "Docker's running containers: whether their runtime is registered", _running, (
        Row(WARNING, "docker: the container {name} runs with the runtime {runtime}, which is registered no more",
            run=("nvc-cli runtime configure --engine docker --runtime-name {runtime}",),
            advice="after its next start, dockerd can neither stop nor start it: register it, or end it now"),
    )),
)  # fmt: skip
