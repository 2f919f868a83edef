"""Make `api.md` from the docstrings: what each public package lists in its ``__all__``.

    python docs/reference/make_api.py

It reads the sources and imports nothing of them, so it takes a fraction of a second. A test
compares the page with what this makes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = Path(__file__).with_name("api.md")
PACKAGES: Final = ("commitline", "commitline.ledger", "commitline.testing")
SECTIONS: Final = ("Args:", "Returns:", "Raises:", "Yields:")
LINE: Final = 90
"""Characters of a signature on one line."""
HEAD: Final = """# API reference

Made from the docstrings by `docs/reference/make_api.py`; a test says when it is stale.
What is not here is no part of the interface. [Errors](errors.md) have a page of their own.
"""


def page() -> str:
    """Return the page."""
    parts, seen = [HEAD], set[tuple[Path, str]]()
    for package in PACKAGES:
        path = ROOT.joinpath(*package.split(".")[1:], "__init__.py")
        parts.append(f"## {package}\n")
        for name in _public(path):
            home, node = _find(path, name)
            if (home, _name(node)) not in seen:  # not another package's, which stands above
                seen.add((home, _name(node)))
                parts.append(_entry(package, name, home, node))
    return "\n".join(parts)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _public(path: Path) -> list[str]:
    for node in _tree(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise LookupError(f"{path} has no __all__")


def _find(path: Path, name: str) -> tuple[Path, Definition]:
    """Return where a name is defined, and its definition, whoever re-exports it."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            for one in node.names:
                if name == (one.asname or one.name):
                    return _find(_module(path, node), one.name)
    for found in _tree(path).body:
        if isinstance(found, Definition) and _name(found) == name:
            if isinstance(found, ast.Assign) and isinstance(found.value, ast.Name):
                return _find(path, found.value.id)  # another name for it
            return path, found
        if isinstance(found, ast.AnnAssign) and ast.unparse(found.target) == name:
            assert found.value is not None, "it is a constant"
            return path, ast.Assign([found.target], found.value)
    raise LookupError(f"{path} has no {name}")


def _module(path: Path, node: ast.ImportFrom) -> Path:
    folder = path.parents[node.level - 1]
    target = folder.joinpath(*(node.module or "").split("."))
    return target / "__init__.py" if target.is_dir() else target.with_suffix(".py")


def _name(node: Definition) -> str:
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else node.name


def _entry(package: str, name: str, path: Path, node: Definition) -> str:
    lines = [f"### {package}.{name}", ""]
    if isinstance(node, ast.Assign):
        doc = _doc_after(_tree(path).body, name)
        return "\n".join([*lines, f"`{name} = {ast.unparse(node.value)}`", "", *_text(doc), ""])
    if isinstance(node, ast.ClassDef):
        return "\n".join([*lines, *_class(name, path, node)])
    return "\n".join([*lines, *_signature(name, node), *_text(ast.get_docstring(node)), ""])


def _class(name: str, path: Path, node: ast.ClassDef) -> Iterator[str]:
    body = _body(path, node)
    yield f"`class {name}`"
    yield ""
    yield from _text(ast.get_docstring(node))
    yield ""
    for field, annotation, default in _fields(body):
        doc = " ".join(_text(_doc_after(body, field)))
        shown = f"{field}: {annotation}" if annotation else field
        yield f"- `{shown}{f' = {default}' if default else ''}`{': ' + doc if doc else ''}"
    yield ""
    for method in body:
        if isinstance(method, Function) and not method.name.startswith("_"):
            if _is_property(method):
                yield f"**`{method.name}`** (property)"
                yield ""
            else:
                yield from _signature(method.name, method)
            yield from _text(ast.get_docstring(method))
            yield ""


def _body(path: Path, node: ast.ClassDef) -> list[ast.stmt]:
    """Return the statements of a class and, before them, of those of ours that it comes from."""
    own = {one.name for one in node.body if isinstance(one, Function)}
    inherited: list[ast.stmt] = []
    for base in node.bases:
        try:
            inherited += _body(*_class_of(path, ast.unparse(base)))
        except LookupError:
            continue  # Python's, or a library's
    return [
        one for one in inherited if not (isinstance(one, Function) and one.name in own)
    ] + node.body


