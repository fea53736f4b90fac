"""Writes docs/reference/: tables of settings, commands, routes and the built-in knowledge.

`python docs/generate.py` writes them (`make docs`); `--check` exits with 1 if a file is stale.
tests/test_docs.py makes the same check.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "reference"
ROOT = FOLDER.parent.parent
NOTICE = "<!-- Written by `make docs` from the code. Do not edit. -->\n"


def settings_page() -> str:
    """Every setting with its environment variable, default and meaning."""
    from kb.settings import Settings

    rows = [
        "| environment variable | default | meaning |",
        "|---|---|---|",
        *(
            f"| `KERNLORE_{name.upper()}` | `{_default(field.default)}` | {field.description} |"
            for name, field in Settings.model_fields.items()
        ),
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            NOTICE,
            "Each setting is an environment variable; an option such as `--data-dir` wins over it.",
            "`kernlore config show` prints the values in force and where each comes from.",
            "",
            *rows,
            "",
        ]
    )


def _default(value: Any) -> str:
    if isinstance(value, Path):
        return str(value.relative_to(ROOT)) if value.is_relative_to(ROOT) else str(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def commands_page() -> str:
    """Every command of `kernlore` with its arguments and options."""
    parts = ["# Commands", "", NOTICE]
    for path, command in commands():
        parts += ["", f"## {' '.join(path)}", "", plain_text(command.help or ""), ""]
        parameters = [p for p in command.params if not getattr(p, "hidden", False)]
        if parameters:
            parts += ["| argument or option | default | meaning |", "|---|---|---|"]
            parts += [_parameter(parameter) for parameter in parameters]
    return "\n".join(parts) + "\n"


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, command) of every command that does something, groups left out."""
    from api.cli.main import kernlore

    yield from _walk(kernlore(), ("kernlore",))


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "load"):  # a line of the list whose command is imported when it is used
        command = command.load()
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = command.make_context(path[-1], [], resilient_parsing=True)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None and not below.hidden:
            yield from _walk(below, (*path, name))


def _parameter(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.default
    shown = f"`{default}`" if isinstance(default, str | int | float) and default else ""
    return f"| {names} | {shown} | {plain_text(getattr(parameter, 'help', None) or '')} |"


def plain_text(text: str) -> str:
    """One paragraph on one line; the bar that would end a cell of a table is escaped."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def routes_page() -> str:
    """Every operation with its route, role, tool and the first sentence of its description."""
    from api.mcp.tools import TOOLS
    from api.operations import operations
    from kb.catalog.keys import ROLES

    tools: dict[str, list[str]] = defaultdict(list)
    for tool, operation in TOOLS.items():
        tools[operation.route].append(f"`{tool}`")
    rows = [
        f"| `{o.route}` | {'' if o.public else o.role} | {', '.join(tools[o.route])} |"
        f" {plain_text(o.summary)} | {plain_text(_first_sentence(o.description))} |"
        for o in operations()
    ]
    return "\n".join(
        [
            "# Routes",
            "",
            NOTICE,
            "The whole interface, with an example for every signal, is at `/docs` of a running"
            " service (no internet needed) and at `/openapi.json`.",
            "",
            "A key needs the role of a route, or one that includes it: "
            + " < ".join(ROLES)
            + ". A tool at `/mcp` needs the role of its route.",
            "",
            "| route | role | tools | name | description |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text.strip(), maxsplit=1)[0]


def knowledge_page() -> str:
    """What ships: chips, whole kernels and skills, from their files."""
    from docs import knowledge_page as written

    return written.knowledge_page(ROOT / "hw_manuals", ROOT / "skills" / "library", NOTICE)


PAGES = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "routes.md": routes_page,
    "knowledge.md": knowledge_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Write nothing; exit 1 if stale.")
    check = parser.parse_args().check
    stale = []
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if stale and check:
        print(f"docs/reference is stale: {', '.join(stale)}. Run `make docs`.")
    return int(bool(stale) and check)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
