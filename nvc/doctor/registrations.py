"""What container engines are told to run: runtimes and hooks, NVIDIA's and ours."""

from __future__ import annotations

import glob
import os

from nvc.doctor import Check, aside, failed, ok, warning
from nvc.doctor.context import read_file
from nvc.doctor.installation import PROGRAMS, REINSTALL
from nvc.engines import RUNTIME, EngineError, containerd, crio, docker, podman
from nvc.engines.change import document_of, value_at
from nvc.engines.hooksd import DEFAULTS
from nvc.fastjson import JsonError, parse
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from nvc.doctor import Finding
    from nvc.doctor.context import Context

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OURS, NVIDIAS, OTHER = "nvc", "NVIDIA's toolkit", "other"
NAMES = (
    "nvidia-container-cli",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-container-runtime",
)
_HOOK_LIMIT = 1 << 20
NO_GPUS_OPTION = (
    f"{docker.HOOK_NAME} is not on dockerd's PATH: dockerd 20.10 to 28 says: could not select device driver",
    f"dockerd 29 looks for {docker.CDI_NAME} as well, and says: {docker.NO_VENDOR}",
    "to set it up: nvc-cli runtime configure --engine docker --hook-link /usr/local/bin",
)


class Runtime(Value):
    """One runtime that a configuration names."""

    file: str
    name: str
    programs: tuple[str, ...]  # one of them must be there
    default: bool


class Engine(Value):
    """What the files of an engine say."""

    runtimes: tuple[Runtime, ...] = ()
    hook_directories: tuple[str, ...] = ()
    problems: tuple[EngineError, ...] = ()
    default: str = ""  # name of the default runtime, where one is named
    file: str = ""  # that names it


def kind_of(program: str) -> str:
    """Whose program it is, links followed: NVIDIA's names may lead to ours."""
    name = os.path.basename(os.path.realpath(_which(program) or program))
    if name.startswith("nvc-"):
        return OURS
    return NVIDIAS if name.startswith("nvidia-c") else OTHER


def _which(program: str) -> str:
    """The program that an engine would run, "" where there is none. A bare name is looked for on the PATH."""
    places = [program] if "/" in program else [f"{directory}/{program}" for directory in PATH.split(":")]
    return next((place for place in places if os.access(place, os.X_OK) and os.path.isfile(place)), "")


def _document(path: str, form: str, problems: list[EngineError]) -> Any:
    try:
        return document_of(path, form)
    except EngineError as error:
        problems.append(error)
        return {}


def read_docker() -> Engine:
    """daemon.json."""
    problems: list[EngineError] = []
    document = _document(docker.CONFIG, "json", problems)
    default = value_at(document, ("default-runtime",), "")
    table = value_at(document, ("runtimes",), {})
    runtimes = []
    for name, entry in table.items() if isinstance(table, dict) else ():
        path = entry.get("path") if isinstance(entry, dict) else None
        if isinstance(path, str) and path:
            runtimes.append(Runtime(docker.CONFIG, name, (path,), name == default))
    return Engine(tuple(runtimes), (), tuple(problems), str(default), docker.CONFIG)


def read_containerd() -> Engine:
    """config.toml and what it imports."""
    problems: list[EngineError] = []
    main = _document(containerd.CONFIG, "toml", problems)
    documents = [(containerd.CONFIG, main)]
    imports = value_at(main, ("imports",), [])
    for pattern in imports if isinstance(imports, list) else []:
        place = os.path.join(os.path.dirname(containerd.CONFIG), str(pattern))
        for path in sorted(glob.glob(place))[:64]:
            documents.append((path, _document(path, "toml", problems)))
    default, where = "", containerd.CONFIG
    runtimes = []
    for plugin in containerd.PLUGINS.values():
        for path, document in documents:
            table = value_at(document, ("plugins", plugin, "containerd"), {})
            named = value_at(table, ("default_runtime_name",), "")
            default, where = (named, path) if isinstance(named, str) and named else (default, where)
            for name, entry in _tables(value_at(table, ("runtimes",), {})):
                program = value_at(entry, ("options", "BinaryName"), "")
                if isinstance(program, str) and program:
                    runtimes.append(Runtime(path, name, (program,), name == default))
    return Engine(tuple(runtimes), (), tuple(problems), default, where)


def read_crio() -> Engine:
    """crio.conf and its drop-ins."""
    problems: list[EngineError] = []
    paths = [crio.MAIN, *sorted(glob.glob(f"{crio.DROP_INS}/*"))[:64]]
    default, where = "", crio.MAIN
    runtimes, directories = [], list(DEFAULTS)
    for path in paths:
        table = value_at(_document(path, "toml", problems), ("crio", "runtime"), {})
        named = value_at(table, ("default_runtime",), "")
        default, where = (named, path) if isinstance(named, str) and named else (default, where)
        directories += _texts(value_at(table, ("hooks_dir",), []))
        for name, entry in _tables(value_at(table, ("runtimes",), {})):
            program = value_at(entry, ("runtime_path",), "")
            if isinstance(program, str) and program:
                runtimes.append(Runtime(path, name, (program,), name == default))
    return Engine(tuple(runtimes), tuple(directories), tuple(problems), default, where)


