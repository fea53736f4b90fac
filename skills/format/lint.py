"""The linter of skill texts. It finds figures without a measurement, hardware that was not
measured, absolute words, instructions to the reader, secrets, hidden characters, and long texts.

It works by patterns, without a model. A text with a finding is refused, never corrected.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kb.hardware.lineage import NameIndex

Kind = Literal["figure", "hardware", "absolute", "instruction", "secret", "hidden", "length"]
# About two pages: a page of sentences and figures, and the code of two kernels.
MAX_BODY = 10_000
MAX_LINES = 280
EXCERPT = 60  # characters shown of a finding

_REFERENCE = re.compile(r"\{\{ev:[A-Za-z0-9_.]+\}\}")
_FENCED = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LIST_MARK = re.compile(r"^\s*\d+\.\s", re.MULTILINE)
_SOURCES = re.compile(r"^## Sources\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"(?<![\w.])(?<!\w-)\d+(?:[.,]\d+)*(?:\s?(?:%|[x\u00d7]\b))?")
_FIGURE_WORDS = re.compile(
    r"\b(?:twice|thrice|doubl(?:es|ed)|double the|tripl(?:es|ed)|halv(?:es|ed|ing)|percent|per cent"
    r"|(?:two|three|four|five|six|seven|eight|nine|ten|hundred|thousand)[- ]?(?:fold|times)"
    r"|orders? of magnitude)\b",
    re.IGNORECASE,
)
_ABSOLUTE = re.compile(
    r"\b(?:always|never|guarantee[sd]?|best|optimal(?:ly)?|optimum|perfect(?:ly)?|certainly"
    r"|definitely|undoubtedly|fastest|ideal(?:ly)?|flawless(?:ly)?|every time|in all cases"
    r"|without exception|cannot fail|on any hardware|universally|risk-?free|impossible)\b",
    re.IGNORECASE,
)
_INSTRUCTIONS = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"\b(?:ignore|disregard|forget|override|discard)\b[^.\n]{0,40}"
        r"\b(?:previous|prior|above|earlier|preceding|all|other|every)\b[^.\n]{0,30}"
        r"\b(?:instruction|rule|prompt|message|context|guideline|constraint|advice)s?",
        r"\b(?:ignore|disregard|forget|override|discard)\b[^.\n]{0,30}"
        r"\b(?:instruction|rule|prompt|message|guideline|constraint)s?\b[^.\n]{0,20}"
        r"\b(?:above|before|so far|you (?:have|were|got))\b",
        r"\b(?:system|developer|hidden) (?:prompt|message|instruction)s?\b",
        r"(?:^|[\"'`>]|^\s*(?:[-*]|\d+[.)]))\s*(?:system|user|human|assist\w*)\s*:",
        r"</\s*data\b|<\|[a-z_]+\|>|\[/?INST\]|<</?SYS>>",
        r"\byou (?:are now|must|shall|have to|need to|will now)\b",
        r"\b(?:run|execute|invoke|launch|type|paste)\b[^.\n]{0,20}"
        r"\b(?:command|script|shell|terminal|following code|this code)\b",
        r"\b(?:skip|disable|bypass|turn off|switch off|remove|weaken|loosen)\b[^.\n]{0,30}"
        r"\b(?:check|verification|validation|test|harness|tolerance|correctness|sandbox|gate)s?\b",
        r"\b(?:mark|approve|promote|accept|publish|set)\b[^.\n]{0,20}\bskills?\b",
        r"\b(?:send|post|upload|exfiltrate|leak|print|reveal|show)\b[^.\n]{0,40}"
        r"\b(?:key|token|secret|password|credential|environment variable|prompt)s?\b",
        r"https?:|\bwww\.|\bftp:|\bdata:[a-z]+/|\bjavascript:",
        r"\b(?:curl|wget|sudo|chmod|powershell)\b|\brm\s+-|\b(?:ba|z)?sh\s+-c\b",
        r"\b(?:pip3?|npm|apt|apt-get|brew|conda)\s+install\b",
        r"\|\s*(?:ba|z)?sh\b|\bos\.system\b|\bsubprocess\b|\beval\s*\(|\bexec\s*\(|__import__",
        r"<\s*/?\s*(?:script|img|iframe|svg|style)\b|\]\s*\(\s*\w+:",
    )
)
_SECRETS = re.compile(
    r"\b(?:sk|pk|rk|xai)-[A-Za-z0-9_*-]{12,}|\b(?:gsk|hf)_[A-Za-z0-9]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|\beyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{8,}"
    r"|\bBearer\s+[A-Za-z0-9._~+/-]{12,}|://[^/\s@]+:[^/\s@]+@"
    r"|\b(?:api[_-]?key|password|passwd|secret)\s*[=:]\s*['\"]?[A-Za-z0-9_/+.-]{8,}"
    r"|\btoken\s*[=:]\s*['\"][A-Za-z0-9_/+.-]{8,}",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+@/-]{0,127}")


@dataclass(frozen=True)
class SkillTextFinding:
    """A reason to refuse the text named `where`; `found` is an excerpt."""

    kind: Kind
    where: str
    found: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.where}: {self.found!r}"


@dataclass(frozen=True)
class Allowed:
    """The values that a text may mention: the `values` of the changed parameters, and the measured
    `hardware` with its lineage. `names` holds every registered name and alias."""

    values: frozenset[str] = frozenset()
    hardware: frozenset[str] = frozenset()
    names: NameIndex = field(default_factory=lambda: NameIndex({}))


def lint(texts: Mapping[str, str], allowed: Allowed) -> tuple[SkillTextFinding, ...]:
    """The findings in texts by name. Figures in code blocks, and figures and names in sources, do
    not count."""
    findings: list[SkillTextFinding] = []
    for where, text in texts.items():
        plain = _SOURCES.sub("", _FENCED.sub(" ", text))
        findings += _figures(where, plain, allowed.values)
        findings += _matches("absolute", where, plain, _ABSOLUTE)
        named = _SOURCES.sub("", text)  # a repository may have a chip in its name
        names = sorted(allowed.names.find(named) - allowed.hardware)
        findings += (SkillTextFinding("hardware", where, name) for name in names)
        findings += unsafe(where, text)
        if len(text) > MAX_BODY or text.count("\n") >= MAX_LINES:
            findings.append(SkillTextFinding("length", where, f"{len(text)} characters"))
    return tuple(findings)


def unsafe(where: str, text: str) -> list[SkillTextFinding]:
    """Findings that no text may have, of any origin: instructions, secrets, hidden characters."""
    spoken = re.sub(r"[_-]+", " ", text)  # `ignore_all_previous_instructions` is read as words
    spoken = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", spoken)
    findings = []
    for pattern in _INSTRUCTIONS:
        for version in (text, spoken):
            hits = _matches("instruction", where, version, pattern)
            if hits:
                findings += hits
                break
    findings += _matches("secret", where, text, _SECRETS)
    hidden = [c for c in text if unicodedata.category(c) in ("Cf", "Co", "Cn", "Cc")]
    odd = sorted({f"U+{ord(c):04X}" for c in hidden if c not in "\n\t"})
    if odd:
        findings.append(SkillTextFinding("hidden", where, ", ".join(odd)[:EXCERPT]))
    return findings


def is_name(text: str) -> bool:
    """Whether a text of a trajectory can be used as a name in a skill."""
    return bool(_NAME.fullmatch(text)) and not unsafe("name", text)


def sentences(text: str) -> tuple[str, ...]:
    """The sentences of an untrusted text that are not unsafe."""
    parts = re.split(r"(?<=[.!?])\s+|\n+", text)
    return tuple(part.strip() for part in parts if part.strip() and not unsafe("text", part))


def _figures(where: str, text: str, values: frozenset[str]) -> Iterator[SkillTextFinding]:
    bare = _LIST_MARK.sub(" ", _REFERENCE.sub(" ", text))
    for match in _FIGURE.finditer(bare):
        if match.group() not in values:
            yield SkillTextFinding("figure", where, _around(bare, match))
    yield from _matches("figure", where, bare, _FIGURE_WORDS)


def _matches(kind: Kind, where: str, text: str, pattern: re.Pattern[str]) -> list[SkillTextFinding]:
    match = pattern.search(text)
    return [SkillTextFinding(kind, where, _around(text, match))] if match else []


def _around(text: str, match: re.Match[str]) -> str:
    start = max(0, match.start() - 15)
    return " ".join(text[start : start + EXCERPT].split())
