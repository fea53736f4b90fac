"""The structure of the source: imports go one way, between packages and inside `skills`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from benchmarks.source_shape import measured_rooms, room_limits

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kb", "ingestion", "retrieval", "skills", "optimizer", "api")
ALLOWED = {
    "kb": {"kb"},
    "ingestion": {"kb", "ingestion"},
    "retrieval": {"kb", "retrieval"},
    "optimizer": {"kb", "ingestion", "retrieval", "optimizer"},
    "skills": {"kb", "ingestion", "retrieval", "optimizer", "skills"},
    "api": set(PACKAGES),
}
CHROMA_OWNER = Path("kb/index/chroma.py")
# Templates of recipes are not Python until they are filled.
LIBRARY = Path("skills/library")
# The exploits are read as text, and executed in runners only.
EXPLOITS = tuple(Path("optimizer/evaluation/exploits") / n for n in ("candidates", "problems"))


@cache
def modules() -> list[Path]:
    return sorted(
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "__pycache__" not in path.parts
        and not any(path.is_relative_to(ROOT / data) for data in (LIBRARY, *EXPLOITS))
    )


def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Outline:
    """The facts that these tests need of a module: the trees of all modules are millions of
    objects, which every garbage collection would visit.
    """

    imported: tuple[str, ...]
    relative: bool
    purpose: str | None
    classes: tuple[tuple[str, int], ...]  # name and line
    assigned: tuple[str, ...]  # the names that its top level binds, as often as it binds them


@cache
def outline(path: Path) -> Outline:
    module = tree(path)
    imported: list[str] = []
    classes: list[tuple[str, int]] = []
    relative = False
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            imported += (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = relative or bool(node.level)
            imported += [node.module] if node.module and not node.level else []
        elif isinstance(node, ast.ClassDef):
            classes.append((node.name, node.lineno))
    assigned = tuple(assigned_in(module))
    return Outline(tuple(imported), relative, ast.get_docstring(module), tuple(classes), assigned)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    wrong = [
        f"{path} imports {name}"
        for path in modules()
        if path.parts[0] == package
        for name in outline(path).imported
        if name.split(".")[0] in PACKAGES and name.split(".")[0] not in ALLOWED[package]
    ]
    assert wrong == []


# Inside a package: modules that the first never imports, with the reason.
APART = (
    (
        "optimizer/evaluation",
        "optimizer.search",
        "a candidate is judged without knowing who made it",
    ),
    ("optimizer/evaluation/runner", "kb", "the candidate's process holds nothing of the product"),
    ("optimizer/evaluation/runner", "optimizer.evaluation.problem", "nor a problem or its results"),
    ("kb/catalog", "kb.index", "the catalog is the truth, indexes are derived from it"),
    ("ingestion/formats", "kb.catalog", "readers make elements; the worker stores them"),
    ("retrieval/diagnose", "kb.catalog", "a diagnosis needs no documents"),
    ("skills/format", "skills.curator", "the SKILL.md format is read without learning"),
    ("skills/curator", "skills.training", "what is learned does not depend on what is exported"),
)
# An attachment of a mail is parsed by the parser of its format.
KNOWN_CIRCLES = {frozenset({"ingestion/formats", "ingestion/formats/office.py"})}


@pytest.mark.parametrize(("folder", "other", "why"), APART)
def test_separate_modules_do_not_import_each_other(folder: str, other: str, why: str) -> None:
    assert (ROOT / folder).is_dir()
    wrong = [
        f"{path} imports {name}"
        for path in modules()
        if path.is_relative_to(folder)
        for name in outline(path).imported
        if f"{name}.".startswith(f"{other}.")
    ]
    assert wrong == [], why


def test_imports_between_folders_have_no_cycle() -> None:
    """A folder is one node, and so is each module next to folders."""
    arrows: dict[str, set[str]] = {}
    known = set(modules())
    for path in known:
        for name in outline(path).imported:
            target = place_of(name, known)
            if target is not None and room(target) != room(path):
                arrows.setdefault(room(path), set()).add(room(target))
    circles = {frozenset(circle) for circle in circles_in(arrows)}
    assert circles == KNOWN_CIRCLES


def place_of(name: str, known: set[Path]) -> Path | None:
    path = Path(*name.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p in known), None)


@cache
def room(path: Path) -> str:
    folders = any(
        below.is_dir() and any(below.rglob("*.py")) and not below.name.startswith("__")
        for below in (ROOT / path.parent).iterdir()
        if below.relative_to(ROOT) not in (LIBRARY, *EXPLOITS)
    )
    return str(path) if folders and path.name != "__init__.py" else str(path.parent)


def circles_in(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Sets of nodes that reach each other."""

    def reached(start: str) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            for target in arrows.get(waiting.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return seen

    reach = {node: reached(node) for node in arrows}
    return [
        {other for other in seen if node in reach.get(other, ())}
        for node, seen in reach.items()
        if node in seen
    ]


def test_interfaces_do_not_import_each_other() -> None:
    """Both call the operations; `api.app` and `api.workers` assemble a service."""
    wrong = [
        f"{path} imports {name}"
        for door, other in (("api/cli", "api.http"), ("api/http", "api.cli"))
        for path in modules()
        if path.is_relative_to(door)
        for name in outline(path).imported
        if f"{name}.".startswith(f"{other}.")
    ]
    assert wrong == []


def test_only_command_targets_send_requests() -> None:
    """A command calls operations without knowing whether a service carries them out."""
    senders = [
        path.as_posix()
        for path in modules()
        if path.is_relative_to("api/cli")
        and any(name in ("httpx", "retrieval.client") for name in outline(path).imported)
    ]
    assert senders == ["api/cli/commands/serve.py", "api/cli/target.py"]


def test_imports_are_absolute() -> None:
    relative = [str(path) for path in modules() if outline(path).relative]
    assert relative == []


def test_only_one_module_opens_chroma() -> None:
    openers = [
        path
        for path in modules()
        if any(n.split(".")[0] == "chromadb" for n in outline(path).imported)
    ]
    assert openers == [CHROMA_OWNER]


def test_ray_is_imported_only_with_cluster() -> None:
    """It is an extra and takes a second, so no module imports it at import time."""
    importers = {path for path in modules() if "ray" in outline(path).imported}
    assert importers == {
        Path("kb/cluster.py"),
        Path("ingestion/cluster.py"),
        Path("optimizer/search/bench/on_node.py"),
    }
    at_once = [
        str(path)
        for path in importers
        for node in tree(path).body
        if isinstance(node, ast.Import) and any(name.name == "ray" for name in node.names)
    ]
    assert at_once == []


def test_package_grows_only_with_reason() -> None:
    limits = room_limits()
    grown = [
        f"{package} has {room.files} files and {room.lines} lines, {limits[package].files} and"
        f" {limits[package].lines} are recorded"
        for package, room in measured_rooms().items()
        if room.files > limits[package].files or room.lines > limits[package].lines
    ]
    assert grown == [], "remove something, or add an entry with the reason to benchmarks/rooms.toml"


def test_every_module_has_docstring() -> None:
    silent = [
        str(path)
        for path in modules()
        if (ROOT / path).read_text(encoding="utf-8").strip() and not outline(path).purpose
    ]
    assert silent == []


def test_names_of_test_modules_are_unique() -> None:
    """pytest imports them by name alone: of two equal names, one would not be collected."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_module_stays_on_one_worker(request: pytest.FixtureRequest) -> None:
    """A pytest version unknown to pytest-xdist drops the groups silently; then every worker makes
    every fixture, and `make test` takes twice as long.
    """
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("this is no worker of `make test`")
    assert request.node.nodeid.endswith("@tests/test_architecture.py"), request.node.nodeid


@pytest.mark.slow
def test_application_imports_no_heavy_library() -> None:
    """Each takes a second or more of the start of a service."""
    heavy = {"torch", "triton", "transformers", "onnxruntime", "llama_index", "chromadb"}
    code = f"import sys, api.app; print(*({heavy!r} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []


# A separate distribution, whose records are generated from those of the service.
CLIENT = Path("retrieval/client.py")


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for path in modules():
        if path == CLIENT or path.is_relative_to("optimizer/problems"):
            continue
        for name, line in outline(path).classes:
            places.setdefault(name, []).append(f"{path}:{line}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_main_block_is_the_last_statement() -> None:
    """A later definition does not exist yet when the module runs as `python -m`."""
    folders = (*PACKAGES, "benchmarks", "docs", "tests", "examples")
    early = []
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "__main__" not in text or path.is_relative_to(ROOT / LIBRARY):
            continue
        body = ast.parse(text).body
        mains = [n for n in body[:-1] if isinstance(n, ast.If) and "__main__" in ast.dump(n.test)]
        early += [str(path.relative_to(ROOT)) for _ in mains]
    assert early == []


def assigned_in(module: ast.Module) -> list[str]:
    """The names that the top level of a module binds by assignments."""
    targets: list[ast.expr] = []
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            targets += statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets.append(statement.target)
    names = (n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def test_no_constant_of_a_module_is_replaced_by_another() -> None:
    replaced = {}
    for path in modules():
        names = outline(path).assigned
        if twice := sorted({name for name in names if names.count(name) > 1}):
            replaced[str(path)] = twice
    assert replaced == {}


# -- the packages of skills/ import one another in one direction

SKILLS = ROOT / "skills"
SKILL_LIBRARY = "(library)"  # modules directly in skills/
SKILL_ROOMS = {
    "format": set[str](),
    SKILL_LIBRARY: {"format"},
    "trajectories": {"format", SKILL_LIBRARY},
    "trials": {"format", SKILL_LIBRARY, "trajectories"},
    "curator": {"format", SKILL_LIBRARY, "trajectories", "trials"},
    "training": {"format", SKILL_LIBRARY, "trajectories"},
    "lineage": {"format", SKILL_LIBRARY, "trajectories", "curator"},
}


def rooms_imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skills."):
            parts = (node.module or "").split(".")
            yield parts[1] if parts[1] in SKILL_ROOMS else SKILL_LIBRARY


@pytest.mark.parametrize("room", SKILL_ROOMS)
def test_package_imports_only_lower_packages(room: str) -> None:
    paths = SKILLS.glob("*.py") if room == SKILL_LIBRARY else (SKILLS / room).rglob("*.py")
    imported = {(path.name, other) for path in paths for other in rooms_imported(path)}
    assert imported, room
    assert {(name, o) for name, o in imported if o not in SKILL_ROOMS[room] | {room}} == set()


def test_every_code_folder_is_a_listed_package() -> None:
    folders = {path.parent.name for path in SKILLS.glob("*/*.py")}
    assert folders == SKILL_ROOMS.keys() - {SKILL_LIBRARY}
