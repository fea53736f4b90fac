"""Blocks of cards: names of a language with signatures, meanings, limits and examples, as many as a
room of tokens has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kb.catalog.knowledge.symbols import Symbol
from kb.prompt_tokens import count_tokens
from retrieval.blocks import Block, fenced

BRIEF = 160  # characters of a meaning in one line
_SENTENCE = re.compile(r".{20,}?[.!?](?=\s|$)")


def symbol_line(*symbols: Symbol) -> str:
    """A card as one entry of a list: signature, meaning, operands, limits, example. Symbols that a
    document describes in the same words share an entry.
    """
    first = symbols[0]
    heads = [_head(symbol) for symbol in symbols]
    lines = [f"- {', '.join(heads)} ({first.kind}): {_flat(first.meaning)}".rstrip(": ")]
    if first.operands:
        operands = "; ".join(
            f"{name}: {meaning}" if meaning else name for name, meaning in first.operands
        )
        if operands not in heads[0]:
            lines.append(f"  operands: {_flat(operands)}")
    meaning = _flat(first.meaning)
    limits = [_flat(text) for text in first.limits if _flat(text) not in meaning]
    if limits:
        lines.append(f"  limits: {' '.join(limits)}")
    if first.further:
        lines.append(f"  {_flat('; '.join(first.further))}")
    for symbol in symbols:
        if symbol.example:
            lines.append(_example(symbol.example.strip()))
    return "\n".join(lines)


def signature_line(*symbols: Symbol) -> str:
    """Cards by their signatures alone; those that have none say something in one line only."""
    if not any(symbol.signature not in ("", symbol.name) for symbol in symbols):
        return brief_line(*symbols)
    return f"- {', '.join(map(_head, symbols))}"


def brief_line(*symbols: Symbol) -> str:
    """A card in one line: signature and the first sentence of its meaning."""
    first = symbols[0]
    heads = ", ".join(map(_head, symbols))
    sentence = _SENTENCE.match(_flat(first.meaning))
    meaning = (sentence[0] if sentence else _flat(first.meaning))[:BRIEF]
    return f"- {heads} ({first.kind}): {meaning}".rstrip(": ")


def _head(symbol: Symbol) -> str:
    head = symbol.signature or symbol.name
    return f"`{head}`" if symbol.name in head else f"{symbol.name}: `{head}`"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _example(example: str) -> str:
    if "\n" not in example:
        return f"  example: `{example}`"
    return "  example:\n" + "\n".join(f"    {line}" for line in example.splitlines())


def symbol_blocks(symbols: Sequence[Symbol], room: int, needed: Sequence[str] = ()) -> list[Block]:
    """The cards in `room` tokens, one block for each document, in the given order. Every name comes
    before the details of any: what does not fit whole is one line, and where the lines of all do
    not fit, a signature. Then lines become longer while room is left, first those of the names that
    are `needed`, in their order.
    """
    rank = {name: number for number, name in enumerate(needed)}

    def urgency(alike: Sequence[Symbol]) -> int:
        return min(rank.get(symbol.name, len(rank)) for symbol in alike)

    kinds = _alike(symbols)
    forms = [brief_line, symbol_line]
    if sum(count_tokens(brief_line(*alike)) + 1 for alike in kinds) > room:
        kinds = _each_name_first(sorted(kinds, key=urgency))
        forms.insert(0, signature_line)
    entries: list[tuple[list[Symbol], str]] = []
    left = room
    for alike in kinds:
        line = forms[0](*alike)
        cost = count_tokens(line) + 1
        if cost <= left:
            left -= cost
            entries.append((alike, line))
    for longer in forms[1:]:
        for n in sorted(range(len(entries)), key=lambda n: urgency(entries[n][0])):
            alike, shorter = entries[n]
            line = longer(*alike)
            more = count_tokens(line) - count_tokens(shorter)
            if more <= left:
                left -= more
                entries[n] = (alike, line)
    groups: dict[str, list[tuple[list[Symbol], str]]] = {}
    for entry in entries:
        groups.setdefault(entry[0][0].document_id, []).append(entry)
    return [_symbol_block(group) for group in groups.values()]


def _each_name_first(kinds: Sequence[list[Symbol]]) -> list[list[Symbol]]:
    """In their order, but what says more of names that came before is last."""
    new: list[list[Symbol]] = []
    again: list[list[Symbol]] = []
    seen: set[str] = set()
    for alike in kinds:
        names = {symbol.name for symbol in alike}
        (again if names <= seen else new).append(alike)
        seen |= names
    return [*new, *again]


def _symbol_block(entries: Sequence[tuple[list[Symbol], str]]) -> Block:
    """The entries of one document."""
    first = entries[0][0][0]
    source = f"{first.document_title} (v{first.version}), symbols"
    text = "\n".join(line for _, line in entries)
    block = fenced("symbols", first.id, source, first.hardware, text)
    sections = dict.fromkeys(symbol.section_id for alike, _ in entries for symbol in alike)
    return replace(block, sections=tuple(sections))


def _alike(symbols: Sequence[Symbol]) -> list[list[Symbol]]:
    """Symbols that share a description, at the place of the first of them."""
    groups: dict[tuple[object, ...], list[Symbol]] = {}
    for symbol in symbols:
        described = (symbol.section_id, symbol.kind, _flat(symbol.meaning), symbol.operands)
        same = (*described, symbol.limits, symbol.further) if symbol.meaning else (symbol.id,)
        groups.setdefault(same, []).append(symbol)
    return list(groups.values())
