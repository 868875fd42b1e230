"""Prints docs/api.md from the names that `nvc` offers and what their sources say of them. Nothing is imported."""

from __future__ import annotations

import ast
import os
import sys
import textwrap

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEAD = """# The library

Everything that `nvc-cli` does can be done from Python. These are the public names; what is not here may change with
any version. All values are frozen, compare by their fields, and have `replace(field=value)`.

```python
{intro}
```

Three programs show more of it: [list GPUs](examples/list_gpus.py),
[configure a container](examples/configure_container.py), [watch slices](examples/watch_slices.py). They run with
`PYTHONPATH=/usr/local/lib/nvc/python` after `make install`, with `/usr/lib/nvc/python` after installing a package.

This page is made by `python3 packaging/apidoc.py > docs/api.md`.
"""

#: Bases that say nothing to a reader, and those whose fields a reader wants, with their modules.
HIDDEN = ("Closable", "Value", "Exception", "Timing")
SHAPES = {"Timing": "nvc.model.request"}


def parse(module: str) -> tuple[ast.Module, list[str]]:
    path = os.path.join(REPO, *module.split("."))
    path = path + ".py" if os.path.exists(path + ".py") else os.path.join(path, "__init__.py")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return ast.parse(text), text.splitlines()


def homes() -> dict[str, str]:
    tree, _ = parse("nvc")
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "_HOMES"
        ):
            table: dict[str, str] = ast.literal_eval(node.value)
            return {name: home for home, names in table.items() for name in names.split()}
    raise SystemExit("nvc/__init__.py: no _HOMES")


def find(module: str, name: str) -> tuple[ast.stmt, list[str]]:
    tree, lines = parse(module)
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node, lines
    raise SystemExit(f"{module}: no {name}")


def comment_of(node: ast.stmt, lines: list[str]) -> str:
    _, mark, text = lines[(node.end_lineno or 1) - 1].partition("#")
    return text.strip() if mark else ""


def text_of(node: ast.AST) -> str:
    assert isinstance(node, (ast.ClassDef, ast.FunctionDef))
    return ast.get_docstring(node) or ""


def signature(node: ast.FunctionDef) -> tuple[str, str]:
    copied = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(copied, ast.FunctionDef)
    copied.args.args = [item for item in copied.args.args if item.arg != "self"]
    result = f" -> {ast.unparse(copied.returns)}" if copied.returns and node.name != "__init__" else ""
    return ast.unparse(copied.args), result


def function(node: ast.FunctionDef, owner: str = "") -> list[str]:
    arguments, result = signature(node)
    is_property = any(isinstance(item, ast.Name) and item.id == "property" for item in node.decorator_list)
    if node.name == "__init__":
        head = f"{owner}({arguments})"
    else:
        head = f"{node.name}{'' if is_property else f'({arguments})'}{result}"
    body = textwrap.indent(text_of(node), "  ")
    return [f"- `{head}`", "", body, ""] if body else [f"- `{head}`", ""]


def fields(node: ast.ClassDef, lines: list[str]) -> list[str]:
    rows = rows_of(node, lines)
    for base in map(ast.unparse, node.bases):
        rows += rows_of(*find(SHAPES[base], base)) if base in SHAPES else []
    return ["| field | type | default | |", "| --- | --- | --- | --- |", *rows, ""] if rows else []


def rows_of(node: ast.stmt, lines: list[str]) -> list[str]:
    assert isinstance(node, ast.ClassDef)
    rows = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            default = f"`{ast.unparse(item.value)}`" if item.value is not None else ""
            kind = ast.unparse(item.annotation).replace("|", "\\|")
            rows.append(f"| `{item.target.id}` | `{kind}` | {default} | {comment_of(item, lines)} |")
    return rows


def section(name: str, module: str) -> list[str]:
    node, lines = find(module, name)
    out = [f"## {name}", ""]
    if isinstance(node, ast.FunctionDef):
        return [*out, *function(node)]
    assert isinstance(node, ast.ClassDef)
    bases = [base for base in map(ast.unparse, node.bases) if base not in HIDDEN]
    if bases:
        out += [f"A kind of `{bases[0]}`.", ""]
    if text_of(node):
        out += [text_of(node), ""]
    out += fields(node, lines)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and (item.name == "__init__" or not item.name.startswith("_")):
            out += function(item, name)
    return out


def page() -> str:
    tree, _ = parse("nvc")
    paragraphs = (ast.get_docstring(tree) or "").split("\n\n")
    intro = next(text for text in paragraphs if text.startswith("    "))
    lines = [HEAD.format(intro="import nvc\n\n" + textwrap.dedent(intro))]
    for name, module in homes().items():
        lines += section(name, module)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
