"""Write foreign problems, and report what their searches came to.

    python -m benchmarks.search.foreign write --size gpu --seeds 0-3 --out foreign
    python -m benchmarks.search.foreign write --size gpu --modules --out foreign
    kernlore runs pack foreign/*.py --hardware h200 -o foreign.zip
    python foreign.zip --out results --minutes 9          (on the machine with the device)
    python -m benchmarks.search.foreign report results -o report.md

Even seeds may be looked at while the product is changed; odd seeds are for the report alone.
--modules writes blocks of torchvision, timm and transformers models in place of drawn problems;
those packages must be installed where they are searched.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from benchmarks.report import ended, say, write_result
from benchmarks.search.foreign.grammar import FAMILIES, problem_text, write_modules
from benchmarks.search.foreign.report import opened, read_results, report
from kb.errors import InvalidRequest


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.search.foreign", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write problem files to a folder")
    writing.add_argument("--size", choices=("cpu", "gpu"), required=True)
    writing.add_argument("--seeds", default="0-3", help="first and last, such as 0-3")
    writing.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    writing.add_argument("--modules", action="store_true", help="blocks of published models")
    writing.add_argument("--out", type=Path, required=True)
    reporting = commands.add_parser("report", help="report the folders that sessions left")
    reporting.add_argument("folders", nargs="+", type=Path)
    reporting.add_argument("--drawn", nargs="*", help="names that were to be searched")
    reporting.add_argument("--command", dest="by", default="", help="the command of the sessions")
    reporting.add_argument("--output", "-o", type=Path)
    options = parser.parse_args()
    if options.command == "write":
        ended(lambda: write(options))
    else:
        ended(lambda: show(options))


def write(options: argparse.Namespace) -> None:
    """Raises InvalidRequest where the seeds are not two numbers."""
    options.out.mkdir(parents=True, exist_ok=True)
    if options.modules:
        names = write_modules(options.size, options.out)
        say(f"{len(names)} problems in {options.out}")
        return
    first, _, last = options.seeds.partition("-")
    if not (first.isdigit() and (last or first).isdigit()):
        raise InvalidRequest(
            f"{options.seeds!r} are no seeds", hint="Give the first and the last one: 0-3."
        )
    for family in options.families:
        for seed in range(int(first), int(last or first) + 1):
            text = problem_text(family, seed, options.size)
            (options.out / f"{family}_{seed}.py").write_text(text, encoding="utf-8")
    say(f"{len(list(options.out.glob('*.py')))} problems in {options.out}")


def show(options: argparse.Namespace) -> None:
    """Raises NotFound or InvalidRequest where a folder holds no runs."""
    with ExitStack() as stack:
        results = [
            result
            for folder in options.folders
            for result in read_results(stack.enter_context(opened(folder)))
        ]
    parts = report(results, options.drawn or ())
    command = [f"Command of the sessions: `{options.by}`."] if options.by else []
    write_result(
        options.output, "Searches on problems that no recipe was written for", parts + command
    )


if __name__ == "__main__":
    main()
