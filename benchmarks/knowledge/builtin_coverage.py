"""What the built-in knowledge answers: every signal on every shipped chip, by one `retrieve` each.

A cell counts what the answer holds for that signal: guidance, passages about the chip itself or the
family it belongs to, and moves. A passage counts when it is tagged with the signal, not for merely
being returned. An empty cell states its reason, kept beside this module; an empty cell without a
reason, or a reason for a cell that is filled, fails the run.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from api.cli.backends import read_settings
from api.services import Services, open_services
from benchmarks.report import ended, say, table, write_result
from kb.catalog.tables import knowledge as t
from kb.errors import InvalidKnowledge
from retrieval.answer import Answer
from retrieval.diagnose.signals import load_signals
from retrieval.request import RetrieveRequest

CHIPS = ("x86-64", "neoverse-v2", "a100", "h100", "h200", "b200", "mi300x", "trainium2", "mtia-v2i")
REASONS = Path(__file__).with_name("builtin_coverage_reasons.toml")
TITLE = "What the built-in knowledge answers"
DEEP = 40  # excerpts asked for: all that a reader of the list could page to


@dataclass(frozen=True)
class Cell:
    """guidance, chip: passages of the answer tagged with the signal; moves: remedies it names."""

    signal: str
    hardware: str
    guidance: int
    chip: int
    moves: int

    @property
    def missing(self) -> tuple[str, ...]:
        counted = {"guidance": self.guidance, "chip": self.chip, "move": self.moves}
        return tuple(name for name, count in counted.items() if not count)

    def __str__(self) -> str:
        return f"{self.guidance}/{self.chip}/{self.moves}"


@contextmanager
def builtin_services(data_dir: Path | None) -> Iterator[Services]:
    """Services over a store with the built-in knowledge, loaded when it is not there yet."""
    with tempfile.TemporaryDirectory(prefix="kernlore-coverage-") as folder:
        services = open_services(read_settings(data_dir or Path(folder)))
        try:
            services.load_builtin()
            with services.parser_pool() as parsers:
                services.worker(parsers).drain()
            yield services
        finally:
            services.close()


def cell_of(services: Services, signal: str, hardware: str) -> Cell:
    """What one answer holds for the signal on the chip."""
    request = RetrieveRequest(signal=signal, hardware=hardware, k=DEEP)
    answer = services.retriever.retrieve(request)
    tagged = _tagged(services, signal)
    own = set(answer.hardware["lineage"]) if answer.hardware else set()
    return Cell(
        signal,
        hardware,
        guidance=_count(answer, tagged, "guidance", None),
        chip=_count(answer, tagged, "hardware", own),
        moves=len(answer.moves),
    )


def _count(
    answer: Answer, tagged: Collection[str], category: str, hardware: Collection[str] | None
) -> int:
    return sum(
        excerpt.category == category
        and (hardware is None or any(h in hardware for h in excerpt.hardware))
        and any(passage in tagged for passage in (excerpt.id, *excerpt.passages))
        for excerpt in answer.excerpts
    )


def _tagged(services: Services, signal: str) -> frozenset[str]:
    tags = t.passage_tags
    with services.catalog.read() as connection:
        result = connection.execute(
            sa.select(tags.c.passage_id).where(tags.c.kind == "signal", tags.c.value == signal)
        )
        return frozenset(row.passage_id for row in result)


def reasons() -> Mapping[tuple[str, str, str], str]:
    """(signal, chip, part) to the reason why that part of the cell is empty."""
    data = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    return {
        (signal, chip, row["part"]): row["why"]
        for row in data.get("empty", ())
        for signal in row["signals"]
        for chip in row["hardware"]
    }


def check(cells: list[Cell], stated: Mapping[tuple[str, str, str], str]) -> list[str]:
    """What the table and the reasons disagree about."""
    empty = {(c.signal, c.hardware, part) for c in cells for part in c.missing}
    wrong = [f"no reason is stated for {' / '.join(key)}" for key in sorted(empty - set(stated))]
    asked = {(c.signal, c.hardware) for c in cells}
    filled = {key for key in stated if key[:2] in asked and key not in empty}
    return wrong + [f"{' / '.join(key)} is not empty any more" for key in sorted(filled)]


def run(data_dir: Path | None, results: Path | None) -> None:
    signals = load_signals().ids
    cells = []
    with builtin_services(data_dir) as services:
        for number, signal in enumerate(signals, 1):
            cells += [cell_of(services, signal, chip) for chip in CHIPS]
            say(f"{number} of {len(signals)} signals")
    stated = reasons()
    by_place = {(cell.signal, cell.hardware): cell for cell in cells}
    rows = [[s, *(str(by_place[s, chip]) for chip in CHIPS)] for s in signals]
    empty = [
        [c.signal, c.hardware, part, stated.get((c.signal, c.hardware, part), "?")]
        for c in cells
        for part in c.missing
    ]
    full = sum(not cell.missing for cell in cells)
    parts = [
        "`python -m benchmarks.knowledge.builtin_coverage`",
        f"{full} of {len(cells)} cells hold guidance, chip passages and a move. A cell reads"
        " guidance / passages of the chip or its family / moves; a passage counts when it is"
        " tagged with the signal.",
        table(["signal", *CHIPS], rows),
        table(["signal", "hardware", "empty", "why"], empty) if empty else "No cell is empty.",
    ]
    write_result(results, TITLE, parts)
    wrong = check(cells, stated)
    if wrong:
        raise InvalidKnowledge("; ".join(wrong), hint=f"Write the knowledge, or {REASONS.name}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="a store to use; default a fresh one")
    parser.add_argument("--results", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    ended(lambda: run(given.data_dir, given.results))


if __name__ == "__main__":
    main()
