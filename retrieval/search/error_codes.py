"""Error codes that the documents of a chip define, matched in a log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kb.catalog.knowledge.symbols import Symbol
from retrieval.diagnose.signatures import OF_CARDS, ErrorSignature, SignatureMatch
from retrieval.search.names import MAX_DRAFT, names_in

ERROR = "error"  # kind of the cards of error codes
MOST = 4  # codes of one log
# Signals of cards by words in their text, then by words in their heading.
_WORDS = (
    ("misaligned_access", r"mis-?aligned|un-?aligned|not aligned"),
    (
        "illegal_memory_access",
        r"out[ -]of[ -]bounds|(?:invalid|illegal|unmapped|bad) (?:memory )?(?:address|access)",
    ),
    ("timeout", r"\btime[ds]?[ -]?out\b|deadlock|\bhangs?\b|watchdog"),
    ("out_of_memory", r"\bout of (?:device |global )?memory"),
    (
        "register_limit",
        r"(?:too many|out of|not enough|insufficient) (?:\w+ )?registers"
        r"|registers? (?:file )?(?:overflow|exhausted|exceed)",
    ),
    (
        "shared_memory_limit",
        r"(?:shared|local|on-chip) memory (?:is )?(?:overflow|exceed|exhausted|full|too small)"
        r"|(?:scratchpad|SRAM) (?:is )?(?:overflow|exceed|exhausted|full|too small)",
    ),
    (
        "unsupported_dtype",
        r"(?:data ?type|dtype|precision)[^.]{0,40}not supported|unsupported (?:data ?type|dtype)",
    ),
)
_HEADINGS = (
    ("link_error", r"\blink"),
    ("compile_error", r"compil|assembl|\bbuild|syntax|translat|diagnostic"),
    ("launch_error", r"run-?\s?time|launch|fault|\btraps?\b|driver|exception|device"),
)


def code_matches(log: str, cards: Sequence[Symbol]) -> list[SignatureMatch]:
    """A match for each error code of the cards that a log contains, in the order of the log, at
    most MOST. A bare number is not matched: it may be an address.
    """
    codes = {c.name: c for c in cards if c.kind == ERROR and _is_code(c.name)}
    matches = []
    for name in names_in(log, codes)[:MOST]:
        signal = _signal_of(codes[name])
        number, line = _line_of(name, log)
        if signal:
            matches.append(SignatureMatch(_signature(codes[name], signal), number, line, {}))
    return matches


def _is_code(name: str) -> bool:
    """Letters and a number, more than the name of a register or a type has."""
    return len(name) >= 4 and name[0].isalpha() and any(c.isdigit() for c in name)


def _signature(card: Symbol, signal: str) -> ErrorSignature:
    return ErrorSignature(
        id=f"code-{card.name}",
        toolchain=card.language,
        pattern=re.escape(card.name),
        signal=signal,
        title=f"{card.name} is an error code of {card.document_title}",
        remedy=_words(card),
        origin=OF_CARDS,
        roles=(),
    )


def _words(card: Symbol) -> str:
    return " ".join(f"{part.rstrip('. ')}." for part in (*card.further, card.meaning) if part)


def _signal_of(card: Symbol) -> str:
    """The signal of a card; empty if neither its words nor its heading determine one."""
    above = (_signal_in(text, _HEADINGS) for text in (*reversed(card.path), card.document_title))
    return _signal_in(_words(card), _WORDS) or next(filter(None, above), "")


def _signal_in(text: str, patterns: Sequence[tuple[str, str]]) -> str:
    return next((signal for signal, words in patterns if re.search(words, text, re.I)), "")


def _line_of(name: str, log: str) -> tuple[int, str]:
    """The first line that contains a code: its number, from 1, and its text."""
    lines = log[:MAX_DRAFT].splitlines()
    return next(((n, line.strip()) for n, line in enumerate(lines, 1) if name in line), (1, name))