def read_podman() -> Engine:
    """containers.conf and its drop-ins."""
    problems: list[EngineError] = []
    drop_ins = os.path.dirname(podman.CONFIG)
    default, where = "", podman.MAIN
    runtimes, directories = [], list(DEFAULTS)
    for path in [podman.MAIN, *sorted(glob.glob(f"{drop_ins}/*.conf"))[:64]]:
        table = value_at(_document(path, "toml", problems), ("engine",), {})
        named = value_at(table, ("runtime",), "")
        default, where = (named, path) if isinstance(named, str) and named else (default, where)
        directories += _texts(value_at(table, ("hooks_dir",), []))
        entries = value_at(table, ("runtimes",), {})
        for name, programs in entries.items() if isinstance(entries, dict) else ():
            if _texts(programs):
                runtimes.append(Runtime(path, name, tuple(_texts(programs)), name == default))
    return Engine(tuple(runtimes), tuple(directories), tuple(problems), default, where)


def _tables(value: Any) -> list[tuple[str, dict[str, Any]]]:
    items = value.items() if isinstance(value, dict) else ()
    return [(name, entry) for name, entry in items if isinstance(entry, dict)]


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


READERS: dict[str, Callable[[], Engine]] = {
    "docker": read_docker,
    "containerd": read_containerd,
    "crio": read_crio,
    "podman": read_podman,
}
#: Names of runtimes that an engine knows without being told of.
_BUILT_IN = ("", "runc", "crun", "io.containerd.runc.v2", "kata", "runsc", "youki", "krun")


def _of(engine: str) -> Callable[[Context], Iterator[Finding]]:
    def check(context: Context) -> Iterator[Finding]:
        found = READERS[engine]()
        yield from _problems(found)
        yield from _pointing_nowhere(engine, found)
        yield from _two_toolkits(engine, found)
        if engine == "docker":
            yield from _gpus_hook()
        if engine == "containerd":
            yield from _not_imported()
        names = [runtime.name for runtime in found.runtimes if _kinds(runtime) - {OTHER}]
        text = f"runtimes for GPUs: {', '.join(names) or 'none'}"
        if engine == "docker" and _lacks_gpus_option():
            yield ok(f"{text}; docker run --gpus is not set up", *NO_GPUS_OPTION)
        else:
            yield ok(text)

    return check


def _problems(found: Engine) -> Iterator[Finding]:
    for error in found.problems:
        text = f"{error.path}: {error.step}: {error.cause}"
        yield failed(text, advice="correct it: the engine cannot start with this file")


def _kinds(runtime: Runtime) -> set[str]:
    return {kind_of(program) for program in runtime.programs}


def _remove(engine: str, runtime: Runtime) -> tuple[str, ...]:
    if any(os.path.basename(program) == RUNTIME for program in runtime.programs):
        return (f"nvc-cli runtime configure --engine {engine} --runtime-name {runtime.name} --remove",)
    return ()


def _pointing_nowhere(engine: str, found: Engine) -> Iterator[Finding]:
    for runtime in found.runtimes:
        if not any(_which(program) for program in runtime.programs):
            yield failed(
                f"{engine}: runtime {runtime.name} of {runtime.file} is "
                f"{runtime.programs[0]}, which does not exist",
                commands=_remove(engine, runtime),
                advice=f"install it, or take it out of {runtime.file}; then restart {engine}",
            )
    known = {runtime.name for runtime in found.runtimes}
    if found.default and found.default not in known | set(_BUILT_IN) and not _which(found.default):
        yield failed(
            f"{engine}: the default runtime {found.default} of {found.file} is not registered",
            commands=(f"nvc-cli runtime configure --engine {engine} --runtime-name {found.default}",),
            advice=f"or take the default out of {found.file}; then restart {engine}",
        )


def _two_toolkits(engine: str, found: Engine) -> Iterator[Finding]:
    ours = [runtime for runtime in found.runtimes if OURS in _kinds(runtime)]
    theirs = [runtime for runtime in found.runtimes if NVIDIAS in _kinds(runtime)]
    if ours and theirs:
        default = next((runtime.name for runtime in (*ours, *theirs) if runtime.default), "none of them")
        yield warning(
            f"{engine}: two toolkits are registered, {ours[0].name} ({OURS}) and {theirs[0].name} ({NVIDIAS})",
            *(f"{runtime.name}: {runtime.programs[0]}, in {runtime.file}" for runtime in (*ours, *theirs)),
            f"the default is {default}",
            commands=_remove(engine, ours[0]),
            advice=f"keep one: the command takes {OURS} out; for the other, remove {theirs[0].name} "
            f"from {theirs[0].file}",
        )


def _is_missing_ours(path: str) -> bool:
    """Whether a program of nvc's is named in a place of programs: an installation puts it back there.

    The alternatives of a package lead there too.
    """
    directory, name = os.path.split(os.path.realpath(path))
    return name in PROGRAMS and directory in PATH.split(":")


