"""What would make a better answer, in sentences for whoever asked."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.answer import Excerpt
from retrieval.composer import Material
from retrieval.context import Context


def hints_of(
    material: Material,
    context: Context,
    excerpts: Sequence[Excerpt],
    by_signal: bool,
    dense_ready: bool,
) -> tuple[str, ...]:
    """The hints of an answer. `by_signal` says that nothing but a signal was given, `dense_ready`
    that every passage has its vector.
    """
    words_only = small = ""
    if not dense_ready:
        words_only = "Not every passage has its vector yet: this was found by words alone."
    if not any(block.citation for block in context.shown):
        most = material.request.max_tokens
        small = f"No excerpt fits into {most} tokens: give a larger max_tokens."
    general = _only_general(material, excerpts) if by_signal else ""
    return tuple(hint for hint in (material.verdict.hint, general, words_only, small) if hint)


def _only_general(material: Material, excerpts: Sequence[Excerpt]) -> str:
    """Says so where nothing that is shown is about the chip, its family or its vendor."""
    if material.spec is None or any(set(e.hardware) & set(material.lineage) for e in excerpts):
        return ""
    return (
        f"No document about {material.spec.name} speaks of {material.verdict.primary}: what is"
        f" shown is general. Its manuals help: kernlore ingest --hardware {material.spec.id} FILE"
    )
