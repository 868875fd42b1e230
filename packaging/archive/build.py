"""Writes hot.bin: the code of the modules that a container start loads, in one file.

    INTERPRETER -I build.py LIBRARY [--destdir DIR] [--machine MACHINE]

LIBRARY is PREFIX/lib/nvc of an installation, below DIR if one is named, for this machine by default. Run by the
interpreter that will read the archive. A start then reads one file where it would look for, list, and read about a
hundred.

The format, numbers being little-endian:

    b"nvc\\n", the interpreter's magic number (which also begins its .pyc files)
    the sizes of the archive and of the next part, 4 bytes each
    marshal of (the code of loader.py, index)
    the code of each module; a start reads only what it needs

index has for each module what it imports when it is loaded, so that loader.py can load that first.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import importlib.util
import marshal
import os
import platform
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "hot.bin"
HEADER = b"nvc\n" + importlib.util.MAGIC_NUMBER
EXTENSIONS = ("_cffi_backend",)


def hot_modules() -> list[str]:
    """What the archive is to hold; tests/unit/test_house_start.py compares it with what starts load."""
    with open(os.path.join(HERE, "modules.txt"), encoding="ascii") as lines:
        return lines.read().split()


class Lean(ast.NodeTransformer):
    """Drops what no program of nvc looks at: types of functions, what is for type checkers, `from __future__`."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse or ast.Pass()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        given = node.args
        for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if argument:
                argument.annotation = None
        node.returns = None
        return self.generic_visit(node)


def lean_tree(path: str) -> ast.Module:
    with open(path, "rb") as source:
        tree: ast.Module = ast.fix_missing_locations(Lean().visit(ast.parse(source.read(), path)))
    return tree


def compile_file(path: str, shown: str) -> types.CodeType:
    """The code of a source file, without docstrings; tracebacks call it `shown`."""
    tree = lean_tree(path)
    flags = annotations.compiler_flag
    return compile(tree, shown, "exec", flags, dont_inherit=True, optimize=2)


def source_of(library: str, name: str) -> tuple[str, bool]:
    """The file of a module relative to `library`, and whether it is a package."""
    path = os.path.join("python", name.replace(".", "/"))
    if os.path.isdir(os.path.join(library, path)):
        return os.path.join(path, "__init__.py"), True
    return path + ".py", False


def extension_of(library: str, name: str, machine: str) -> str | None:
    """The file of an extension relative to `library`; None if it comes from elsewhere."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = os.path.join("site", name + suffix.replace(platform.machine(), machine))
        if os.path.exists(os.path.join(library, path)):
            return path
    return None


def imported(path: str, hot: list[str]) -> tuple[str, ...]:
    """The modules among `hot` that a source file imports when it is loaded, in order."""
    names: list[str] = []
    for node in lean_tree(path).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(sys.intern(name) for name in names if name in hot)


def archive(library: str, destdir: str, machine: str) -> bytes:
    index: dict[str, tuple[int, int, str, bool, tuple[str, ...]]] = {
        "nvc._syscalls": (0, 0, "python/nvc/_syscalls.abi3.so", False, ())
    }
    index |= {
        name: (0, 0, file, False, ())
        for name in EXTENSIONS
        if (file := extension_of(library, name, machine))
    }
    codes: list[bytes] = []
    hot = hot_modules()
    for name in hot:
        file, package = source_of(library, name)
        path = os.path.join(library, file)
        code = marshal.dumps(compile_file(path, path.removeprefix(destdir)))
        codes.append(code)
        index[sys.intern(name)] = (sum(map(len, codes)), len(code), "", package, imported(path, hot))
    loader = compile_file(os.path.join(HERE, "loader.py"), "<nvc loader>")
    head, body = marshal.dumps((loader, index)), b"".join(reversed(codes))
    size = len(HEADER) + 8 + len(head) + len(body)
    return HEADER + size.to_bytes(4, "little") + len(head).to_bytes(4, "little") + head + body


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the archive of the modules that a start loads.")
    parser.add_argument("library", help="PREFIX/lib/nvc, where it is now")
    parser.add_argument("--destdir", default="", help="what of LIBRARY will be gone when it runs")
    parser.add_argument("--machine", default=platform.machine(), help="x86_64 or aarch64, where it runs")
    options = parser.parse_args()
    library = os.path.abspath(options.library)
    path = os.path.join(library, NAME)
    with open(path + ".new", "wb") as out:
        destdir = os.path.abspath(options.destdir) if options.destdir else ""
        out.write(archive(library, destdir, options.machine))
    os.chmod(path + ".new", 0o644)
    os.rename(path + ".new", path)


if __name__ == "__main__":
    main()
