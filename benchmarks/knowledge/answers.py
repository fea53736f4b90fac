"""The first excerpts of answers to a bare signal, for every signal on shipped and drawn chips.

Drawn chips come from a seed and are added with their documents as a hardware team adds them;
`--manual ID=FOLDER` adds one with the documentation in a folder, `--chip ID` a built-in chip that
is not among the nine defaults. `answers_targets.toml`, written before the ranking was changed,
decides whether an excerpt is on target. `--sample FILE` writes answers drawn at random, for a
person to grade.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from api.services import Services
from benchmarks.report import ended, say, table, write_result
from benchmarks.search.model_writes.chips import FAMILIES, READABLE, draw
from benchmarks.service import CHIPS, builtin_services
from ingestion.uploads import FileUpload
from kb.answers import Answer, Excerpt, Move
from kb.catalog.skills.reading import heads_by_name
from kb.hardware.schema import parse_hardware
from kb.scope import CATEGORIES
from retrieval.diagnose.signals import load_signals
from retrieval.request import RetrieveRequest

TARGETS = Path(__file__).with_name("answers_targets.toml")
TITLE = "First excerpts of answers to a bare signal"
OWN_SEED = 31
FIRST = 5  # excerpts that a reader looks at
MENTIONS = 2  # of the subject in a text that is on target without a heading that names it
GPU_LANGUAGES = frozenset({"triton", "cuda", "cute", "hip"})


@dataclass(frozen=True)
class Target:
    """Words that an excerpt for a signal must contain."""

    heading: re.Pattern[str]
    text: re.Pattern[str]
    elsewhere: re.Pattern[str] | None

    def hit(self, excerpt: Excerpt) -> bool:
        """Whether the excerpt speaks of the subject."""
        innermost = excerpt.section.rpartition(" > ")[2]
        if self.elsewhere is not None and self.elsewhere.search(innermost):
            return False
        if self.heading.search(innermost):
            return True
        return len(self.text.findall(excerpt.text)) >= MENTIONS


def load_targets() -> tuple[dict[str, Target], list[tuple[re.Pattern[str], frozenset[str]]]]:
    """Targets by signal, and patterns of what only some chips can do with the ids of those."""

    def pattern(text: str) -> re.Pattern[str]:
        return re.compile(text, re.IGNORECASE)

    data = tomllib.loads(TARGETS.read_text(encoding="utf-8"))
    targets = {
        signal: Target(
            pattern(row["heading"]),
            pattern(row["text"]),
            pattern(row["elsewhere"]) if "elsewhere" in row else None,
        )
        for signal, row in data["signals"].items()
    }
    foreign = [(pattern(row["pattern"]), frozenset(row["chips"])) for row in data["foreign"]]
    return targets, foreign


# -- one answer


@dataclass(frozen=True)
class Row:
    """Properties of one answer. `sections` counts distinct ones among the first five excerpts,
    `torn` those of the first five that begin in mid-sentence; `foreign_moves` and `foreign_skills`
    cannot be carried out on the chip.
    """

    signal: str
    hardware: str
    on_target: bool
    context_on_target: bool
    excerpts: int
    sections: int
    torn: int
    moves: int
    distinct_moves: int
    foreign_moves: tuple[str, ...]
    skills: int
    foreign_skills: tuple[str, ...]
    tokens: int


def row_of(services: Services, signal: str, hardware: str) -> tuple[Row, Answer]:
    targets, foreign = load_targets()
    answer = services.retriever.retrieve(RetrieveRequest(signal=signal, hardware=hardware))
    target, first = targets[signal], answer.excerpts[:FIRST]
    lineage = services.registry.lineage(hardware)
    languages = set(services.registry.get(hardware).languages)
    if "cuda" in languages:
        languages.add("cute")  # the CuTe DSL runs wherever CUDA C++ does
    with services.catalog.read() as connection:
        heads = heads_by_name(connection, [skill.name for skill in answer.skills])
    skills = {name: set(head.scopes.languages) for name, head in heads.items()}
    row = Row(
        signal=signal,
        hardware=hardware,
        on_target=bool(first) and target.hit(first[0]),
        context_on_target=_context_hit(answer, target),
        excerpts=len(first),
        sections=len({(e.document.id, e.section) for e in first}),
        torn=sum(torn(e.text) for e in first),
        moves=len(answer.moves),
        distinct_moves=len({json.dumps(m.change, sort_keys=True) for m in answer.moves}),
        foreign_moves=tuple(m.name for m in answer.moves if _is_foreign(m, lineage, foreign)),
        skills=len(skills),
        foreign_skills=tuple(n for n, own in skills.items() if own and not own & languages),
        tokens=answer.context_tokens,
    )
    return row, answer


def torn(text: str) -> bool:
    """Whether a text begins in mid-sentence: with a small letter or with closing punctuation."""
    start = text.lstrip("*_>#- \n")
    return bool(start) and (start[0].islower() or start[0] in ",;.)")


def _context_hit(answer: Answer, target: Target) -> bool:
    """Whether the first section of the context that was chosen for the signal is on target, by its
    heading.
    """
    cited = [part.citation for part in answer.parts if part.kind in CATEGORIES]
    if not cited:
        return False
    heading = re.sub(r", p\. \S+$", "", re.split(r" > |, ", cited[0], maxsplit=1)[-1])
    if target.elsewhere is not None and target.elsewhere.search(heading):
        return False
    return bool(target.heading.search(heading))


def _is_foreign(
    move: Move, lineage: Sequence[str], foreign: Sequence[tuple[re.Pattern[str], frozenset[str]]]
) -> bool:
    text = " ".join([move.name, json.dumps(dict(move.change))])
    return any(p.search(text) and chips.isdisjoint(lineage) for p, chips in foreign)


# -- the run


def add_own_chips(services: Services, folder: Path, manuals: Mapping[str, Path]) -> Iterator[str]:
    """Registers chips and queues their documents; yields their ids."""
    for family in FAMILIES.values():
        chip = draw(family, OWN_SEED, folder)
        services.registry.put(
            parse_hardware((chip.folder / "hardware.toml").read_text("utf-8"), "hardware.toml"),
            "user",
        )
        _queue(services, chip.id, chip.documents)
        yield chip.id
    for hardware, source in manuals.items():
        text = f'id = "{hardware}"\nname = "{hardware}"\nvendor = "own"\nkind = "accelerator"\n'
        text += 'languages = []\naliases = []\nsummary = "Documents in a folder."\n'
        services.registry.put(parse_hardware(text, hardware), "user")
        readable = [p for p in sorted(source.rglob("*")) if p.suffix in READABLE]
        _queue(services, hardware, readable)
        yield hardware


def _queue(services: Services, hardware: str, paths: Sequence[Path]) -> None:
    for path in paths:
        upload = FileUpload(
            path.name,
            path.read_bytes(),
            category="hardware",
            hardware=(hardware,),
            source_key=f"{hardware}/{path.as_posix().lstrip('/')}",
        )
        services.uploads.submit(upload)


def run(
    data_dir: Path | None,
    results: Path | None,
    rows_to: Path | None,
    sample: Path | None,
    count: int,
    seed: int,
    manuals: Mapping[str, Path],
    chips: Sequence[str] = (),
) -> None:
    rows: list[Row] = []
    answers: list[tuple[Row, Answer]] = []
    signals = [name for name in load_signals().ids if name in load_targets()[0]]
    with (
        tempfile.TemporaryDirectory(prefix="kernlore-answers-") as folder,
        builtin_services(data_dir) as services,
    ):
        own = list(add_own_chips(services, Path(folder), manuals))
        with services.local_reader() as reader:
            services.worker(reader).drain()
        for number, signal in enumerate(signals, 1):
            for hardware in (*CHIPS, *chips, *own):
                row, answer = row_of(services, signal, hardware)
                rows.append(row)
                answers.append((row, answer))
            say(f"{number} of {len(signals)} signals")
    if rows_to is not None:
        rows_to.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    if sample is not None:
        write_sample(sample, answers, count, seed)
    write_result(results, TITLE, report(rows))


def write_sample(path: Path, answers: Sequence[tuple[Row, Answer]], count: int, seed: int) -> None:
    """Answers drawn at random, as a person reads them."""
    drawn = random.Random(seed).sample(list(answers), min(count, len(answers)))
    parts = []
    for number, (row, answer) in enumerate(drawn, 1):
        lines = [f"# {number}. signal={row.signal} hardware={row.hardware}", ""]
        lines += [*(f"Hint: {hint}" for hint in answer.hints), "", "## Excerpts", ""]
        for excerpt in answer.excerpts[:FIRST]:
            lines += [f"### {excerpt.document.title}: {excerpt.section}", "", excerpt.text, ""]
        lines += ["## Moves", ""]
        lines += [f"- {m.name}: {dict(m.change)} because {m.why}" for m in answer.moves]
        lines += ["", "## Skills", "", *(f"- {s.name}: {s.summary}" for s in answer.skills), ""]
        parts.append("\n".join(lines))
    path.write_text("\n\n".join(parts), encoding="utf-8")


def report(rows: Sequence[Row]) -> list[str]:
    """The table over all rows and per signal."""

    def line(name: str, chosen: Sequence[Row]) -> list[object]:
        n = len(chosen)
        return [
            name,
            n,
            f"{sum(r.on_target for r in chosen) / n:.0%}",
            f"{sum(r.context_on_target for r in chosen) / n:.0%}",
            f"{sum(r.sections for r in chosen) / n:.2f}",
            f"{sum(r.torn for r in chosen) / max(1, sum(r.excerpts for r in chosen)):.1%}",
            f"{sum(r.moves for r in chosen) / n:.1f}",
            f"{sum(r.distinct_moves for r in chosen) / n:.1f}",
            sum(bool(r.foreign_moves) for r in chosen),
            sum(bool(r.foreign_skills) for r in chosen),
            f"{sum(r.tokens for r in chosen) / n:,.0f}",
        ]

    header = [
        "",
        "answers",
        "first excerpt on target",
        "first of the context on target",
        "distinct sections of 5",
        "begin in mid-sentence",
        "moves",
        "distinct moves",
        "answers with a move that cannot apply",
        "with a skill that cannot run",
        "tokens",
    ]
    chips = [
        line(c, [r for r in rows if r.hardware == c])
        for c in dict.fromkeys(r.hardware for r in rows)
    ]
    signals = [
        line(s, [r for r in rows if r.signal == s]) for s in dict.fromkeys(r.signal for r in rows)
    ]
    missed = [f"{r.signal}/{r.hardware}" for r in rows if not r.on_target]
    foreign = Counter(name for r in rows for name in (*r.foreign_moves, *r.foreign_skills))
    return [
        "`python -m benchmarks.knowledge.answers`",
        table(header, [line("all", rows), *chips, *signals]),
        f"First excerpt not on target: {', '.join(missed) or 'none'}.",
        f"Cannot apply: {', '.join(f'{n} ({k})' for n, k in foreign.most_common()) or 'nothing'}.",
    ]


def _manual(text: str) -> tuple[str, Path]:
    hardware, _, folder = text.partition("=")
    if not folder or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError("give ID=FOLDER, a folder of documents")
    return hardware, Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knowledge.answers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data-dir", type=Path, help="a store to use; default a fresh one")
    parser.add_argument("--results", type=Path, help="also write the table to this file")
    parser.add_argument("--rows", type=Path, help="write the properties of each answer, as JSON")
    parser.add_argument("--sample", type=Path, help="write answers drawn at random to this file")
    parser.add_argument("--count", type=int, default=60, help="how many; default 60")
    parser.add_argument("--seed", type=int, default=7, help="of the draw; default 7")
    parser.add_argument(
        "--manual",
        type=_manual,
        action="append",
        default=[],
        metavar="ID=FOLDER",
        help="documentation of a further chip",
    )
    parser.add_argument(
        "--chip", action="append", default=[], metavar="ID", help="a further built-in chip"
    )
    given = parser.parse_args()
    ended(
        lambda: run(
            given.data_dir,
            given.results,
            given.rows,
            given.sample,
            given.count,
            given.seed,
            dict(given.manual),
            given.chip,
        )
    )


if __name__ == "__main__":
    main()
