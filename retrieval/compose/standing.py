"""Relation of the knowledge of a snapshot to the versions of a caller's tools.

Entries that fail with these versions are left out of the snapshot of an answer, so no part of the
answer can show them. Entries checked with other versions only are marked and rank lower.
Without versions, only what the checks of this installation have refuted (`kernlore knowledge
check`) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from kb.answers import Excerpt, Move, SkillAnswer, Verdict
from kb.catalog.knowledge.drafts import MARK, is_drafted
from kb.catalog.knowledge.passages import Passage
from kb.catalog.knowledge.validities import SIGNATURE, SKILL, StoredValidities
from kb.catalog.skills.evidence import MeasuredSkill
from kb.prompt_tokens import count_tokens
from kb.validity import (
    UNKNOWN,
    Checked,
    Standing,
    Validity,
    load_tools,
    read_versions,
    seen_with,
    standing,
    with_implied,
)
from retrieval.compose.sections import Block
from retrieval.diagnose.error_programs import load_error_evidence
from retrieval.request import RetrieveRequest
from retrieval.search.ranking import Ranked
from retrieval.snapshot.snapshot import Snapshot

OFF = 0.8  # weight of entries checked with other versions only
WEIGHED = 200  # passages of a ranking that are weighed
MARKS = 2  # in an excerpt


def versions_of(request: RetrieveRequest) -> dict[str, str]:
    """The versions of a request and those that its log prints, with those that follow from them."""
    printed = read_versions(request.log) if request.log else {}
    return with_implied({**printed, **(request.versions or {})})


@dataclass(frozen=True)
class Standings:
    """A snapshot without what does not hold for `versions` (by tool, empty if none are known), and
    how the rest of it relates to them."""

    snapshot: Snapshot
    versions: Mapping[str, str]

    # -- parts of the snapshot

    def validities(self, document: str | None, section: str | None) -> tuple[Validity, ...]:
        """The statements about a section and about its document."""
        stated = self.snapshot.knowledge.validities.by_subject
        return (*stated.get(section or "", ()), *stated.get(document or "", ()))

    def of(self, document: str | None, section: str | None) -> Standing:
        """Relation of a section to the versions, cached."""
        if not self.versions:
            return UNKNOWN
        key = (_key_of(self.versions), document, section)
        stated = partial(self.validities, document, section)
        return self.snapshot.keep("standing", key, lambda: standing(stated(), self.versions))

    def weighed(self, ranked: list[Ranked]) -> list[Ranked]:
        """A ranking in which passages that were seen with other versions only rank lower."""
        if not self.versions:
            return ranked
        passages = self.snapshot.load([entry.seq for entry in ranked[:WEIGHED]])
        weighed = [
            entry._replace(score=entry.score * self._weight(passages.get(entry.seq)))
            for entry in ranked
        ]
        return sorted(weighed, key=lambda entry: -entry.score)

    def _weight(self, passage: Passage | None) -> float:
        if passage is None:
            return 1.0
        return OFF if self.of(passage.document_id, passage.section_id).marks else 1.0

    def marked_excerpt(self, excerpt: Excerpt, section: str) -> Excerpt:
        """The excerpt with its validities and its marks; a drafted one is marked as such."""
        document = self.snapshot.documents.get(excerpt.document.id)
        drafted = (MARK,) if document is not None and is_drafted(document.source_key) else ()
        return replace(
            excerpt,
            validity=self.validities(excerpt.document.id, section),
            mark=_text((*drafted, *self.of(excerpt.document.id, section).marks)),
        )

    def marked_block(self, block: Block) -> Block:
        """The block with the marks of its sections, or of the skill that it shows."""
        if not self.versions:
            return block
        marks = (*self.skill(block.id).marks, *self._marks(block.sections))
        text = _text(marks).replace('"', "'")
        head, end, rest = block.text.partition('">\n')
        if not text or not end or not head.startswith("<excerpt "):
            return block
        whole = f'{head}" versions="{text}{end}{rest}'
        return replace(block, text=whole, tokens=count_tokens(whole))

    def marking(self, make: Callable[[int], Block | None]) -> Callable[[int], Block | None]:
        """The function that makes a block in a number of tokens, with the marks within these."""

        def make_marked(largest: int) -> Block | None:
            block = make(largest)
            marked = None if block is None else self.marked_block(block)
            if block is None or marked is None or marked.tokens <= largest:
                return marked
            shorter = make(largest - (marked.tokens - block.tokens))
            return None if shorter is None else self.marked_block(shorter)

        return make_marked if self.versions else make

    def weight(self, section: str | None, skill: str) -> float:
        """The weight of a kernel: of a section, or of a skill."""
        if not self.versions:
            return 1.0
        marks = self._marks((section,)) if section else self.skill(skill).marks
        return OFF if marks else 1.0

    def _marks(self, sections: Iterable[str]) -> tuple[str, ...]:
        own = self.snapshot.documents_of(sections)
        return tuple(mark for s, document in own.items() for mark in self.of(document, s).marks)

    # -- moves and skills

    def marked_move(self, move: Move) -> Move:
        """The move with the marks of its section."""
        return replace(move, mark=_text(self._moves.get(move.id, UNKNOWN).marks))

    @cached_property
    def _moves(self) -> dict[str, Standing]:
        rows = self.snapshot.knowledge.moves if self.versions else ()
        return {row.move.id: self.of(row.move.document_id, row.section_id) for row in rows}

    def skill(self, name: str) -> Standing:
        """Relation of a skill to the versions."""
        return self._skills.get(name, UNKNOWN)

    @cached_property
    def _skills(self) -> dict[str, Standing]:
        skills = self.snapshot.knowledge.skills if self.versions else ()
        stored = self.snapshot.knowledge.validities.by_subject
        return {
            name: standing((*validities_of_skill(s), *stored.get(SKILL + name, ())), self.versions)
            for s in skills
            for name in (s.head.name,)
        }

    def marked_skill(self, skill: SkillAnswer) -> SkillAnswer:
        return replace(skill, mark=_text(self.skill(skill.name).marks))

    # -- signatures

    @cached_property
    def refuted_signatures(self) -> frozenset[str]:
        """The ids of signatures that the tools of the caller do not print."""
        versions = {**self.snapshot.knowledge.validities.versions, **self.versions}
        return frozenset(
            identity
            for identity, stated in self.signatures.items()
            if not all(v.holds for v in stated) and _is_unprinted(stated, versions)
        )

    @cached_property
    def signatures(self) -> Mapping[str, tuple[Validity, ...]]:
        """The validities of each signature, by its id."""
        return signature_validities(self.snapshot.knowledge.validities)

    def marked_signatures(self, verdict: Verdict) -> Verdict:
        """The verdict with the validity of each signature."""
        known = self.signatures
        rows = ({**row, "validity": known.get(row["id"], ())} for row in verdict.signatures)
        return replace(verdict, signatures=tuple(rows))


def signature_validities(known: StoredValidities) -> dict[str, tuple[Validity, ...]]:
    """What ships about signatures and what this installation has checked, by the signature's id."""
    stated = dict(load_error_evidence().validities)
    for subject, checked in known.checked.items():
        if subject.startswith(SIGNATURE):
            identity = subject.removeprefix(SIGNATURE)
            stated[identity] = (*stated.get(identity, ()), *checked)
    return stated


