"""The rules of the house that no linter knows: layers, sizes, and what must not be written anywhere."""

from __future__ import annotations

import ast
import collections
import configparser
import functools
import os
import re

from support import REPO
from support.sources import circles, read, sources, tree

#: Lower layers first; a module imports only from layers below its own, and from its own group.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("nvc.base",),
    ("nvc._syscalls", "nvc.model"),
    ("nvc.kernel",),
    ("nvc.discovery",),
    ("nvc.request", "nvc.testing"),
    ("nvc.plan",),
    ("nvc.apply",),
    *((f"nvc.slices.{part}",) for part in ("policy", "client", "store", "make", "admin", "show")),
    ("nvc.slices",),
    *((f"nvc.daemon.{part}",) for part in ("io", "schedule", "mps", "keeper", "time", "audit")),
    ("nvc.daemon", "nvc.frontends"),
    ("nvc.api",),
    ("nvc.kubernetes",),
    ("nvc.doctor",),
    ("nvc_cli", "nvc_hooks"),
)
GROUPS = {group: layer for layer, groups in enumerate(LAYERS) for group in groups}
FOLDERS = {"nvc": "nvc", "cli": "nvc_cli", "hooks": "nvc_hooks"}
#: What a pure module may import of the standard library.
PURE = {"__future__", "binascii", "textwrap", "collections.abc", "posixpath", "struct", "typing"}
PURE_GROUPS = (
    "nvc.base.errors",
    *("nvc.model.facts", "nvc.model.request", "nvc.model.selection"),
    "nvc.request.requirements",
    "nvc.plan",
    *("nvc.frontends.cdi.document", "nvc.frontends.cdi.transform", "nvc.frontends.cdi.validate"),
)


def module_of(name: str) -> str:
    """The import name of a source file."""
    folder, _, rest = name.removesuffix(".py").partition("/")
    return f"{FOLDERS[folder]}.{rest.replace('/', '.')}".removesuffix(".__init__")


def group_of(module: str) -> str:
    """The entry of LAYERS that a module belongs to; "" for the bare package `nvc`."""
    if module == "nvc":
        return ""
    for group in GROUPS:
        if module == group or module.startswith(group + "."):
            return group
    raise AssertionError(f"{module}: say in LAYERS of tests/unit/test_house.py which layer it is in")


@functools.cache
def imports(name: str) -> set[str]:
    """Every module that a file imports, at its top and in functions; not those for type checkers alone."""
    found: set[str] = set()
    left: list[ast.AST] = [tree(name)]
    for node in left:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            left += node.orelse
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            inner = [full for full in names if _is_module(full)]
            found.update(inner or [node.module])
    return found


def _is_module(full: str) -> bool:
    top, _, rest = full.partition(".")
    folder = {package: folder for folder, package in FOLDERS.items()}.get(top)
    path = os.path.join(REPO, folder or "", *rest.split("."))
    return folder is not None and (os.path.isfile(path + ".py") or os.path.isdir(path))


PYTHON = [name for name in sources(".py") if name.split("/")[0] in FOLDERS]


def test_imports_go_down() -> None:
    wrong = []
    for module, name in ((module_of(name), name) for name in PYTHON):
        own = group_of(module)
        for imported in imports(name):
            if imported.split(".")[0] not in FOLDERS.values():
                continue
            other = group_of(imported)
            if own and other and other != own and GROUPS[other] >= GROUPS[own]:
                wrong.append(f"{module} imports {imported}, which is not below it")
    assert not wrong, "\n".join(wrong)


def test_pure_modules_have_no_effects() -> None:
    for name in (name for name in PYTHON if module_of(name).startswith(PURE_GROUPS)):
        for imported in imports(name):
            own = imported.startswith(("nvc.", "typing_extensions")) and not imported.startswith("nvc.kernel")
            assert own or imported in PURE, f"{name} imports {imported}"


def test_one_door_to_the_kernel() -> None:
    for name in PYTHON:
        if not module_of(name).startswith("nvc.kernel"):
            found = {
                imported for imported in imports(name) if "_syscalls" in imported or "_cffi" in imported
            }
            assert not found, f"{name} imports {found}"


def test_every_package_is_installed() -> None:
    setup = configparser.ConfigParser()
    setup.read(os.path.join(REPO, "setup.cfg"))
    listed = set(setup["options"]["packages"].split())
    assert listed == {module_of(name) for name in PYTHON if name.endswith("/__init__.py")}


#: Circles of imports that remain, by the folder and what is in them.
CIRCLES = {
    "nvc/apply": "again replay",
    "nvc/slices/store": "admission claims limits liveness process_view registry snapshot status",
    "cli": "boot completion main",
}


def parts_of(folder: str) -> dict[str, set[str]]:
    """What each file or folder in `folder` imports of the others there; `__init__.py` is no part."""
    package = module_of(f"{folder}/__init__.py")
    found: dict[str, set[str]] = {}
    for name in PYTHON:
        part, _, rest = name.removeprefix(f"{folder}/").partition("/")
        if name.startswith(f"{folder}/") and part != "__init__.py":
            inside = {other for other in imports(name) if other.startswith(package + ".")}
            others = {other.removeprefix(package + ".").split(".")[0] for other in inside}
            part = part.removesuffix(".py")
            found.setdefault(part, set()).update(others - {part})
    return found


FOLDERS_OF_PYTHON = sorted({os.path.dirname(name) for name in PYTHON})


def test_no_circle_of_imports() -> None:
    for folder in FOLDERS_OF_PYTHON:
        assert circles(parts_of(folder)) == CIRCLES.get(folder, ""), folder


