"""What would make a better answer, in sentences for whoever asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import Connection

from kb.errors import nearest
from kb.problem_terms import canonical_dtype, canonical_op, problem_terms
from retrieval.answer import Excerpt
from retrieval.composer import Composed, Material
from retrieval.elsewhere import defined_elsewhere, unknown_exclusions
from retrieval.missing_names import hint_of
from retrieval.request import RetrieveRequest
from retrieval.request_scope import RUN_EVERYWHERE
from retrieval.titles import calls

# The most that words alone give a section of a chip (see signal_sections): more says that its
# heading, its text or a move names the signal.
WORDS_ALONE = 1.0
NO_INDEX = "The vector index does not answer: this was found by words alone."
NO_VECTORS_YET = "Not every passage has its vector yet: this was found by words alone."


def hints_of(
    connection: Connection,
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
    request = material.request
    strange = _strange_language(request, material.spoken)
    # In a language that is not the chip's, its own documents are not looked at.
    general = _only_general(material, excerpts) if by_signal and not strange else ""
    chip = material.spec.name if material.spec is not None else ""
    missing = [hint_of(entry, chip) for entry in composed.missing]
    hints = (
        material.verdict.hint,
        defined_elsewhere(connection, material, excerpts),
        strange,
        *_unknown_words(request),
        *missing,
        general,
        unknown_exclusions(connection, request),
        words_only,
        small,
    )
    return tuple(hint for hint in hints if hint)


def _strange_language(request: RetrieveRequest, spoken: Sequence[str]) -> str:
    if not request.language or not spoken or request.language in (*spoken, *RUN_EVERYWHERE):
        return ""
    return (
        f"Nothing says that kernels of this chip can be written in {request.language!r}; its"
        f" languages are {', '.join(spoken)}."
    )


def _unknown_words(request: RetrieveRequest) -> Iterator[str]:
    """What the request calls its problem, where nothing here knows that name: a mistyped one would
    otherwise narrow the answer in silence. They are no errors, since chips have languages of their
    own and problems their own operators.
    """
    terms = problem_terms()
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
    if not own:
        return False
    return excerpt.score > WORDS_ALONE or calls(excerpt.text, material.verdict.primary)
