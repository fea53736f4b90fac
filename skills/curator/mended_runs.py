"""Looks over all stored runs for errors that were mended, and stores what they teach as debugging
skills: candidates like every learned skill, or more evidence for the skill that is there.

Runs and external trajectories are read as for a distillation, with people's answers to flags.
Doing it twice changes nothing the second time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.knowledge import symbols
from kb.catalog.knowledge.symbols import Symbol
from kb.errors import KernloreError
from kb.hardware.lineage import NameIndex
from kb.scope import ALL_ACCESS
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, Transcript
from retrieval.knowledge_base import KnowledgeBase
from skills.curator.debugging import (
    ERROR,
    cause_of,
    debugging_skill,
    evidence_of,
    findings,
)
from skills.curator.mending import STAGE, Draft, Lesson, Mend, Mends, lessons_of, mends_of
from skills.curator.pipeline import GONE
from skills.curator.records import Decision, Delta, StoredDelta
from skills.curator.storing import store_delta
from skills.trajectories.accept import trajectory_store
from skills.trajectories.reading import trajectory
from skills.trajectories.records import Trajectory

MOST_RUNS = 10_000
COMPILES = "It compiles."  # what the tool `compile_draft` answers then


@dataclass(frozen=True)
class MendedErrors:
    """What a look over the stored runs came to.

    `decisions` are about pairs of kernels, with the id of their run. `short` says in words which
    errors were mended and are no lesson yet, `skipped` which runs could not be read.
    """

    runs: int
    decisions: tuple[tuple[str, Decision], ...] = ()
    short: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    stored: tuple[StoredDelta, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """The printed form."""
        return {
            "runs": self.runs,
            "decisions": [{"run": run, **asdict(decision)} for run, decision in self.decisions],
            "short": list(self.short),
            "skipped": list(self.skipped),
            "stored": [asdict(delta) for delta in self.stored],
        }


def distil_errors(base: KnowledgeBase) -> MendedErrors:
    """Look over all stored runs and external trajectories for mended errors, and store the lessons,
    all or nothing."""
    pairs: list[Mend] = []
    decisions: list[tuple[str, Decision]] = []
    skipped: list[str] = []
    cards = _Cards(base)
    identities = _identities(base)
    for identity in identities:
        try:
            mends = _mends(base, identity, cards)
        except KernloreError as problem:
            skipped.append(f"{identity}: {problem.message}")
            continue
        pairs += mends.mends
        decisions += mends.decisions
    lessons, short = lessons_of(pairs)
    stored: list[StoredDelta] = []
    names = NameIndex({i: (s.id, s.name, *s.aliases) for i, s in base.registry.all().items()})
    with base.catalog.write() as connection:
        for lesson in lessons:
            delta, decision = _delta(connection, lesson, cards, names)
            decisions.append((lesson.shown[0].run, decision))
            if delta is not None:
                stored.append(store_delta(connection, delta, lesson.shown[0].run))
    return MendedErrors(
        len(identities) - len(skipped),
        tuple(decisions),
        tuple(short),
        tuple(skipped),
        tuple(stored),
    )


def _identities(base: KnowledgeBase) -> list[str]:
    """Runs and the external trajectories that were evaluated here, the oldest first."""
    runs = [run.id for run in run_store(base).latest(MOST_RUNS)]
    others = [row.id for row in trajectory_store(base).latest(MOST_RUNS) if row.state == "ready"]
    return [*reversed(runs), *reversed(others)]


def _delta(
    connection: Connection, lesson: Lesson, cards: _Cards, names: NameIndex
) -> tuple[Delta | None, Decision]:
    """What a lesson changes in the library, with the decision; None where it changes nothing."""
    first = lesson.shown[0]
    cause = cause_of(lesson, cards.of(first))
    draft = debugging_skill(lesson, cause)
    rows = evidence_of(lesson.mends)

    def decided(passed: bool, reason: str, stage: str = "match") -> Decision:
        return Decision(stage, first.node, passed, reason, {"skill": draft.name})

    known = store.find(connection, draft.name, ALL_ACCESS)
    if known is not None and known.state in GONE:
        return None, decided(False, f"{draft.name} says this, and a person took it out")
    if known is not None:
        there = {_measured(row.details) for row in store.evidence_of(connection, known.id)}
        added = tuple(row for row in rows if _measured(row.details) not in there)
        if not added:
            return None, decided(False, f"{draft.name} has these mends already")
        reason = f"mended again in {added[0].details['run']}"
        version = known.version
        delta = Delta("ADD_EVIDENCE", first.node, draft.name, reason, None, added, version=version)
        return delta, decided(True, f"{draft.name} says this already")
    problems = findings(lesson, draft, names)
    if problems and cause is not None:  # a card may name other chips: then the message speaks alone
        draft = debugging_skill(lesson, None)
        problems = findings(lesson, draft, names)
    if problems:
        return None, decided(False, "; ".join(problems[:3]), "lint")
    runs = ", ".join(dict.fromkeys(mend.run for mend in lesson.mends))
    delta = Delta("ADD", first.node, draft.name, f"mended in {runs}", draft, rows)
    return delta, decided(True, f"drafted {draft.name}", STAGE)


def _measured(details: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(details.get(name) for name in ("run", "parent", "draft", "node"))


# -- what a run is read with


def _mends(base: KnowledgeBase, identity: str, cards: _Cards) -> Mends:
    whole = trajectory(base, identity)
    transcripts = FolderTranscripts(base.settings.data_dir / "transcripts")
    return mends_of(whole, cards.codes(whole), _drafts(whole, transcripts))


class _Cards:
    """Cards of the chips that runs are about, read once for each lineage."""

    def __init__(self, base: KnowledgeBase) -> None:
        self._base = base
        self._by_lineage: dict[tuple[str, ...], list[Symbol]] = {}

    def of(self, about: Mend | Trajectory) -> list[Symbol]:
        """The cards of a chip and of what stands above it."""
        lineage = about.lineage
        if lineage not in self._by_lineage:
            with self._base.catalog.read() as connection:
                self._by_lineage[lineage] = symbols.listed(connection, lineage)
        return self._by_lineage[lineage]

    def codes(self, about: Trajectory) -> frozenset[str]:
        """The error codes that the chip's documents define."""
        return frozenset(card.name for card in self.of(about) if card.kind == ERROR)


