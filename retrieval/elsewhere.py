"""What the catalog knows about a request beside what its answer may hold: error codes that only the
documents of other chips define, and ids to be left out that nothing has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from kb.catalog.knowledge import lexical, passages, symbols
from kb.catalog.knowledge.documents import unknown_ids
from kb.scope import ANY, AccessScope, ScopeFilter
from kb.tokens import tokenize
from retrieval.answer import Excerpt
from retrieval.composer import Material
from retrieval.ranking import WEIGHTS
from retrieval.request import RetrieveRequest

ERROR = "error"  # kind of the cards of error codes
MOST_CODES = 4  # of a request, that are looked up
MOST_HITS = 8  # passages read for a code that no card has
MOST_CHIPS = 3  # that define a code; what more have is a word of all
MOST_IDS = 3  # that a hint names
READ = 20_000  # characters of a log
# Parts of a context that this program makes; they have no id in the catalog.
OWN_PARTS = frozenset({"launch", "stated-sample", "log", "unknown-names"})
# Capitals with at least three digits at the end: K2E-0331, NCC_EVRF031; no H100, INT8 or FP16.
_CODE = re.compile(r"\b(?=[A-Z0-9_-]{6,40}\b)[A-Z][A-Z0-9]*(?:[-_][A-Z0-9]+)*?[-_]?\d{3,}\b")


def defined_elsewhere(
    connection: Connection, material: Material, excerpts: Sequence[Excerpt]
) -> str:
    """Whose documents define the error codes of a request that nothing shown names; empty where
    none do. The caller learns only of chips that it may see.
    """
    request = material.request
    text = f"{(request.log or '')[:READ]}\n{request.query or ''}"
    codes = list(dict.fromkeys(_CODE.findall(text)))[:MOST_CODES]
    codes = [code for code in codes if not any(code in e.text for e in excerpts)]
    hints = []
    for code in codes:
        owners = _owners(connection, code, request.access_scope)
        chips = dict.fromkeys(chip for chip, _ in owners)
        if not owners or len(chips) > MOST_CHIPS or set(chips) & set(material.lineage):
            continue
        titles = dict.fromkeys(title for _, title in owners)
        hints.append(
            f"{code} stands in documents about {' and '.join(chips)}"
            f" ({', '.join(titles)}): ask with hardware={next(iter(chips))} for what it means."
        )
    return " ".join(hints)


def _owners(connection: Connection, code: str, access: AccessScope) -> list[tuple[str, str]]:
    """(chip, document title) of what defines a code: its cards, else passages that hold it. None
    where something about no chip in particular has it.
    """
    cards = symbols.listed(connection, names=(code,), access_scope=access)
    about: list[tuple[Sequence[str], str]] = [
        (card.hardware, card.document_title) for card in cards if card.kind == ERROR
    ]
    if not about:
        about = [(p.hardware, p.document_title) for p in _holding(connection, code, access)]
    if any(not set(chips) - {ANY} for chips, _ in about):
        return []
    return [(chip, title) for chips, title in about for chip in chips]


def _holding(connection: Connection, code: str, access: AccessScope) -> Iterator[passages.Passage]:
    whole = [token for token in tokenize(code) if len(token) == max(map(len, tokenize(code)))]
    scope = ScopeFilter(None, access_scope=access)
    found = lexical.search(
        connection, "passage", whole, scope, heading_weight=WEIGHTS.heading, limit=MOST_HITS
    )
    live = passages.load(connection, found, scope)
    return (passage for passage in live.values() if code in passage.shown)


def unknown_exclusions(connection: Connection, request: RetrieveRequest) -> str:
    """Names ids of `exclude` that nothing has which the caller may see; empty where all are."""
    given = [i for i in request.exclude if i not in OWN_PARTS]
    strange = unknown_ids(connection, given, request.access_scope) if given else []
    if not strange:
        return ""
    named = ", ".join(map(repr, strange[:MOST_IDS]))
    more = f" and {len(strange) - MOST_IDS} more" if len(strange) > MOST_IDS else ""
    return (
        f"`exclude` names {named}{more}, which nothing here has: it changes nothing. Ids to exclude"
        " stand in `excerpts` and `parts` of an answer."
    )
