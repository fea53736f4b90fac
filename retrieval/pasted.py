"""The kind of a pasted text: a profile, metrics, code, a question, a signal or a log.

A text that is neither by its form is read as a log and as a profile: a known error makes it a log,
counters that a rule reads a profile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kb.errors import InvalidRequest
from kb.problem_terms import canonical_op, problem_terms
from retrieval.diagnose.diagnosis import symptoms_in
from retrieval.diagnose.given_profile import (
    advice_of,
    is_profile,
    known_errors,
    numbers_in,
    shows_signals,
)
from retrieval.diagnose.linear_patterns import compile_pattern
from retrieval.diagnose.signals import load_signals
from retrieval.operators import load_operators

MAX_VALUE = 60  # characters of a metric; the messages of a log in JSON are longer
MAX_QUESTION = 600  # characters; a longer text without signs of another kind is a log
MAX_READ_TWICE = 100_000  # characters of a text of no known form, which takes the time of both
# Patterns with several repetitions are compiled by RE2: a paste may have any text.
_METRIC = compile_pattern(r"[A-Za-z_][\w.:/%()-]*\s*[=,:\t ]\s*[-+]?[\d.,]+(?:[eE][+-]?\d+)?\s*%?")
_OF_CODE = compile_pattern(
    r"[;{}]\s*$|^\s*(?:#|//|/\*|\*|return\b|raise\b|import\b|from\b)|\w\(.*\)\s*$"
)
_PAIR_END = re.compile(r"\n|[,;]\s+")  # between metrics
# Words and places that compilers, runtimes and tools print.
_LOG = re.compile(
    r"\b(?:error|warning|fatal|failed|failure|exception|traceback|abort(?:ed)?|segmentation fault"
    r"|ptxas|nvcc|hipcc|out of memory|illegal|assert(?:ion)?|undefined|cannot|core dumped)\b"
    r"|\w\.(?:c|cc|cpp|cu|cuh|h|hpp|hip|py|mlir|ll)[:(]\d+|^\s*File \"|^\[ *\d+\.\d{6}\] ",
    re.IGNORECASE | re.MULTILINE,
)
_FAILED = re.compile(
    r"\b(?:error|fatal|traceback|exception|failed)\b *[:(\[]|: error\b", re.IGNORECASE
)
_MEASURED = re.compile(r"\d ?%|\d ?x\b|\d ?(?:[GMT]i?B|[num\u00b5]?s)\b")
_SUGGESTED = re.compile(r"\bdid you (?:mean|forget)\b[^?\n]*\?\s*$", re.IGNORECASE)  # by a compiler
_CODE = compile_pattern(
    r"(?m-i:^\s*(?:#include\b|#pragma\b|import \w|from \w+ import|def \w+\(|class \w+[(:]"
    r"|@\w+(?:\.\w+)*\s*$"
    r"|template\s*<|(?:extern|static|inline|constexpr|__global__|__device__|kernel|void)\b.*[({]"
    r"|[\w:<>*& ]+\s+\w+\([^)]*\)\s*\{|for\s*\(|for \w+ in ))"
)


def pasted(text: str) -> tuple[str, Any]:
    """The field of a request that a text belongs to, and its value there: `profile`, `metrics`,
    `draft`, `query`, `log`, or the id of a `signal`."""
    stripped = text.strip()
    if stripped in load_signals():
        return "signal", stripped
    lines = [line for line in stripped.splitlines() if line.strip()]
    if is_profile(stripped):
        return "profile", text
    if (metrics := _json_metrics(stripped)) is not None:
        return "metrics", metrics
    if lines and all(map(_METRIC.fullmatch, _pairs(stripped))):
        return "metrics", metrics_of(stripped)
    if advice_of(stripped):
        return "log", text
    signs = len(_CODE.findall(stripped))
    is_code = signs >= 2 or (signs and any(sign.search(stripped) for _, sign in _LANGUAGES))
    if len(lines) >= 3 and is_code and not _FAILED.search(stripped) and not _ends_in_error(lines):
        return "draft", text
    is_question = len(stripped) <= MAX_QUESTION and len(lines) <= 4 and _is_question(stripped)
    is_question = is_question and (stripped.endswith("?") or not numbers_in(stripped))
    short = len(stripped) <= MAX_READ_TWICE and not stripped.endswith("?")
    counted = not is_question and not _LOG.search(stripped)
    if short and not known_errors().match(stripped, 1) and shows_signals(stripped, counted):
        return "profile", text
    reported = _reports(stripped) or known_errors().match(stripped, 1)
    if is_question and (stripped.endswith("?") or not reported):
        return "query", stripped
    return "log", text


def _ends_in_error(lines: Sequence[str]) -> bool:
    """Whether a known error is alone above or below code, as `CUDA_ERROR_X: reason` does."""
    return any(
        known_errors().match(line, 1) and not _OF_CODE.search(line)
        for line in (lines[0], lines[-1])
    )


def _reports(text: str) -> bool:
    """Whether a statement has measured numbers and names a signal."""
    return bool(_MEASURED.search(text) and symptoms_in(text, load_signals()))


def _pairs(text: str) -> list[str]:
    """The parts of a text that may each be a name and a value."""
    return [part.strip() for part in _PAIR_END.split(text) if part.strip()]


# Signs of the language of code, the special ones first.
_LANGUAGES = (
    ("triton", re.compile(r"@triton\.(?:jit|autotune)|\bimport triton\b")),
    ("hip", re.compile(r"\bhip(?:LaunchKernel|Malloc|Stream)|hip/hip_runtime")),
    ("cuda", re.compile(r"__global__|__device__|__shared__")),
    ("torch", re.compile(r"\bimport torch\b")),
    ("cpp", re.compile(r"#include\s*[<\"]")),
)
# What an elementwise kernel on a GPU has none of: sums, products, scans, exchange, loops.
_COMBINES = re.compile(
    r"\btl\.(?:dot|sum|max|min|arg\w+|reduce|cum\w+|associative_scan|sort|trans|permute|atomic_\w+)"
    r"|mma|atomic|shfl|shared|\b(?:for|while)\b"
)
_STORES = compile_pattern(r"(?-i:\btl\.store\(|\w\s*\[[^\]]*\]\s*=[^=])")
_FUNCTION = compile_pattern(r"(?-i:(?:\bdef|__global__[\w\s]*?|\bvoid|\bclass|\bint)\s+(\w+)\s*\()")


def with_text(request: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The request with a text in the field of its kind; for code alone also with what it computes.
    Raises InvalidRequest where that field is given too."""
    name, value = pasted(text)
    if name in request:
        raise InvalidRequest(
            f"the text is read as {name}, and {name} is given too", hint="Give one of them."
        )
    alone = name == "draft" and not {"op", "query", "log", "metrics", "signal"} & request.keys()
    return {**(_about_code(text) if alone else {}), **request, name: value}


