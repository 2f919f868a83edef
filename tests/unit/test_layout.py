"""The folders are the architecture: what is a package, what imports what, what is installed."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]

NOT_SHIPPED = {"tests", "bench", "docs", "build", "dist", "deploy", "commitline.egg-info"}

FLOORS = (
    # From the ground up: a room imports from the rooms before it, and from itself.
    ("errors",),
    ("crash", "process", "canonical", "database_url", "private_files", "redaction"),
    ("shown",),
    ("logs",),
    ("log_output",),
    ("identity",),
    ("idempotency_key",),
    ("metrics", "traces"),
    ("config",),
    ("ledger",),
    ("devstack",),
    ("activities.contract",),
    ("activities.model", "activities.replies"),
    ("activities.app",),
    ("activities.runner",),
    ("activities.guard",),
    ("activities.runs",),
    ("workflows",),
    ("handles", "integrations"),
    ("deployment", "health"),
    ("client", "worker"),
    ("operating",),
    ("examples",),
    ("testing",),
    ("commands",),
    ("cli",),
)
"""The rooms of the house: folders, and the modules of the root."""

NO_ROOMS = {"", "activities"}
"""Packages that only hand names on, or hold rooms."""


def shipped_modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package, by its name within it: ``ledger.pool``, ``worker``."""
    for package in SETUPTOOLS["packages"]:
        inner = package.removeprefix("commitline").lstrip(".")
        for path in sorted((ROOT / inner.replace(".", "/")).glob("*.py")):
            stem = "" if path.stem == "__init__" else path.stem
            yield ".".join(part for part in (inner, stem) if part), path


