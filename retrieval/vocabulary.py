"""What is known of a chip's languages: its symbols and its samples, listed and searched, and
corrections of a card.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kb.catalog.knowledge import samples, symbols
from kb.catalog.knowledge.symbols import SymbolStatus
from kb.errors import InvalidRequest
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.knowledge_base import KnowledgeBase
from retrieval.symbols import search_symbols

MAX_LISTED = 2_000
MOST_BY_MEANING = 500  # cards that a query is held against by meaning: 6 ms each, once


def list_symbols(
    base: KnowledgeBase,
    hardware: str,
    query: str = "",
    limit: int = MAX_LISTED,
    access_scope: AccessScope = ALL_ACCESS,
    status: SymbolStatus = "accepted",
    language: str = "",
) -> list[dict[str, Any]]:
    """Cards of a chip and of what stands above it: all in the order of their documents, or those
    that a query means, best first; with `language`, without those that are known to be of another
    one. Cards that a model has proposed count from when a person has accepted them; `status` lists
    the others. Raises UnknownHardware and InvalidRequest.
    """
    _check_limit(limit)
    lineage = base.registry.lineage(base.registry.resolve(hardware))
    with base.catalog.read() as connection:
        cards = symbols.listed(connection, lineage, statuses=(status,), access_scope=access_scope)
    if language:
        cards = [card for card in cards if card.language in ("", language)]
    if query.strip():
        embed = base.embed if base.dense_ready and len(cards) <= MOST_BY_MEANING else None
        cards = search_symbols(query, cards, embed, limit)
    return [card.as_json() for card in cards[:limit]]


def symbols_of_section(
    base: KnowledgeBase, section_id: str, access_scope: AccessScope = ALL_ACCESS
) -> list[dict[str, Any]]:
    """Cards of the names that a section of a document defines."""
    with base.catalog.read() as connection:
        cards = symbols.listed(connection, section=section_id, access_scope=access_scope)
    return [card.as_json() for card in cards]


def show_symbol(
    base: KnowledgeBase, symbol_id: str, access_scope: AccessScope = ALL_ACCESS
) -> dict[str, Any]:
    """The card of a name. Raises NotFound."""
    with base.catalog.read() as connection:
        return symbols.get(connection, symbol_id, access_scope).as_json()


def list_samples(
    base: KnowledgeBase,
    hardware: str,
    operator: str = "",
    access_scope: AccessScope = ALL_ACCESS,
) -> list[dict[str, Any]]:
    """Whole kernels for a chip: those that runs have verified first, then those of its manuals;
    with `operator`, only those that compute it. Raises UnknownHardware.
    """
    lineage = base.registry.lineage(base.registry.resolve(hardware))
    with base.catalog.read() as connection:
        kernels = samples.listed(connection, lineage, access_scope)
    return [k.as_json() for k in kernels if not operator or k.operator == operator]


def correct_symbol(
    base: KnowledgeBase,
    symbol_id: str,
    fix: Mapping[str, Any],
    actor: str = "person",
    access_scope: AccessScope = ALL_ACCESS,
) -> dict[str, Any]:
    """Correct a card, now and in every later version of its document, or accept or reject one that
    a model has proposed by its `status`; the card afterwards. Raises InvalidRequest and NotFound.
    """
    fields = {name: value for name, value in fix.items() if value is not None}
    return symbols.correct(
        base.catalog, symbol_id, fields, actor, access_scope=access_scope
    ).as_json()


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LISTED:
        raise InvalidRequest(f"limit is {limit}", hint=f"Use 1 to {MAX_LISTED}.")