def _is_unprinted(stated: Sequence[Validity], versions: Mapping[str, str]) -> bool:
    """Whether no tool of these versions prints a text, and one is known not to."""
    tools = {validity.tool for validity in stated}
    stands = {standing([v for v in stated if v.tool == t], versions).stand for t in tools}
    return "false" in stands and "holds" not in stands


def _text(marks: Iterable[str]) -> str:
    return "; ".join(list(dict.fromkeys(marks))[:MARKS])


def validities_of_skill(skill: MeasuredSkill) -> tuple[Validity, ...]:
    """The versions in the text of its compatibility, as of the day it was written, and those of the
    trials that ship with it."""
    text, tools = skill.compatibility, load_tools()
    checked: Checked = "compiled" if "compiled" in text else "read"
    stated = seen_with(text, checked=checked, date=skill.head.written_at[:10])
    trials = {
        Validity(tools.ids[name], release, release, trial.hardware, "", "ran", trial.date)
        for trial in skill.shipped
        for name, version in (trial.versions if trial.made else {}).items()
        if name in tools.ids and (release := tools.get(name).release(version))
    }
    return (*stated, *sorted(trials, key=str))


def standings_of(snapshot: Snapshot, versions: Mapping[str, str]) -> Standings:
    """Relation of a snapshot to versions by tool, cached."""
    return snapshot.keep("standings", _key_of(versions), lambda: _standings(snapshot, versions))


def _key_of(versions: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(versions.items()))


def _standings(snapshot: Snapshot, versions: Mapping[str, str]) -> Standings:
    knowledge = snapshot.knowledge
    stated = knowledge.validities.by_subject
    refuted = [
        subject
        for subject, own in stated.items()
        if not all(v.holds for v in own) and _is_false(snapshot, subject, own, versions)
    ]
    hidden = {subject for subject in refuted if not subject.startswith((SIGNATURE, SKILL))}
    named = {subject.removeprefix(SKILL) for subject in refuted}
    skills = tuple(s for s in knowledge.skills if s.head.name not in named)
    if hidden or len(skills) < len(knowledge.skills):
        moves = [m for m in knowledge.moves if not {m.move.document_id, m.section_id} & hidden]
        rest = replace(knowledge, moves=moves, skills=skills)
        # One snapshot for all versions that refute the same entries: each has its own columns.
        key = tuple(sorted(refuted))
        snapshot = snapshot.keep("without", key, lambda: snapshot.hiding(refuted, rest))
    return Standings(snapshot, versions)


def _is_false(
    snapshot: Snapshot, subject: str, stated: Sequence[Validity], versions: Mapping[str, str]
) -> bool:
    """Whether an entry fails with the versions; for tools that the caller does not
    name, for those that this installation has checked last."""
    if standing(stated, versions).stand == "false":
        return True
    known = snapshot.knowledge.validities
    here = {tool: version for tool, version in known.versions.items() if tool not in versions}
    return standing(known.checked.get(subject, ()), here).stand == "false"