MODULES = dict(shipped_modules())
PACKAGES = {name.removeprefix("commitline").lstrip(".") for name in SETUPTOOLS["packages"]}


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imports_of(name: str) -> frozenset[str]:
    """Return what a module imports, anywhere in it: ``psycopg``, or ``.ledger.pool``.

    Also in a function, and under ``TYPE_CHECKING``: a name that is only used in annotations is
    as much of a tie. What a package hands on counts as imported from where it is defined.
    """
    found: set[str] = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            found |= {_own(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, name)
            found |= {
                f".{_home(base[1:], alias.name)}" if base.startswith(".") else base
                for alias in node.names
            }
    return frozenset(found)


def _base(node: ast.ImportFrom, importer: str) -> str:
    """Return what ``from … import`` names: ``.ledger`` for a package or module of ours."""
    if node.level == 0:
        return _own(node.module or "")
    package = importer if importer in PACKAGES else importer.rpartition(".")[0]
    parts = package.split(".") if package else []
    parts = parts[: len(parts) - (node.level - 1)]
    return "." + ".".join([*parts, *([node.module] if node.module else [])])


def _home(base: str, name: str) -> str:
    """Return the module that defines a name which is imported from a module, or a package."""
    if base in PACKAGES:
        exported = handed_on(base)
        if name in exported:
            return _home(*exported[name])
        inner = f"{base}.{name}".lstrip(".")
        if inner in MODULES:
            return inner
    return base


@cache
def handed_on(package: str) -> dict[str, tuple[str, str]]:
    """Return what a package's ``__init__`` imports from modules of ours, to hand it on."""
    return {
        alias.asname or alias.name: (_base(node, package)[1:], alias.name)
        for node in ast.walk(tree_of(package))
        if isinstance(node, ast.ImportFrom) and node.level and node.module
        for alias in node.names
    }


def _own(module: str) -> str:
    if module == "commitline" or module.startswith("commitline."):
        return "." + module.removeprefix("commitline").lstrip(".")
    return module


def room(name: str) -> str:
    """Return the room of a module of ours: ``activities.guard``, ``ledger``, ``worker``."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "activities" else parts[0]


def floor(name: str) -> int:
    """Return the floor of a module of ours; a room that is not listed has none."""
    return next(at for at, rooms in enumerate(FLOORS) if room(name) in rooms)


def ours(name: str) -> set[str]:
    """Return the modules of ours that a module imports."""
    return {found[1:] for found in imports_of(name) if found.startswith(".")}


def test_the_listed_packages_are_the_folders_with_an_init() -> None:
    folders = {"commitline"}
    for init in ROOT.rglob("__init__.py"):
        inner = init.parent.relative_to(ROOT)
        hidden = any(part.startswith(".") for part in inner.parts)
        if inner.parts and not hidden and inner.parts[0] not in NOT_SHIPPED:
            folders.add(".".join(("commitline", *inner.parts)))

    assert sorted(SETUPTOOLS["packages"]) == sorted(folders)


@pytest.mark.parametrize("name", sorted(set(MODULES) - NO_ROOMS))
def test_imports_run_downwards(name: str) -> None:
    upwards = sorted(
        found
        for found in ours(name)
        if found in NO_ROOMS or (room(found) != room(name) and floor(found) >= floor(name))
    )

    assert upwards == []


def test_no_module_imports_itself_through_others() -> None:
    # `python worker.py` hands over to the installed module of its own name.
    importing = {name: ours(name) - {name} for name in MODULES if name not in PACKAGES}

    assert circle_in(importing) == []


def circle_in(importing: Mapping[str, Collection[str]]) -> list[str]:
    """Return a circle of imports, if there is one."""
    done: set[str] = set()

    def walk(name: str, above: tuple[str, ...]) -> list[str]:
        if name in above:
            return [*above[above.index(name) :], name]
        if name in done:
            return []
        for found in sorted(importing.get(name, ())):
            if circle := walk(found, (*above, name)):
                return circle
        done.add(name)
        return []

    return next((circle for name in sorted(importing) if (circle := walk(name, ()))), [])


def test_the_search_for_circles_finds_one() -> None:
    assert circle_in({"a": ["b"], "b": ["c"], "c": ["a"]}) == ["a", "b", "c", "a"]
    assert circle_in({"a": ["b", "c"], "b": ["c"], "c": []}) == []


# An application is written as its users write theirs.
@pytest.mark.parametrize("name", sorted(n for n in MODULES if room(n) != "examples"))
def test_imports_inside_the_package_are_relative(name: str) -> None:
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
    tree = tree_of(name)
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

    The packages of a module are imported with it, so what their ``__init__`` imports counts too;
    not of those that import a name when it is first used (PEP 562).
    """
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for imported in imports_of(waiting.pop()):
            for one in (imported, *_packages_of(imported)):
                if one not in found:
                    found.add(one)
                    if one.startswith(".") and one[1:] not in LAZY:
                        waiting.append(one[1:])
    return found


def _packages_of(imported: str) -> Iterator[str]:
    if imported.startswith("."):
        parts = imported[1:].split(".")
        yield from ("." + ".".join(parts[:end]) for end in range(len(parts)))


LAZY = {"", "ledger"}
"""Packages whose names are imported when they are first used."""


def test_the_walk_over_imports_sees_what_it_should() -> None:
    """The tests above would pass if it saw nothing."""
    assert "psycopg" in reachable("ledger.action_ledger")
    assert "temporalio" in {found.split(".")[0] for found in reachable("workflows.agent_run")}
    assert ".ledger.action_records" in reachable("workflows.agent_run")
    assert ".canonical" in imports_of("ledger.action_records")
    assert ".activities.app.agent" in reachable("worker")
    # Handed on by a package, and imported in a function.
    assert ".ledger.action_ledger" in imports_of("client")
    assert ".worker" in imports_of("commands.starting")


@pytest.mark.parametrize("package", sorted(LAZY))
def test_a_lazy_package_imports_nothing_before_a_name_is_used(package: str) -> None:
    tree = tree_of(package)
    typed = [node for node in tree.body if isinstance(node, ast.If)]
    eager = {
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    told = {
        alias.name
        for block in typed
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    module = importlib.import_module(f"commitline.{package}".rstrip("."))

    assert eager == {"TYPE_CHECKING", "import_module"}
    assert sorted(told) == sorted(module._HOMES) == sorted(module.__all__)


def test_the_root_can_be_imported_as_a_module_of_no_package() -> None:
    """pytest does so where the clone's folder has a name that is no identifier."""
    spec = importlib.util.spec_from_file_location("no-package", ROOT / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert getattr(module, "pytest_plugins", None) is None


def test_workflow_code_runs_without_a_database_driver_and_an_application() -> None:
    program = (
        "import sys, commitline.workflows\n"
        "rooms = ('app', 'guard', 'model', 'runner', 'runs')\n"
        "lacks = ('psycopg', *(f'commitline.activities.{room}' for room in rooms))\n"
        "print([name for name in lacks if name in sys.modules])"
    )

    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.startswith("workflows.")))
def test_workflow_code_imports_messages_and_replies_of_the_activities(name: str) -> None:
    rooms = {room(found) for found in ours(name) if found.startswith("activities.")}

    assert rooms <= {"activities.contract", "activities.replies"}


@pytest.mark.parametrize("package", sorted(SETUPTOOLS["packages"]))
def test_a_package_lists_exactly_what_it_exports(package: str) -> None:
    module = importlib.import_module(package)
    inner = package.removeprefix("commitline").lstrip(".")
    tree = tree_of(inner)
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level
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


def test_no_module_and_no_function_is_too_long_to_read() -> None:
    lengths = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()
    }
    functions = [
        (name, node.name, length)
        for name in MODULES
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := length_of(node)) > MOST_LINES_OF_A_FUNCTION
    ]

    # The catalogue of errors is one list.
    assert [name for name, length in lengths.items() if length > MOST_LINES] == ["errors"]
    assert functions == []


MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 40


def length_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node) is None:
        return lines
    return lines - ((node.body[0].end_lineno or 0) - node.body[0].lineno + 1)


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