def test_no_file_is_too_long() -> None:
    names = [*sources(".py", ".c", ".h", ".sh"), "Makefile"]
    long = [name for name in names if read(name).count("\n") > 400]
    assert not long, f"{long}: split them by concern"


#: Folders of more files than a reader takes in at once, until they are parted. A number here only goes down.
LARGE = {"cli": 41, "packaging": 29}
MANY = 14


def test_folders_are_small() -> None:
    """`test_house_native.py` has those of C; those of tests wait until tests lie as the product does."""
    names = [name for name in sources() if not name.startswith(("docs/", "native/", "tests/"))]
    counts = collections.Counter(os.path.dirname(name) for name in names)
    large = {folder: count for folder, count in counts.items() if folder and count > MANY}
    wrong = {folder: count for folder, count in large.items() if count > LARGE.get(folder, MANY)}
    assert not wrong, f"{wrong}: split them by concern"
    assert not LARGE.keys() - large.keys(), "no longer large"


def test_the_top_of_the_library_is_small() -> None:
    """`__init__.py` and `py.typed` are what every package has."""
    parts = {name.split("/")[1] for name in sources() if name.startswith("nvc/")}
    assert len(parts - {"__init__.py", "py.typed"}) <= MANY


def test_no_folder_is_taken_for_output() -> None:
    folders = {part for name in sources() for part in os.path.dirname(name).split("/")}
    assert not folders & {"build", "dist", "out", "target"}


def test_packages_say_what_they_hold() -> None:
    for package in (folder for folder in FOLDERS_OF_PYTHON if folder.startswith("nvc/")):
        assert ast.get_docstring(tree(f"{package}/__init__.py")), package


HOSTS = r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|deb[.]debian[.]org|proxy[.]golang"
UNFINISHED = r"\b(TODO|FIXME|XXX|HACK)\b"
NOT_RUN = r"pytest\.(mark\.)?(sk[i]p|xf[a]il)|sk[i]pif|unittest\.sk[i]p|importorsk[i]p"


def occurrences(pattern: str, names: list[str]) -> list[str]:
    """`file:line` of every match."""
    compiled = re.compile(pattern)
    found = []
    for name in names:
        lines = read(name).splitlines()
        found += [f"{name}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if compiled.search(line)]
    return found


def everywhere() -> list[str]:
    return [name for name in sources() if name not in ("LICENSE", "tests/unit/test_house.py")]


def test_no_host_of_a_registry() -> None:
    assert occurrences(HOSTS, everywhere()) == []


def test_no_path_of_one_machine() -> None:
    """Neither where this checkout happens to be, nor anybody's home."""
    here = "|".join({re.escape(REPO + os.sep), re.escape(os.path.expanduser("~") + "/.")})
    assert occurrences(rf"({here}|/(home|Users)/\w+/)", everywhere()) == []


def test_nothing_is_left_unfinished() -> None:
    assert occurrences(UNFINISHED, everywhere()) == []


def test_no_test_can_be_skipped() -> None:
    assert occurrences(NOT_RUN, [name for name in everywhere() if name.startswith("tests/")]) == []


#: Of Python and the shell. `sleep 600` is a process that does nothing until it is ended.
IMPATIENT = r"\b(communicate|wait)\(timeout=[0-9.]+\)|settimeout\([0-9.]+\)"
SLEEPS = r"import sleep\b|\.sleep\(|\bsleep ([0-9]{1,2}\b|[0-9]*[.])"
REPEATS = r"--reruns|rerunfailures|\bflaky\b|flaky\(|only.rerun"


def test_no_test_waits_by_the_clock() -> None:
    """Nor is one repeated until it passes, and what it waits for may take as long as PATIENCE says.

    What measures is run by hand or by `make nightly`.
    """
    tests = [
        name
        for name in everywhere()
        if name.startswith("tests/") and not name.startswith(("tests/bench/", "tests/gpu/"))
    ]
    assert occurrences(SLEEPS, tests) == []
    assert occurrences(IMPATIENT, tests) == []
    repeats = [name for name in everywhere() if not name.startswith("docs/")]
    assert occurrences(REPEATS, repeats) == []


def test_threads_are_counted_when_they_are_started() -> None:
    """packaging/archive/loader.py looks for threads, and would miss one of `_thread` at first."""
    assert not occurrences(r"start_new_thread|start_joinable_thread", everywhere())


#: Texts of people and of programs. What the kernel writes has names of tenants: lines_of() splits it.
OTHER_TEXTS = (
    "cli/vgpu_report.py",
    "nvc/doctor/codes.py",
    "nvc/frontends/",
    "nvc/kernel/__init__.py",
    "nvc/kernel/bpf.py",
    "nvc/kernel/tracing.py",
    "nvc/request/config/",
    "nvc/slices/make/run.py",
    "nvc/slices/show/",
    "nvc/testing/",
)
#: They have names of tenants, and in text mode a carriage return begins a line.
NAMED_IN = r'open\(f?"/proc/[^"]*(cgroup|maps|mountinfo|mounts|locks|status)", *enc'


def test_only_a_newline_ends_a_line_of_the_kernels() -> None:
    ours = [name for name in everywhere() if name.startswith(("nvc/", "cli/", "hooks/"))]
    kernels = [name for name in ours if not name.startswith(OTHER_TEXTS)]
    assert occurrences(r"\.splitlines\(", kernels) == []
    assert occurrences(NAMED_IN, ours) == []


def test_no_binary_is_tracked() -> None:
    for name in sources():
        with open(os.path.join(REPO, name), "rb") as file:
            assert file.read(4) != b"\x7fELF", name
