"""An answer from its parts. Knows nothing of how they were found."""

from __future__ import annotations

from collections.abc import Sequence

from kb.ids import new_id
from retrieval.answer import Answer, ContextPart, Excerpt
from retrieval.composer import Composed, Material
from retrieval.skill_choice import Choice


def answer_of(
    material: Material,
    composed: Composed,
    excerpts: Sequence[Excerpt],
    choice: Choice,
    hints: tuple[str, ...],
) -> Answer:
    """The answer, with an id of its own."""
    context = composed.context
    return Answer(
        retrieval_id=new_id("ret"),
        diagnosis=material.verdict,
        hardware=material.hardware,
        excerpts=tuple(excerpts),
        skills=choice.answers,
        moves=tuple(material.moves),
        context=context.text,
        context_tokens=context.tokens,
        skills_withheld=choice.withheld,
        hints=hints,
        task=composed.task,
        context_stable=context.stable,
        context_actions=context.actions,
        parts=tuple(
            ContextPart(b.kind, b.id, b.tokens, b.citation) for b in context.shown if b.citation
        ),
        unknown_names=tuple(name.as_json() for name in composed.unknown),
    )