def _about_code(code: str) -> dict[str, str]:
    """`task`, the `language` of code and its `op`, by the names of its functions or else by what it
    computes; without an `op` the words of those names as `query`."""
    fields = {"task": "speed_up"}
    language = next((name for name, sign in _LANGUAGES if sign.search(code)), None)
    if language is not None:
        fields["language"] = language
    names = [name.lower() for name in _FUNCTION.findall(code)]
    words = [word for name in names for word in name.split("_") if word]
    op = next((w for w in (*names, *words) if canonical_op(w) in problem_terms().ops), None)
    kinds = load_operators()
    for kind in () if op else kinds.of(None, (" ".join(words),), code=code).kinds:
        op = op or min(kinds.kinds[kind].ops, default=None)
    if op is None and language in ("triton", "cuda", "hip") and _STORES.search(code):
        op = None if _COMBINES.search(code) else "elementwise"
    if op is not None:
        return {**fields, "op": op}
    return {**fields, "query": " ".join(words)} if words else fields


def metrics_of(text: str) -> dict[str, Any]:
    """Metrics from pairs of a name and a value. Raises InvalidRequest for a name alone."""
    metrics: dict[str, Any] = {}
    for line in _pairs(text):
        match = re.match(r"(\S+?)\s*(?:[=,:]\s*|\s+)(\S.*)", line)
        if match is None:
            raise InvalidRequest(
                f"the metric {line[:80]!r} has no value",
                hint="Write one metric a line: its name, a space, its value; or paste JSON.",
            )
        value = match[2].strip().removesuffix("%").strip()
        metrics[match[1].rstrip(":=,")] = value
    return metrics


def _json_metrics(text: str) -> Mapping[str, Any] | None:
    """A JSON object of numbers and texts, else None."""
    if not text.startswith("{"):
        return None
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        return None
    plain = isinstance(decoded, dict) and all(
        isinstance(value, int | float) or (isinstance(value, str) and len(value) <= MAX_VALUE)
        for value in decoded.values()
    )
    return decoded if plain and decoded else None


def _is_question(text: str) -> bool:
    """Whether a short text is a person's question, and not a line that a tool printed."""
    if text.endswith("?") and not _SUGGESTED.search(text):
        return True
    return not _LOG.search(text) and not known_errors().match(text, 1)
