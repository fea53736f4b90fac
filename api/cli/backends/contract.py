"""What a command may ask for, wherever it is carried out, in the JSON of the HTTP interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from skills.format.skillfile import Exported

Json = Mapping[str, Any]


@dataclass(frozen=True)
class About:
    """What the user says about the files of an upload; `group` names what is sent together."""

    hardware: tuple[str, ...] = ()
    category: str | None = None
    languages: tuple[str, ...] = ()
    title: str | None = None
    source_key: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Filters:
    """Which skills to list; None admits all. `state` may be several names with commas. `words` are
    looked for in names, texts, operators and signals.
    """

    state: str | None = None
    tier: str | None = None
    hardware: str | None = None
    signal: str | None = None
    language: str | None = None
    words: str | None = None


class Target(Protocol):
    """The operations of a service, over HTTP or in this process."""

    loads_builtin: bool  # whether it loads the built-in knowledge by itself

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    # -- ask

    def retrieve(self, request: Json) -> Json:
        """An answer, as from `POST /retrieve`."""
        ...

    def report_outcome(self, retrieval_id: str, outcome: Json) -> Json:
        """Report what became of an answer; the ids of answer and outcome."""
        ...

    def knowledge(self, path: str) -> Json:
        """One node of the tree of knowledge."""
        ...

    def signals(self) -> list[Json]:
        """The run-time signals."""
        ...

    # -- files in

    def upload(self, path: Path, name: str, about: About) -> Json:
        """Queue a file to be read: `document_id`, `job_id`, `outcome`."""
        ...

    def upload_builtin(self, group: str) -> Iterator[Json]:
        """Queue the built-in documents, where it does not load them by itself."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """A block in which queued files are read."""
        ...

    def jobs(self, asked: Json) -> Json:
        """A page of jobs with counts; `asked` has the parameters of `GET /jobs` that are set."""
        ...

    def job(self, job_id: str) -> Json:
        """How far a job is."""
        ...

    def retry_job(self, job_id: str) -> Json:
        """Queue a failed job again."""
        ...

    # -- documents

    def documents(self, hardware: str | None, category: str | None) -> list[Json]:
        """Documents by category and title."""
        ...

    def document(self, document_id: str) -> Json:
        """One document with its versions."""
        ...

    def sections(self, document_id: str) -> list[Json]:
        """The headings of a document."""
        ...

    def delete_document(self, document_id: str) -> Json:
        """Remove a document and everything read from it."""
        ...

    def drop_correction(self, document_id: str, correction_id: str) -> Json:
        """Drop a correction that no longer fits."""
        ...

    def passages(self, document_id: str, offset: int, limit: int) -> list[Json]:
        """Passages of a document in reading order."""
        ...

    def correct_passage(self, passage_id: str, patch: Json) -> Json:
        """Correct a passage; the passage afterwards."""
        ...

    # -- hardware

    def hardware(self) -> list[Json]:
        """Every registered hardware."""
        ...

    def hardware_one(self, hardware_id: str) -> Json:
        """One hardware by id, name or alias."""
        ...

    def add_hardware(self, description: Json, origin: str) -> Json:
        """Register a hardware; `origin` names the description in errors."""
        ...

    def remove_hardware(self, hardware_id: str, *, with_documents: bool) -> Json:
        """Remove a hardware that nothing uses, or nothing but its own documents."""
        ...

    def facts(self, hardware_id: str, *, status: str, where: Json) -> Json:
        """The facts of a hardware by status; `where` has the fields of the filter that are set."""
        ...

    def patch_facts(self, hardware_id: str, patch: Json) -> Json:
        """Accept or reject many facts; those that changed and those that were left."""
        ...

    def patch_fact(self, fact_id: str, patch: Json) -> Json:
        """Accept, reject or correct a fact; the fact afterwards."""
        ...

    def coverage(self, hardware_id: str) -> Json:
        """What is known about a hardware, and what is missing."""
        ...

    def symbols(self, hardware_id: str, query: str, status: str) -> list[Json]:
        """Cards of the names of a hardware's languages with this status; with a query, those that
        it means."""
        ...

    def samples(self, hardware_id: str, operator: str) -> list[Json]:
        """Whole kernels for a hardware; with an operator, those that compute it."""
        ...

    def patch_symbol(self, symbol_id: str, fix: Json) -> Json:
        """Correct a card or decide about a proposed one; the card afterwards."""
        ...

    # -- skills

    def skills(self, filters: Filters) -> list[Json]:
        """Skills that fit the filters."""
        ...

    def skill(self, name: str) -> Json:
        """One skill with its evidence."""
        ...

    def skill_history(self, name: str) -> list[Json]:
        """Every change of a skill, oldest first."""
        ...

    def change_skill(self, name: str, patch: Json) -> Json:
        """Change the state of a skill; the new entry of its history."""
        ...

    def revise_skill(self, name: str, change: Json) -> Json:
        """Change the text or precondition of a skill; the candidate that says so."""
        ...

    def export_skills(self, names: Sequence[str], parent: Path, filters: Filters) -> Exported:
        """Write skills as folders below `parent`; without names, those that fit the filters."""
        ...

    def import_skill(self, folder: Path, actor: str) -> Json:
        """Import a folder as a candidate skill."""
        ...