def _drafts(whole: Trajectory, transcripts: FolderTranscripts) -> dict[int, list[Draft]]:
    """The drafts that models had compiled before they answered, by number of the node."""
    drafts: dict[int, list[Draft]] = {}
    for step in whole.steps:
        place = (step.proposal.transcript or "").rpartition("/")
        number, _, attempt = place[2].partition("-")
        if not (place[0] and number.isdigit() and attempt.isdigit()):
            continue
        stored = transcripts.read(place[0], int(number), int(attempt))
        if stored is not None:
            drafts[step.child.number] = drafts_in(stored)
    return drafts


def drafts_in(transcript: Transcript) -> list[Draft]:
    """The drafts of a conversation with what the compiler said of them, in their order."""
    answers = {
        str(message["tool_call_id"]): str(message["content"])
        for message in transcript.messages
        if message["role"] == "tool"
    }
    drafts = []
    for message in transcript.messages:
        for call in message.get("tool_calls") or ():
            files = _files(call) if call["function"]["name"] == "compile_draft" else {}
            log = _unfenced(answers.get(call["id"], ""))
            if files and log and not log.startswith("failed: "):
                drafts.append(Draft(files, "" if log == COMPILES else log))
    return drafts


def _files(call: Mapping[str, Any]) -> dict[str, str]:
    try:
        files = json.loads(call["function"]["arguments"])["files"]
    except (ValueError, KeyError, TypeError):
        return {}
    texts = files.items() if isinstance(files, dict) else ()
    return {str(name): text for name, text in texts if isinstance(text, str)}


def _unfenced(text: str) -> str:
    """A tool's result without the marked lines around it."""
    lines = text.strip().splitlines()
    return "\n".join(lines[1:-1]).strip() if len(lines) > 2 else ""