def _gpus_hook() -> Iterator[Finding]:
    """The name that dockerd looks for on its PATH when `--gpus` is given."""
    for directory in PATH.split(":"):
        path = f"{directory}/{docker.HOOK_NAME}"
        if os.path.islink(path) and not os.path.exists(path):
            text = f"{path} leads to {os.readlink(path)}, which does not exist: docker run --gpus fails"
            if _is_missing_ours(path):
                yield failed(text, f"it ends at {os.path.realpath(path)}", advice=REINSTALL)
                continue
            yield failed(
                text,
                commands=(aside(path),),
                advice="then register again: nvc-cli runtime configure --engine docker --hook-link DIR",
            )


def _lacks_gpus_option() -> bool:
    """Whether dockerd is there and finds neither of the names by which it knows how to give GPUs."""
    return (
        bool(_which("dockerd"))
        and not docker.on_path(docker.HOOK_NAME)
        and not docker.on_path(docker.CDI_NAME)
    )


def _not_imported() -> Iterator[Finding]:
    """A drop-in that containerd does not read: its `config dump` may say otherwise."""
    path, main = containerd.drop_in(containerd.CONFIG), containerd.CONFIG
    try:
        document = document_of(main, "toml")
    except EngineError:
        return  # _problems has said so
    if os.path.exists(path) and not containerd.imports(document, main, path):
        yield failed(
            f"containerd does not read {path}: {main} does not import it",
            commands=("nvc-cli runtime configure --engine containerd", "systemctl restart containerd"),
        )


def names(context: Context) -> Iterator[Finding]:
    """NVIDIA's names on the PATH: that all are of one toolkit, whose programs understand each other."""
    found = {name: _which(name) for name in NAMES}
    ours = [path for path in found.values() if path and kind_of(path) == OURS]
    theirs = [path for path in found.values() if path and kind_of(path) == NVIDIAS]
    if ours and theirs:
        yield warning(
            f"{ours[0]} is nvc's, {theirs[0]} is of NVIDIA's toolkit: they may not understand each other's options",
            *(f"{path} is {os.path.realpath(path)}" for path in (*ours, *theirs)),
            advice="make all names belong to one toolkit: update-alternatives --config NAME",
        )


def hooks(context: Context) -> Iterator[Finding]:
    """The files of hooks.d: that each leads to a program, and no container is given its GPUs twice."""
    engines = {name: READERS[name]() for name in ("crio", "podman")}
    directories = dict.fromkeys(
        os.path.realpath(place)
        for engine in engines.values()
        for place in (*DEFAULTS, *engine.hook_directories)
    )
    ours: list[str] = []
    theirs: list[str] = []
    for directory in directories:
        for path in sorted(glob.glob(f"{glob.escape(directory)}/*.json"))[:256]:
            try:
                document = parse(read_file(path, _HOOK_LIMIT + 1) or b"", _HOOK_LIMIT)
                program = value_at(document, ("hook", "path"))
            except (OSError, JsonError) as error:
                yield failed(f"{path} cannot be read: {error}", commands=(aside(path),))
                continue
            if not isinstance(program, str) or not _which(program):
                yield failed(
                    f"{path} calls {program}, which does not exist: containers do not start",
                    commands=() if _is_missing_ours(str(program)) else (aside(path),),
                    advice=REINSTALL if _is_missing_ours(str(program)) else "or reinstall that program",
                )
                continue
            {OURS: ours, NVIDIAS: theirs}.get(kind_of(program), []).append(path)
    if ours and theirs:
        yield failed(
            f"two toolkits have a hook for every container: {ours[0]} and {theirs[0]}",
            commands=(aside(theirs[0]),),
            advice="keep one of the two files",
        )
    for name, engine in engines.items():
        default = next((runtime for runtime in engine.runtimes if runtime.default), None)
        both = default is not None and (
            ours and NVIDIAS in _kinds(default) or theirs and OURS in _kinds(default)
        )
        if default is not None and both:
            path = (ours or theirs)[0]
            yield failed(
                f"{name}: containers get GPUs twice, by {path} and by the default runtime {default.name}",
                commands=(aside(path),),
            )


CHECKS = (
    Check(
        "engines.docker", "Docker: runtimes of daemon.json, the hook of --gpus, two toolkits", _of("docker")
    ),
    Check(
        "engines.containerd",
        "containerd: runtimes of config.toml and imports, two toolkits",
        _of("containerd"),
    ),
    Check("engines.crio", "CRI-O: runtimes of crio.conf and its drop-ins, two toolkits", _of("crio")),
    Check(
        "engines.podman", "Podman: runtimes of containers.conf and its drop-ins, two toolkits", _of("podman")
    ),
    Check("engines.names", "NVIDIA's program names on the PATH: only one toolkit", names),
    Check("engines.hooks", "files of hooks.d: their programs, two toolkits", hooks),
)
