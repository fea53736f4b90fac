"""Progress of a chip from its registration to a first kernel. Read-only."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.documents import list_documents
from retrieval.knowledge_base import KnowledgeBase


@dataclass(frozen=True)
class OnboardingStep:
    """One step; `note` describes its state and, if it is open, the next action."""

    id: str
    title: str
    done: bool
    note: str


def onboarding_steps(base: KnowledgeBase, hardware: str) -> tuple[OnboardingStep, ...]:
    """The onboarding steps of a chip in order. Raises UnknownHardware."""
    chip = base.registry.resolve(hardware)
    specs, lineage = base.registry.all(), base.registry.lineage(chip)
    languages = sorted({name for place in lineage for name in specs[place].languages})
    toolchains = sorted({name for place in lineage for name in specs[place].toolchains})
    documents = list_documents(base, hardware=chip).documents
    read = [document for document in documents if document.version is not None]
    waiting = [document for document in documents if document.job_state in ("queued", "running")]
    statuses = [fact.status for fact in base.registry.facts(chip)]
    proposed = statuses.count("proposed")
    accepted = len(base.registry.effective_facts(chip))
    return (
        OnboardingStep(
            "description",
            "Describe it",
            bool(languages),
            f"languages: {', '.join(languages)}" if languages else "name its languages",
        ),
        OnboardingStep(
            "manuals",
            "Upload its manuals",
            bool(read) and not waiting,
            _manuals(len(documents), len(read), len(waiting)),
        ),
        OnboardingStep(
            "facts", "Decide on facts", accepted > 0 and not proposed, _facts(proposed, accepted)
        ),
        OnboardingStep(
            "toolchain",
            "State its toolchain",
            bool(toolchains),
            f"for {', '.join(toolchains)}; check it" if toolchains else "describe how kernels run",
        ),
        OnboardingStep(
            "ask",
            "Ask, and search",
            False,
            "shows the contents of a first prompt" if read else "possible once a manual is read",
        ),
    )


def _manuals(documents: int, read: int, waiting: int) -> str:
    if not documents:
        return "upload its programming guide"
    if waiting:
        return f"{documents - waiting:,} of {documents:,} are done; {waiting:,} are being read"
    return f"{read:,} of {documents:,} are read"


def _facts(proposed: int, accepted: int) -> str:
    if proposed:
        return f"{proposed:,} proposed {'fact waits' if proposed == 1 else 'facts wait'} for you"
    return f"{accepted:,} hold" if accepted else "they are proposed from its manuals"
