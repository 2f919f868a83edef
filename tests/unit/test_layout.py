"""The folders are the architecture: what is a package, what imports what, what is installed."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]

NOT_SHIPPED = {"tests", "bench", "docs", "build", "dist", "deploy", "commitline.egg-info"}

FLOORS = {"ledger": 2, "activities": 3, "workflows": 4}
WORDS = {
    "canonical",
    "crash",
    "errors",
    "exports",
    "idempotency_key",
    "identity",
    "logs",
    "process",
    "config",
}
"""The few modules of the root that all share: floor 1. Every other one of the root is on top."""
TOP = 5


def shipped_modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package, by its name within it: ``ledger.pool``, ``worker``."""
    for package in SETUPTOOLS["packages"]:
        inner = package.removeprefix("commitline").lstrip(".")
        for path in sorted((ROOT / inner.replace(".", "/")).glob("*.py")):
            stem = "" if path.stem == "__init__" else path.stem
            yield ".".join(part for part in (inner, stem) if part), path


MODULES = dict(shipped_modules())
PACKAGES = {name.removeprefix("commitline").lstrip(".") for name in SETUPTOOLS["packages"]}


def imports_of(name: str) -> set[str]:
    """Return what a module imports, anywhere in it: ``psycopg``, or ``.ledger.pool``."""
    package = name if name in PACKAGES else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {_own(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= set(_imported_from(node, package))
    return found


def _imported_from(node: ast.ImportFrom, package: str) -> Iterator[str]:
    if node.level == 0:
        base = _own(node.module or "")
    else:
        parts = package.split(".") if package else []
        parts = parts[: len(parts) - (node.level - 1)]
        base = "." + ".".join([*parts, *([node.module] if node.module else [])])
    for alias in node.names:
        inner = f"{base.rstrip('.')}.{alias.name}" if base != "." else f".{alias.name}"
        # `from .ledger import pool` is an import of the module, if there is one of that name.
        yield inner if inner.startswith(".") and inner[1:] in MODULES else base


def _own(module: str) -> str:
    if module == "commitline" or module.startswith("commitline."):
        return "." + module.removeprefix("commitline").lstrip(".")
    return module


def floor(name: str) -> int:
    """Return the floor of a module of ours, by its name within the package."""
    first = name.split(".", maxsplit=1)[0]
    return 1 if first in WORDS else FLOORS.get(first, TOP)


def test_the_listed_packages_are_the_folders_with_an_init() -> None:
    folders = {"commitline"}
    for init in ROOT.rglob("__init__.py"):
        inner = init.parent.relative_to(ROOT)
        hidden = any(part.startswith(".") for part in inner.parts)
        if inner.parts and not hidden and inner.parts[0] not in NOT_SHIPPED:
            folders.add(".".join(("commitline", *inner.parts)))

    assert sorted(SETUPTOOLS["packages"]) == sorted(folders)


@pytest.mark.parametrize("name", sorted(n for n in MODULES if floor(n) < TOP))
def test_imports_run_downwards(name: str) -> None:
    ours = {found[1:] for found in imports_of(name) if found.startswith(".")}

    upwards = sorted(found for found in ours if found and floor(found) > floor(name))

    assert upwards == []
    assert "" not in ours, "the root imports everything: nothing below it may import the root"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_inside_the_package_are_relative(name: str) -> None:
    if name.startswith("examples"):
        return  # an application is written as its users write theirs
    text = MODULES[name].read_text(encoding="utf-8")
    absolute = re.findall(r"^from commitline\b|^import commitline\b", text, re.MULTILINE)

    assert absolute == []


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.split(".")[0] == "ledger"))
def test_the_ledger_knows_nothing_of_temporal(name: str) -> None:
    reached = reachable(name)

    assert not [found for found in reached if found.split(".")[0] == "temporalio"]


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.startswith("workflows.")))
def test_workflow_code_reaches_psycopg_by_no_import_of_its_own(name: str) -> None:
    reached = reachable(name)

    assert not [found for found in reached if found.split(".")[0] in ("psycopg", "psycopg_pool")]


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.startswith("workflows.")))
def test_workflow_code_leaves_its_coroutines_to_be_closed(name: str) -> None:
    """A worker that forgets a run throws `GeneratorExit` into them: nothing may be done on it."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    caught = [node.type for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    suppressed = [
        argument
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress")
        for argument in node.args
    ]

    assert None not in caught
    assert not [one for one in [*caught, *suppressed] if one and "BaseEx" in ast.unparse(one)]


def reachable(name: str) -> set[str]:
    """Return everything that a module imports, and what that imports, and so on.

    A package's ``__init__`` is not followed: it runs whenever one of its modules is imported
    and gathers what is public, also what the module does not need.
    """
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for imported in imports_of(waiting.pop()):
            if imported not in found:
                found.add(imported)
                if imported.startswith(".") and imported[1:] not in PACKAGES:
                    waiting.append(imported[1:])
    return found


def test_the_walk_over_imports_sees_what_it_should() -> None:
    """The two tests above would pass if it saw nothing."""
    assert "psycopg" in reachable("ledger.action_ledger")
    assert "temporalio" in {found.split(".")[0] for found in reachable("workflows.agent_run")}
    assert ".ledger.records" in reachable("workflows.agent_run")
    assert ".canonical" in imports_of("ledger.records")


@pytest.mark.parametrize("package", sorted(SETUPTOOLS["packages"]))
def test_a_package_lists_exactly_what_it_exports(package: str) -> None:
    module = importlib.import_module(package)
    inner = package.removeprefix("commitline").lstrip(".")
    tree = ast.parse(MODULES[inner].read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level > 0
        for alias in node.names
        if not alias.name.startswith("_")
    }
    listed: Sequence[str] | None = getattr(module, "__all__", None)

    if listed is None:
        assert not imported
        return
    assert sorted(listed) == list(dict.fromkeys(sorted(listed)))
    assert imported <= set(listed)
    assert all(hasattr(module, name) for name in listed)


def test_no_module_is_named_after_a_kind_of_thing() -> None:
    named = {path.name for path in MODULES.values()}

    assert not named & {"utils.py", "util.py", "common.py", "models.py", "types.py", "helpers.py"}


def test_the_wheel_holds_the_types_and_the_sql_and_nothing_generic(tmp_path: Path) -> None:
    names = wheel_names(tmp_path)

    assert {"commitline/py.typed", "commitline/worker.py"} <= names
    sql = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ledger").rglob("*.sql")}
    assert len(sql) >= 2
    assert {f"commitline/{path}" for path in sql} <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"commitline"}
    seconds = {name.split("/")[1] for name in names if name.startswith("commitline/")}
    assert not seconds & {"tests", "bench", "docs", "deploy"}


def wheel_names(folder: Path) -> set[str]:
    """Return the names in the wheel: built where setuptools can, else as it is declared.

    Older setuptools does not know the licence expression of ``pyproject.toml``.
    """
    version = importlib.metadata.version("setuptools")
    return built_names(folder) if int(version.split(".")[0]) >= 77 else declared_names()


def built_names(folder: Path) -> set[str]:
    # A copy, so that nothing is left in the tree.
    source = folder / "source"
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "node_modules")
    shutil.copytree(ROOT, source, ignore=ignored)
    for needed in ("README.md", "LICENSE"):
        (source / needed).touch()
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", folder, source], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def declared_names() -> set[str]:
    assert SETUPTOOLS["package-dir"] == {"commitline": "."}
    names: set[str] = set()
    for package in SETUPTOOLS["packages"]:
        inner = package.removeprefix("commitline").lstrip(".").replace(".", "/")
        patterns = ["*.py", *SETUPTOOLS["package-data"].get(package, [])]
        names |= {
            f"commitline/{path.relative_to(ROOT).as_posix()}"
            for pattern in patterns
            for path in (ROOT / inner).glob(pattern)
        }
    return names


def test_the_ledger_is_imported_without_temporal_or_a_command_line() -> None:
    program = (
        "import sys, commitline.ledger\n"
        "print([name for name in ('temporalio', 'typer', 'pydantic_ai') if name in sys.modules])"
    )

    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert told.stdout.strip() == "[]"
