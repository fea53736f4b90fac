"""Hints of an answer: sentences that tell the caller how to get a better one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from kb.answers import KNOWLEDGE_LOADING, Excerpt, NamedFact
from kb.catalog.knowledge.passages import Passage
from kb.errors import nearest
from kb.problem_terms import canonical_dtype, canonical_op, problem_terms
from kb.scope import ANY, CATEGORIES, AccessScope, ScopeFilter
from kb.tokens import tokenize
from retrieval.compose.composer import Composed, Material
from retrieval.compose.sections import one_line
from retrieval.request import RetrieveRequest
from retrieval.scope import RUN_EVERYWHERE
from retrieval.search.by_names import value_patterns
from retrieval.search.by_signal import WORDS_ALONE
from retrieval.search.names import hint_of_name
from retrieval.search.titles import contains_signal
from retrieval.snapshot.snapshot import Snapshot

MOST_WORDS = 40  # names of a question that are looked up
MOST_ABSENT = 3
_WORD = re.compile(r"\b[A-Za-z_]\w*(?:(?:::|\.)\w+)*", re.ASCII)
# A name of code or of a product: joined parts, a capital inside, or letters with a number.
_NAME = re.compile(
    r"_|::|\w\w\.[a-z]{2}|[a-z]{2}[A-Z]|[A-Z]{3}[a-z]{2}|[A-Za-z]{2}\d|[A-Za-z]\d\d\d"
)
# Ordinary words with a number or capitals: types, extents, memories and links, acronyms.
_ORDINARY = re.compile(
    r"(?:[a-z]{0,3}(?:fp|bf|tf|int|float|uint|hif)\d+\w*|[usif]\d+(?:x\d+)?|u?e\dm\d\w*"
    r"|[kmn]\d+|(?:lp|g)?ddr\d\w*|hbm\d\w*|pcie\d|gen\d|x\d+|w\d+a\d+|(?:log|exp|conv)\d\w?"
    r"|(?:[gmtp]?flop|[gmt]op|[kmgt]byte|gemm)s)\Z",
    re.IGNORECASE,
)
NO_INDEX = "The vector index does not answer: this was found by words alone."
NO_VECTORS_YET = "Not every passage has its vector yet: this was found by words alone."


def hints_of(
    snapshot: Snapshot,
    material: Material,
    composed: Composed,
    excerpts: Sequence[Excerpt],
    by_signal: bool,
    remarks: Sequence[str],
    facts: Sequence[NamedFact] = (),
) -> tuple[str, ...]:
    """The hints of an answer. `by_signal` is true for a request with a bare signal; `remarks` are
    further hints about knowledge that the answer lacks, `facts` those that its question names."""
    if KNOWLEDGE_LOADING in remarks:  # other reasons for missing excerpts cannot be distinguished
        return tuple(filter(None, (material.verdict.hint, KNOWLEDGE_LOADING)))
    small = ""
    if not any(block.citation for block in composed.context.shown):
        most = material.request.max_tokens
        small = f"No excerpt fits into {most} tokens: give a larger max_tokens."
        if not excerpts and material.request.draft:
            small = "Nothing was found for the code alone: add op, a question, a log or metrics."
        elif not excerpts:
            small = "No passage was found for this: add the hardware, op or a question."
    request = material.request
    strange = _foreign_language_hint(request, material.chip_languages)
    # Documents of the chip are not searched for a language that the chip does not have.
    general = _general_only_hint(snapshot, material, excerpts) if by_signal and not strange else ""
    chip = one_line(material.spec.name) if material.spec is not None else ""
    missing = [hint_of_name(entry, chip) for entry in composed.missing]
    hints = (
        material.verdict.hint,
        definition_hint(snapshot, material, excerpts),
        strange,
        *_unknown_term_hints(request),
        *missing,
        general or ("" if facts else unanswered_hint(material, excerpts)),
        absent_words_hint(snapshot, material, excerpts),
        exclusion_hint(snapshot, request),
        *remarks,
        unread_documents_hint(snapshot, material.scope),
        small,
    )
    return tuple(hint for hint in hints if hint)


def _foreign_language_hint(request: RetrieveRequest, chip_languages: Sequence[str]) -> str:
    if (
        not request.language
        or not chip_languages
        or request.language in (*chip_languages, *RUN_EVERYWHERE)
    ):
        return ""
    return (
        f"Nothing says that kernels of this chip can be written in {request.language!r}; its"
        f" languages are {', '.join(chip_languages)}."
    )


def _unknown_term_hints(request: RetrieveRequest) -> Iterator[str]:
    """Hints for an unknown operator or element type: a mistyped one would otherwise narrow the
    answer silently. These are not errors, since chips have languages and problems operators that
    are not in the vocabulary."""
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


def _general_only_hint(snapshot: Snapshot, material: Material, excerpts: Sequence[Excerpt]) -> str:
    """A hint if no document of the chip treats the signal, as `coverage` counts it."""
    if material.spec is None or any(_treats(excerpt, material) for excerpt in excerpts):
        return ""
    signal = material.verdict.primary
    own = snapshot.treating(material.lineage, material.request.access_scope)
    if len(own.get(signal, ())):
        return ""
    name, chip = one_line(material.spec.name), material.spec.id
    return (
        f"No document about {name} has a section on {signal}; what is shown is general or only"
        f" related. To add a manual: kernlore ingest --hardware {chip} FILE. What to look for:"
        f" kernlore hardware coverage {chip}"
    )


_VALUE_ASKED = re.compile(
    r"\W*(?:(?:and|so) )?(?:what(?:'s| is| are| was)"
    r"|how (?:many|much|large|big|wide|fast|long|high)|number of|at (?:what|which))\b",
    re.IGNORECASE,
)


def unanswered_hint(material: Material, excerpts: Sequence[Excerpt]) -> str:
    """A hint for a question about a chip that no fact answers: that only general passages are near
    it, whose numbers are of other chips, or that no excerpt has a value in the unit asked for."""
    request, spec = material.request, material.spec
    asked = request.query and not (request.log or request.draft or request.metrics)
    if spec is None or not asked or not excerpts:
        return ""
    if "hardware" not in (request.categories or CATEGORIES):
        return ""
    chip, own = one_line(spec.name), set(material.lineage)
    texts = [excerpt.text for excerpt in excerpts if own & set(excerpt.hardware)]
    if not texts:
        return (
            f"No passage about {chip} is near this question: the excerpts are general, and numbers"
            " of other chips in them do not hold for it."
        )
    _, values = value_patterns(request.query or "")
    if not _VALUE_ASKED.match(request.query or "") or not values:
        return ""
    if any(value.search(text) for value in values for text in texts):
        return ""
    return f"No excerpt states such a value: the documents about {chip} may not have it."


def names_asked(question: str) -> list[str]:
    """The words of a question that name code or a product. Ordinary words are left out: an answer
    need not repeat them."""
    words = dict.fromkeys(filter(_NAME.search, _WORD.findall(question)))
    return [w for w in words if not _ORDINARY.match(w) and canonical_op(w) == w.lower()]


def absent_words_hint(snapshot: Snapshot, material: Material, excerpts: Sequence[Excerpt]) -> str:
    """A hint about names in a question for a chip that no passage in the scope has. An identifier
    (`a_b`, `n::a_b`) counts as a whole or by all of its parts in one excerpt, another name by any
    of its parts."""
    request = material.request
    if material.spec is None or not request.query or request.log or request.draft:
        return ""
    shown = [set(tokenize(excerpt.text)) for excerpt in excerpts]
    absent = []
    for word in names_asked(request.query)[:MOST_WORDS]:
        parts = tokenize(word)
        whole = [token for token in parts if "_" in token] if "_" in word or "::" in word else []
        tokens, pieces = whole or parts, set(parts) - set(whole) or {word}
        if tokens and not any(s.intersection(tokens) or pieces <= s for s in shown):
            absent += [] if snapshot.search("passage", tokens, material.scope, 1) else [word]
    if not absent:
        return ""
    named = " and ".join(map(repr, absent[:MOST_ABSENT]))
    return (
        f"Nothing stored about {one_line(material.spec.name)} contains {named}: the excerpts may"
        " be about something near it."
    )


def _treats(excerpt: Excerpt, material: Material) -> bool:
    own = set(excerpt.hardware) & set(material.lineage)
    if not own:
        return False
    return excerpt.score > WORDS_ALONE or contains_signal(excerpt.text, material.verdict.primary)


# -- error codes and ids that are outside the answer's scope

ERROR = "error"  # kind of the cards of error codes
MOST_CODES = 4  # codes of a request that are looked up
MOST_HITS = 8  # passages read for a code that no card has
MOST_CHIPS = 3  # chips that define a code; a code of more chips is an ordinary word
MOST_IDS = 3  # ids named in a hint
MOST_TITLES = 3
READ = 20_000  # characters of a log
# Parts of a context that are generated; their ids are not in the catalog.
OWN_PARTS = frozenset({"launch", "stated-sample", "log", "unknown-names"})
# Capitals with at least three digits at the end: K2E-0331, NCC_EVRF031; not H100, INT8 or FP16.
_CODE = re.compile(r"\b(?=[A-Z0-9_-]{6,40}\b)[A-Z][A-Z0-9]*(?:[-_][A-Z0-9]+)*?[-_]?\d{3,}\b")


def definition_hint(snapshot: Snapshot, material: Material, excerpts: Sequence[Excerpt]) -> str:
    """A hint with the chips whose documents define error codes that the request names and the
    answer does not. Only chips that the caller may see are named."""
    request = material.request
    text = f"{(request.log or '')[:READ]}\n{request.query or ''}"
    codes = list(dict.fromkeys(_CODE.findall(text)))[:MOST_CODES]
    codes = [code for code in codes if not any(code in e.text for e in excerpts)]
    hints = []
    for code in codes:
        owners = _owners(snapshot, code, request.access_scope)
        chips = dict.fromkeys(chip for chip, _ in owners)
        if not owners or len(chips) > MOST_CHIPS or set(chips) & set(material.lineage):
            continue
        titles = dict.fromkeys(title for _, title in owners)
        named = one_line(", ".join(titles))
        hints.append(
            f"{code} stands in documents about {' and '.join(chips)}"
            f" ({named}): ask with hardware={next(iter(chips))} for what it means."
        )
    return " ".join(hints)


def _owners(snapshot: Snapshot, code: str, access: AccessScope) -> list[tuple[str, str]]:
    """(chip, document title) of the definitions of a code: its cards, else passages that contain
    it. Empty if a document about no chip in particular has the code."""
    cards = snapshot.symbols(names=(code,), access=access)
    about: list[tuple[Sequence[str], str]] = [
        (card.hardware, card.document_title) for card in cards if card.kind == ERROR
    ]
    if not about:
        about = [(p.hardware, p.document_title) for p in _passages_with(snapshot, code, access)]
    if any(not set(chips) - {ANY} for chips, _ in about):
        return []
    return [(chip, title) for chips, title in about for chip in chips]


def _passages_with(snapshot: Snapshot, code: str, access: AccessScope) -> Iterator[Passage]:
    whole = [token for token in tokenize(code) if len(token) == max(map(len, tokenize(code)))]
    scope = ScopeFilter(None, access_scope=access)
    found = snapshot.load(snapshot.search("passage", whole, scope, MOST_HITS), scope)
    return (passage for passage in found.values() if code in passage.shown)


def exclusion_hint(snapshot: Snapshot, request: RetrieveRequest) -> str:
    """A hint about ids in `exclude` that nothing visible to the caller has."""
    given = [i for i in request.exclude if i not in OWN_PARTS]
    strange = snapshot.unknown_ids(given, request.access_scope)
    if not strange:
        return ""
    named = ", ".join(map(repr, strange[:MOST_IDS]))
    more = f" and {len(strange) - MOST_IDS} more" if len(strange) > MOST_IDS else ""
    return (
        f"`exclude` names {named}{more}, which nothing here has: it changes nothing. Ids to exclude"
        " stand in `excerpts` and `parts` of an answer."
    )


def unread_documents_hint(snapshot: Snapshot, scope: ScopeFilter) -> str:
    """A hint about documents in the scope that have not been read yet."""
    titles = [document.title for document in snapshot.knowledge.waiting_for(scope)]
    if not titles:
        return ""
    named = ", ".join(map(repr, titles[:MOST_TITLES]))
    more = f" and {len(titles) - MOST_TITLES} more" if len(titles) > MOST_TITLES else ""
    return (
        f"Not read yet, so not in this answer: {named}{more}. Their jobs show how far they are;"
        " ask again when they are ready."
    )
