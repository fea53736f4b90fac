"""What would make a better answer, in sentences for whoever asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from kb.errors import nearest
from kb.problem_terms import canonical_dtype, canonical_op, problem_terms
from retrieval.answer import Excerpt
from retrieval.composer import Material
from retrieval.context import Context
from retrieval.request import RetrieveRequest
from retrieval.request_scope import RUN_EVERYWHERE

# The most that words alone give a section of a chip (see signal_sections): more says that its
# heading, its text or a move names the signal.
WORDS_ALONE = 1.0
NO_INDEX = "The vector index does not answer: this was found by words alone."
NO_VECTORS_YET = "Not every passage has its vector yet: this was found by words alone."


def hints_of(
    material: Material,
    context: Context,
    excerpts: Sequence[Excerpt],
    by_signal: bool,
    words_only: str,
    spoken: Sequence[str] = (),
) -> tuple[str, ...]:
    """The hints of an answer. `by_signal` says that nothing but a signal was given, `words_only`
    why vectors had no part in it, empty where they had. `spoken` are the languages of the chip.
    """
    small = ""
    if not any(block.citation for block in context.shown):
        most = material.request.max_tokens
        small = f"No excerpt fits into {most} tokens: give a larger max_tokens."
    general = _only_general(material, excerpts) if by_signal else ""
    unknown = _unknown_words(material.request, spoken)
    hints = (material.verdict.hint, *unknown, general, words_only, small)
    return tuple(hint for hint in hints if hint)


def _unknown_words(request: RetrieveRequest, spoken: Sequence[str]) -> Iterator[str]:
    """What the request calls its problem, where nothing here knows that name: a mistyped one would
    otherwise narrow the answer in silence. They are no errors, since chips have languages of their
    own and problems their own operators.
    """
    terms = problem_terms()
    if request.language and spoken and request.language not in (*spoken, *RUN_EVERYWHERE):
        yield (
            f"Nothing says that kernels of this chip can be written in {request.language!r}; its"
            f" languages are {', '.join(spoken)}."
        )
    if request.op and request.op != "unknown":
        op = canonical_op(request.op).removesuffix("_backward")
        if op not in terms.ops and op not in terms.families and op not in terms.ops.values():
            yield _no_such("operator", request.op, {*terms.ops, *terms.op_aliases})
    if request.dtype and canonical_dtype(request.dtype) not in terms.dtypes:
        yield _no_such("element type", request.dtype, {*terms.dtypes, *terms.dtype_aliases})


def _no_such(what: str, name: str, known: Collection[str]) -> str:
    near = nearest(name, known)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"No {what} is known as {name!r}, so it counts as a word only.{meant}"


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
    return bool(own) and excerpt.score > WORDS_ALONE
