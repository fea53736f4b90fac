"""What would make a better answer, in sentences for whoever asked."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.answer import Excerpt
from retrieval.composer import Composed, Material
from retrieval.missing_names import hint_of
from retrieval.titles import calls

# The most that words alone give a section of a chip (see signal_sections): more says that its
# heading, its text or a move names the signal.
WORDS_ALONE = 1.0
NO_INDEX = "The vector index does not answer: this was found by words alone."
NO_VECTORS_YET = "Not every passage has its vector yet: this was found by words alone."


def hints_of(
    material: Material,
    composed: Composed,
    excerpts: Sequence[Excerpt],
    by_signal: bool,
    words_only: str,
) -> tuple[str, ...]:
    """The hints of an answer. `by_signal` says that nothing but a signal was given, `words_only`
    why vectors had no part in it, empty where they had.
    """
    small = ""
    if not any(block.citation for block in composed.context.shown):
        most = material.request.max_tokens
        small = f"No excerpt fits into {most} tokens: give a larger max_tokens."
    general = _only_general(material, excerpts) if by_signal else ""
    chip = material.spec.name if material.spec is not None else ""
    missing = [hint_of(entry, chip) for entry in composed.missing]
    hints = (material.verdict.hint, *missing, general, words_only, small)
    return tuple(hint for hint in hints if hint)


def _only_general(material: Material, excerpts: Sequence[Excerpt]) -> str:
    """Says so where no section that is shown is about the chip and what happened."""
    if material.spec is None or any(_treats(excerpt, material) for excerpt in excerpts):
        return ""
    return (
        f"No document about {material.spec.name} has a section on {material.verdict.primary}; what"
        " is shown is general or only related. To add a manual: kernlore ingest --hardware"
        f" {material.spec.id} FILE"
    )


def _treats(excerpt: Excerpt, material: Material) -> bool:
    own = set(excerpt.hardware) & set(material.lineage)
    if not own:
        return False
    return excerpt.score > WORDS_ALONE or calls(excerpt.text, material.verdict.primary)