def _class_of(path: Path, name: str) -> tuple[Path, ast.ClassDef]:
    home, node = _find(path, name)
    if not isinstance(node, ast.ClassDef):
        raise LookupError(name)
    return home, node


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, str, str]]:
    for one in body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            name, default = one.target.id, ast.unparse(one.value) if one.value else ""
            if not name.startswith("_"):
                yield name, ast.unparse(one.annotation), default
        elif isinstance(one, ast.Assign) and not _name(one).startswith("_"):
            yield _name(one), "", ast.unparse(one.value)


def _is_property(node: Function) -> bool:
    return any(ast.unparse(one) == "property" for one in node.decorator_list)


def _signature(name: str, node: Function) -> Iterator[str]:
    """Yield the signature as code; one parameter a line where it is long."""
    start = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    parameters = list(_parameters(node.args))
    line = f"{start}def {name}({', '.join(parameters)}){returns}: ..."
    yield "```python"
    if len(line) <= LINE:
        yield line
    else:
        yield f"{start}def {name}("
        yield from (f"    {one}," for one in parameters)
        yield f"){returns}: ..."
    yield "```"
    yield ""


def _parameters(given: ast.arguments) -> Iterator[str]:
    first = [*given.posonlyargs, *given.args]
    required: list[ast.expr | None] = [None] * (len(first) - len(given.defaults))
    for one, default in zip(first, [*required, *given.defaults], strict=True):
        if one.arg not in ("self", "cls"):
            yield _parameter(one, default)
    if given.vararg is not None:
        yield f"*{_parameter(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _parameter(one, default)
    if given.kwarg is not None:
        yield f"**{_parameter(given.kwarg, None)}"


def _parameter(given: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if given.annotation is None else f": {ast.unparse(given.annotation)}"
    shown = f"{given.arg}{annotation}{'' if default is None else f' = {ast.unparse(default)}'}"
    return re.sub(r"'([^'\"\\\\]*)'", r'"\1"', shown)  # as the formatter has it


def _doc_after(body: list[ast.stmt], name: str) -> str | None:
    """Return the text that stands below the definition of a field or a constant."""
    for one, after in pairwise(body):
        if isinstance(one, ast.AnnAssign):
            target = ast.unparse(one.target)
        elif isinstance(one, ast.Assign):
            target = ast.unparse(one.targets[0])
        else:
            continue
        if target == name and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return str(after.value.value)
    return None


def _text(doc: str | None) -> Iterator[str]:
    """Yield a docstring as Markdown."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", (doc or "").strip())):
        lines = paragraph.splitlines()
        if number:
            yield ""
        if lines and lines[0].strip() in SECTIONS:
            yield f"*{lines[0].strip()}*"
            yield ""
            yield from _items(lines[1:], itemized=lines[0].strip() in ("Args:", "Raises:"))
        elif len(lines) > 1 and all(line.startswith("    ") for line in lines):
            yield from ("```text", *(line[4:] for line in lines), "```")
        elif lines:
            yield _markdown(" ".join(line.strip() for line in lines))


def _items(lines: list[str], *, itemized: bool) -> Iterator[str]:
    """Yield the items of a section; a line that is indented deeper goes on with its item."""
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    item = ""
    for line in lines:
        begins = itemized and len(line) - len(line.lstrip()) == indent
        if begins and item:
            yield item
        text = line.strip()
        if begins:
            name, _, rest = text.partition(":")
            item = f"- `{name}`: {_markdown(rest.strip())}"
        else:
            item = f"{item} {_markdown(text)}".strip()
    if item:
        yield item


def _markdown(text: str) -> str:
    """Return reStructuredText's literals as Markdown's, and nothing that is taken for HTML."""
    parts = text.replace("``", "`").split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "\\<") for number, part in enumerate(parts)
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
