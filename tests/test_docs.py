"""The documentation agrees with the code: tables are generated, commands exist, links resolve, and
examples marked as executed run.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs.generate import PAGES, commands

ROOT = Path(__file__).resolve().parent.parent
PAGES_BY_HAND = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
]
# Every Markdown file except knowledge, skills and prompts, whose brackets are often code.
ALL_PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(
        page
        for folder in ("benchmarks", "clients", "deploy", "docs", "examples")
        for page in (ROOT / folder).rglob("*.md")
    ),
    ROOT / "hw_manuals" / "FORMAT.md",
]
RESULTS = ROOT / "benchmarks" / "results"
MAX_LINE = 200  # characters of a line outside tables
SHELL = re.compile(r"^(<!-- executed -->\n)?```(?:sh)?\n(.*?)^```$", re.M | re.S)
EXECUTED = re.compile(
    r"^<!-- executed -->\n```sh\n(.*?)^```$(?:(?:(?!^```).)*?^```text\n(.*?)^```$)?", re.M | re.S
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")  # also of an image
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


@pytest.mark.parametrize(
    "name",
    # One of them reads all shipped knowledge.
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "knowledge.md" else name
        for name in PAGES
    ],
)
def test_reference_tables_equal_code(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "run `make docs`"


@cache
def known_commands() -> dict[tuple[str, ...], Any]:
    return dict(commands())


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words of every `kernlore` command of the page's shell blocks, without comments."""
    for block in SHELL.finditer(page.read_text(encoding="utf-8")):
        for line in block[2].splitlines():
            for part in re.split(r"\s{4,}(?=kernlore )|\s&&\s", line.strip()):
                if part.startswith("kernlore "):
                    yield shlex.split(part, comments=True)


@pytest.mark.parametrize("page", PAGES_BY_HAND, ids=names(PAGES_BY_HAND))
def test_documented_commands_and_options_exist(page: Path) -> None:
    unknown = []
    for words in command_lines(page):
        path = next((p for p in known_commands() if tuple(words[: len(p)]) == p), None)
        if path is None:
            unknown.append(" ".join(words))
            continue
        parameters = known_commands()[path].params
        options = {name for p in parameters for name in (*p.opts, *p.secondary_opts)}
        given = {m[0] for word in words for m in re.finditer(r"(?<![\w-])--[a-z][a-z-]*", word)}
        unknown += [f"{' '.join(path)}: {name}" for name in given - options - {"--help"}]
    assert unknown == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=names(ALL_PAGES))
def test_links_resolve(page: Path) -> None:
    dead = []
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        place, _, anchor = target.partition("#")
        if "://" in place:
            continue
        path = (page.parent / place).resolve() if place else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            dead.append(target)
    assert dead == []


def test_every_record_and_result_is_in_its_index() -> None:
    """A decision record is in the index of records, a result in that of results and in a text."""
    records = {page.name for page in (ROOT / "docs" / "adr").glob("[0-9]*.md")}
    results = {page.name for page in RESULTS.glob("*.md")} - {"README.md"}
    assert records == linked(ROOT / "docs" / "adr" / "README.md", here=True)
    assert results == linked(RESULTS / "README.md", here=True)
    readers = [page for page in ALL_PAGES if page.parent != RESULTS]
    cited = {Path(target).name for page in readers for target in linked(page)}
    assert results - cited == set()


def linked(page: Path, here: bool = False) -> set[str]:
    """Files that a page links to; with `here`, only those of the same folder."""
    targets = {t.partition("#")[0] for t in LINK.findall(page.read_text(encoding="utf-8"))}
    return {t for t in targets if t and "://" not in t and not (here and "/" in t)}


def test_files_and_constants_of_architecture_page_exist() -> None:
    """Paths are from the root, or from the folder that the paragraph is about."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = [ROOT / folder for folder in ("", "optimizer", "optimizer/evaluation")]
    paths = set(re.findall(r"`([a-z_]+/[\w/]+(?:\.\w+|/))`", text))
    found = {path: [f / path for f in folders if (f / path).exists()] for path in paths}
    assert [path for path, places in found.items() if not places and "NAME" not in path] == []
    files = [place for places in found.values() for place in places if place.is_file()]
    # In a paragraph that names a folder, modules of that folder.
    modules = {module for file in files for module in file.parent.glob("*.py")} | set(files)
    source = "\n".join(m.read_text(encoding="utf-8") for m in modules)
    constants = set(re.findall(r"`(_?[A-Z][A-Z_]{3,})`", text)) - {"LANGUAGE", "NAME"}
    assert [name for name in constants if f"\n{name}" not in source] == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=names(ALL_PAGES))
def test_benchmarks_named_in_pages_exist(page: Path) -> None:
    modules = set(re.findall(r"python -m (benchmarks[.\w]*\w)", page.read_text(encoding="utf-8")))
    paths = {module: ROOT / module.replace(".", "/") for module in modules}
    missing = [
        module
        for module, path in paths.items()
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists()
    ]
    assert missing == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES_BY_HAND, ids=names(PAGES_BY_HAND))
def test_lines_are_short_enough_for_editor(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    long = [line[:60] for line in text.splitlines() if len(line) > MAX_LINE and line[0] != "|"]
    assert long == []


@pytest.mark.parametrize("page", PAGES_BY_HAND, ids=names(PAGES_BY_HAND))
def test_executed_examples_give_shown_output(
    page: Path, service_url: str, service_folder: Path, tmp_path: Path
) -> None:
    """A block after `<!-- executed -->` runs; the following text block is part of its output."""
    text = page.read_text(encoding="utf-8")
    command = tmp_path / "bin" / "kernlore"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m api.cli.main "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "KERNLORE_DATA_DIR": str(service_folder / "data"),
    }
    for block in EXECUTED.finditer(text):
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block[1]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        shown = block[2] or ""
        missing = [part for part in parts(shown) if part not in normal(ran.stdout)]
        assert missing == [], ran.stdout[:2_000]


def parts(shown: str) -> list[str]:
    """The visible lines of an answer, split where the page omits something."""
    cut = (part for line in shown.splitlines() for part in line.split("..."))
    return [normal(part) for part in cut if part.strip()]


def normal(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


# -- the examples, run like a user does with a running service

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_example_prints_context_and_reports(service_url: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "your_loop.py"), service_url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "shared memory" in ran.stdout.lower()


def test_example_needs_only_httpx_and_fifteen_lines() -> None:
    source = (EXAMPLES / "your_loop.py").read_text(encoding="utf-8")
    imports = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert sorted(a.name for n in imports for a in n.names) == ["httpx", "sys"]
    assert len([line for line in source.splitlines() if line.strip()]) <= 15
