"""Contexts of requests as an engineer puts them, one file each, for readers who grade them.

    python -m benchmarks.knowledge.requests --output FOLDER [--data-dir DIR] [--reader strong]

A reader sees a file and nothing else, and grades it: *good* if it answers the request (for a
kernel: one of the kind, whole in its main loop, for the chip and language) and at most two parts
are off the subject; *fair* if it helps in part; else *poor*.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import ended, say, table
from benchmarks.retrieval.latency import request_of
from benchmarks.service import builtin_services

REQUESTS = Path(__file__).with_suffix(".toml")


def load_requests() -> dict[str, Mapping[str, Any]]:
    """The bodies of the requests by id."""
    rows = tomllib.loads(REQUESTS.read_text(encoding="utf-8"))["requests"]
    return {row["id"]: row["body"] for row in rows}


def run(options: argparse.Namespace) -> None:
    options.output.mkdir(parents=True, exist_ok=True)
    cells = []
    with builtin_services(options.data_dir) as services:
        for row, body in load_requests().items():
            asked = {**body, **({"reader": options.reader} if options.reader else {})}
            answer = services.retriever.retrieve(request_of(asked))
            text = f"Request: {json.dumps(asked)}\n\n{answer.context}"
            (options.output / f"{row}.txt").write_text(text, encoding="utf-8")
            kinds = [part.kind for part in answer.parts]
            samples = [part.citation for part in answer.parts if part.kind == "sample"]
            cells.append([row, answer.context_tokens, len(kinds), "; ".join(samples[:2])])
    say(table(["request", "tokens", "parts", "kernels"], cells))


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knowledge.requests", description=__doc__
    )
    parser.add_argument("--output", type=Path, required=True, help="Folder of the contexts.")
    parser.add_argument("--data-dir", type=Path, help="A store to use; default a fresh one.")
    parser.add_argument("--reader", help="Class of the reader: strong or small.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
