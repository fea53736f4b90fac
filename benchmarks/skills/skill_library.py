"""What 5,000 skills cost: listing, searching and showing them, and an answer of the retriever with
and without them.

Works on two copies of a loaded store; one of them is filled with skills that differ in hardware,
operator, signal, language and words, with evidence and uses. The same requests go to both copies
in turn, through the real retriever, in one process.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.report import ended, say, table, write_result
from kb.catalog import Catalog, open_catalog
from kb.catalog import skills as store
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import NewUse, SkillDraft, SkillScopes
from kb.embedding import DEFAULT_MODEL, Embedder, open_embedder
from kb.errors import InvalidRequest
from kb.ids import new_id
from kb.index.exact import ExactIndex
from kb.problem_terms import problem_terms
from retrieval.diagnose.signals import load_signals
from retrieval.journal import Journal
from retrieval.request import RetrieveRequest
from retrieval.service import Retriever
from skills.skill_library import SkillLibrary

TITLE = "5,000 skills"
LANGUAGES = ("triton", "cuda", "cpp", "hip")
DTYPES = ("float32", "float16", "bfloat16", "int8")
MEASURED = 0.4  # share of the skills that have evidence
USES = 10_000
CHANGES = (
    *("vectorise", "tile", "fuse", "unroll", "prefetch", "pad", "swizzle", "split-k"),
    *("double-buffer", "persist", "reorder", "recompute", "transpose", "pack", "hoist"),
)
WORDS = (
    *("rows", "columns", "registers", "shared memory", "cache lines", "accumulators", "halo"),
    *("reduction", "tail", "epilogue", "mask", "stride", "bank", "wave", "warp", "block"),
)
BODY = "## When to use\n\n{text}\n\n## Steps\n\n" + "\n".join(
    f"{n}. Change the loop so that each program handles more of it, then measure."
    for n in range(25)
)
SEARCHES = ("softmax", "vectorise rows", "bank conflict", "matmul double buffer", "memory bound")


@dataclass
class Place:
    """A store and the parts that are measured on it."""

    name: str
    catalog: Catalog
    retriever: Retriever
    milliseconds: dict[str, list[float]] = field(default_factory=dict)

    def time(self, what: str, call: Callable[[], object]) -> None:
        started = time.perf_counter()
        call()
        self.milliseconds.setdefault(what, []).append((time.perf_counter() - started) * 1000)


def copy(source: Path, target: Path) -> Catalog:
    """The catalog as it is, without opening the original for writing."""
    target.mkdir(parents=True)
    live = sqlite3.connect(f"file:{source / 'catalog.sqlite'}?mode=ro", uri=True)
    kept = sqlite3.connect(target / "catalog.sqlite")
    with live, kept:
        live.backup(kept)
    live.close()
    kept.close()
    return open_catalog(target)


def draft(number: int, chips: Sequence[str], signals: Sequence[str]) -> SkillDraft:
    """One of many: no two claim the same."""
    rng = random.Random(number)
    op = rng.choice(sorted(problem_terms().ops))
    change, language = rng.choice(CHANGES), rng.choice(LANGUAGES)
    first, second = rng.sample(WORDS, 2)
    text = (
        f"Use when {op} in {language} waits on {first}: {change} the {second}. Not for small ones."
    )
    return SkillDraft(
        name=f"{language}-{change}-{op.replace('_', '-')}-{number}",
        tier="learned",
        transformation=f"{change}-{first.replace(' ', '-')}",
        description=text,
        body=BODY.format(text=text),
        scopes=SkillScopes(
            hardware=tuple(rng.sample(chips, rng.choice((0, 1, 1, 2)))),
            languages=(language,),
            ops=(op,) if rng.random() < 0.8 else (),
            dtypes=(rng.choice(DTYPES),) if rng.random() < 0.4 else (),
            signals=tuple(rng.sample(signals, rng.choice((1, 2)))),
        ),
        content_sha256=f"sha-{number}",
        origin="run",
        predicate="problem.reduction_length >= 512" if rng.random() < 0.2 else None,
        metadata={"files": {"references/notes.md": "Notes.\n" * 40}},
    )


def fill(catalog: Catalog, count: int) -> None:
    """Every skill as the curator stores it, by the same functions."""
    chips, signals = sorted(HardwareRegistry(catalog).all()), [s.id for s in load_signals()]
    names = []
    for start in range(0, count, 500):
        with catalog.write() as connection:
            for number in range(start, min(start + 500, count)):
                skill = draft(number, chips, signals)
                names.append(skill.name)
                store.put(connection, skill, state="candidate", actor="curator", reason="drafted")
                rng = random.Random(-number - 1)
                measured = rng.random() < MEASURED
                for _ in range(rng.choice((1, 2, 4)) if measured else 0):
                    store.add_evidence(
                        connection,
                        skill.name,
                        kind="ablation",
                        hardware=rng.choice(chips),
                        n=12,
                        speedup=1.25,
                        low=1.1,
                        high=1.4,
                        toolchain="triton-nvidia triton 3.4.0",
                        actor="curator",
                        reason="held-out shapes",
                    )
        _activate(catalog, names[start:])
        say(f"{min(start + 500, count)} skills")
    _use(catalog, names)


def _activate(catalog: Catalog, names: Sequence[str]) -> None:
    """Those with evidence; the others stay candidates, which the requests ask for too."""
    with catalog.write() as connection:
        for skill in store.heads_of(connection, names).values():
            if store.measured(connection, skill):
                store.set_state(
                    connection, skill.name, "active", actor="curator", reason="measured"
                )


def _use(catalog: Catalog, names: Sequence[str]) -> None:
    rng = random.Random(0)
    retrieval = new_id("ret")
    journal = Journal(catalog)
    journal.record(_row(retrieval))
    journal.flush()
    uses = [
        NewUse(retrieval, rng.choice(names), "used", int(rng.random() < 0.7), 1.2)
        for _ in range(USES)
    ]
    with catalog.write() as connection:
        store.record_uses(connection, uses)


def _row(retrieval: str) -> dict[str, object]:
    return {
        "id": retrieval,
        "request": {},
        "hardware_id": None,
        "signals": [],
        "excerpt_ids": [],
        "skill_ids": [],
        "move_ids": [],
        "skills_withheld": [],
        "context_sha256": "",
        "milliseconds": 0.0,
        "catalog_revision": 0,
        "access_scope": "all",
    }


def requests(catalog: Catalog, count: int) -> list[RetrieveRequest]:
    """As a run asks: a signal on a chip, an operator, a language; active and candidate skills."""
    rng = random.Random(1)
    chips, signals = sorted(HardwareRegistry(catalog).all()), [s.id for s in load_signals()]
    return [
        RetrieveRequest(
            signal=rng.choice(signals),
            hardware=rng.choice(chips),
            op=rng.choice(sorted(problem_terms().ops)) if rng.random() < 0.8 else None,
            language=rng.choice((*LANGUAGES, None)),
            dtype=rng.choice((*DTYPES, None)),
            problem={"reduction_length": rng.choice((128, 4096))},
            skill_states=("active", "candidate"),
            k=8,
        )
        for _ in range(count)
    ]


def browse(place: Place, repeats: int) -> None:
    library = SkillLibrary(place.catalog)
    for number in range(repeats):
        place.time("list all", library.list)
        place.time("list one chip", lambda: library.list(hardware="h100", states=("active",)))
        text = SEARCHES[number % len(SEARCHES)]
        place.time("search", lambda text=text: library.search(text))  # type: ignore[misc]


def ask(places: Sequence[Place], sent: Sequence[RetrieveRequest]) -> None:
    """Each request on each store, in turn, so that a busy moment meets all alike."""
    for number, request in enumerate(sent):
        for place in places if number % 2 else reversed(places):
            retriever = place.retriever
            place.time("retrieve", partial(retriever.retrieve, request))
            place.time("moves and skills", partial(retriever.moves_and_skills, request))


def rows(places: Sequence[Place]) -> list[list[str]]:
    table_rows = []
    for place in places:
        for what, taken in place.milliseconds.items():
            p50, p95 = np.percentile(taken, (50, 95))
            table_rows.append(
                [what, place.name, str(len(taken)), *(f"{x:.1f}" for x in (p50, p95, max(taken)))]
            )
    return sorted(table_rows)


def run(arguments: argparse.Namespace) -> None:
    source: Path = arguments.data_dir
    if not (source / "catalog.sqlite").is_file():
        raise InvalidRequest(
            f"no catalog in {source}", hint="Give --data-dir of a store that `serve` has loaded."
        )
    embedder = open_embedder(DEFAULT_MODEL, source / "models")
    with tempfile.TemporaryDirectory() as folder:
        places = [
            _place(source, Path(folder), name, embedder)
            for name in ("no skills", f"{arguments.skills:,} skills")
        ]
        with places[0].catalog.write() as connection:
            connection.exec_driver_sql("DELETE FROM skills")
        started = time.monotonic()
        fill(places[1].catalog, arguments.skills)
        filled = time.monotonic() - started
        sent = requests(places[0].catalog, arguments.requests + 10)
        ask(places, sent[:10])  # not counted: first use of each path
        for place in places:
            place.milliseconds.clear()
        ask(places, sent[10:])
        browse(places[1], arguments.repeats)
        write_result(arguments.output, TITLE, _told(places, filled, arguments))
        for place in places:
            place.retriever.close()
            place.catalog.close()


def _place(source: Path, folder: Path, name: str, embedder: Embedder) -> Place:
    catalog = copy(source, folder / name.replace(" ", "-"))
    index = ExactIndex(catalog, embedder.fingerprint)
    retriever = Retriever(catalog, HardwareRegistry(catalog), embedder, lambda: index)
    retriever.warm(folder / "models")
    return Place(name, catalog, retriever)


def _told(places: Sequence[Place], filled: float, arguments: argparse.Namespace) -> list[str]:
    with places[1].catalog.read() as connection:
        active = len(store.heads(connection, states=("active",)))
        passages = connection.exec_driver_sql("SELECT count(*) FROM passages").scalar()
    header = ("what", "store", "n", "p50 ms", "p95 ms", "slowest ms")
    return [
        f"{arguments.skills:,} generated skills beside the shipped ones, {active:,} of all active,"
        f" {USES:,} recorded uses; filling took {filled:.0f} s."
        f" The store has {passages:,} passages; exact search by vectors."
        " The same requests (a signal on a chip, mostly with operator, language and dtype; active"
        " and candidate skills) went in turn to both copies of one store. `retrieve` searches by"
        " words and vectors; `moves and skills` is what a search asks at every node.",
        table(header, rows(places)),
        "Command: `python -m benchmarks.skills.skill_library --data-dir DIR --requests 120"
        " --output benchmarks/results/skill_library.md`",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="A loaded store; only read.")
    parser.add_argument("--skills", type=int, default=5000)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, help="Write the result as Markdown too.")
    arguments = parser.parse_args()
    ended(lambda: run(arguments))


if __name__ == "__main__":
    main()
