"""An answer as a bundle, or what is wrong with it. Nothing is repaired here and nothing is guessed.

Standard library only.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from kb.errors import InvalidRequest
from optimizer.evaluation.abi import HEADER_NAME
from optimizer.evaluation.bundle import MANIFEST, Bundle, Parameter, default_entry
from optimizer.search.context import Context
from optimizer.search.synthesizers.llm.answers.answer import (
    BadAnswer,
    lone_block,
    lone_code,
    named_files,
    object_in,
    why_no_object,
)
from optimizer.search.synthesizers.llm.prompting import languages

FIELDS = frozenset({"plan", "used", "language", "entry", "files", "main", "parameters"})
MAX_FILES = 8
MAX_PARAMETERS = 64
MAX_PLAN = 4_000
MAX_ANSWER = 2_000_000  # characters
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_]+)+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RESERVED = frozenset({MANIFEST, HEADER_NAME})


@dataclass(frozen=True)
class Answer:
    """claimed: ids that were shown, in the order they were named."""

    bundle: Bundle
    plan: str
    claimed: tuple[str, ...]


def answer_from(text: str, context: Context, shown: Collection[str]) -> Answer:
    """Raises BadAnswer with a message for the model."""
    if not text.strip():
        raise BadAnswer("the answer is empty")
    if len(text) > MAX_ANSWER:
        raise BadAnswer(f"the answer is longer than {MAX_ANSWER:,} characters")
    told = object_in(text)
    told = _from_block(text, context) if told is None else _with_files(told, text, context)
    unknown = sorted(set(told) - FIELDS)
    if unknown:
        raise BadAnswer(f"unknown fields: {', '.join(map(repr, unknown))[:200]}")
    bundle = _bundle(told, context)
    _refuse_known(bundle, context)
    claimed = dict.fromkeys(_texts(told, "used"))
    plan = _text(told, "plan", "")[:MAX_PLAN]
    return Answer(bundle, plan, tuple(name for name in claimed if name in shown))


def _from_block(text: str, context: Context) -> dict[str, Any]:
    block = lone_block(text, context.hardware.languages)
    if block is None:
        why = why_no_object(text) or "it is missing, cut off or malformed"
        raise BadAnswer(f"there is no complete JSON object: {why}")
    language, code = block
    main = languages.default_main(language, context)
    plan = text.split("```")[0].strip()
    return {"plan": plan, "language": language, "files": {main: code}, "main": main}


def _with_files(told: dict[str, Any], text: str, context: Context) -> dict[str, Any]:
    """The object with the files that stand in code blocks, where it has none of its own."""
    given = told.get("files")
    if given and isinstance(given, dict):
        return told
    files = named_files(text)
    if "files" in told and not files:
        return told
    if not files and (code := lone_code(text)) is not None:
        language = told.get("language")
        name = told.get("main") or languages.default_main(str(language), context)
        files = {str(name): code}
    if not files:
        raise BadAnswer("no file was found: put each in a code block under a line `File: NAME`")
    return {**told, "files": files}


def _bundle(told: Mapping[str, Any], context: Context) -> Bundle:
    language = _text(told, "language")
    if language not in context.hardware.languages:
        offered = ", ".join(context.hardware.languages)
        raise BadAnswer(f"language {language[:40]!r} is not offered; use {offered}")
    files = files_from(told.get("files"))
    main = _text(told, "main", next(iter(files)) if len(files) == 1 else None)
    _refuse_files(files, main, language, context)
    entry = _text(told, "entry", default_entry(main))
    source = files[main]
    if not _IDENTIFIER.fullmatch(entry) or entry not in source:
        raise BadAnswer(f"{main} does not define the entry {entry[:80]!r}")
    if main.endswith(".py"):
        _refuse_syntax(main, source)
    try:
        return Bundle(files, main, language, entry, _parameters(told), "llm")
    except InvalidRequest as problem:
        raise BadAnswer(f"{problem.message}. {problem.hint}") from None


def files_from(told: Any) -> dict[str, str]:
    """Checked names and texts. Raises BadAnswer."""
    if not isinstance(told, dict) or not told or not all(isinstance(t, str) for t in told.values()):
        raise BadAnswer("`files` must be an object from file name to the text of the file")
    if len(told) > MAX_FILES:
        raise BadAnswer(f"{len(told)} files; at most {MAX_FILES} are allowed")
    for name, text in told.items():
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise BadAnswer(f"file name {name[:80]!r} is not allowed: plain names, no folders")
        if not text.strip():
            raise BadAnswer(f"{name} is empty")
        _refuse_hidden(text)
    return dict(told)


def _refuse_files(files: Mapping[str, str], main: str, language: str, context: Context) -> None:
    """Only what the language needs: one source, and headers where it has them."""
    if main not in files:
        raise BadAnswer(f"`main` is {main[:80]!r}, which is none of the files")
    allowed = languages.main_suffixes(language, context)
    if allowed and PurePosixPath(main).suffix not in allowed:
        raise BadAnswer(f"{main} is no {language} file: use {' or '.join(allowed)}")
    beside = () if language in languages.PYTHON_LIKE else languages.HEADER_SUFFIXES
    for name in files:
        if name != main and PurePosixPath(name).suffix not in beside:
            raise BadAnswer(f"{name} was not asked for. {languages.rule(context)}")


def _refuse_syntax(name: str, source: str) -> None:
    try:
        ast.parse(source, name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise BadAnswer(f"{name} is not valid Python: {str(problem)[:200]}") from None


def _refuse_known(bundle: Bundle, context: Context) -> None:
    """The parent, or what was tried already, comes to nothing."""
    for node in (context.parent, *context.tried):
        if node.proposal is not None and node.proposal.bundle.sha256 == bundle.sha256:
            raise BadAnswer(f"this is node {node.number} again, without a change")


def _refuse_hidden(text: str) -> None:
    """Characters that no file or database takes."""
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise BadAnswer("a text holds characters that are no text (NUL or lone surrogates)")


def _parameters(told: Mapping[str, Any]) -> dict[str, Parameter]:
    given = told.get("parameters") or {}
    if not isinstance(given, dict) or len(given) > MAX_PARAMETERS:
        raise BadAnswer(f"`parameters` must be an object of at most {MAX_PARAMETERS} values")
    for name, value in given.items():
        finite = not isinstance(value, float) or math.isfinite(value)
        if (
            not _IDENTIFIER.fullmatch(name)
            or not isinstance(value, int | float | str)
            or not finite
        ):
            raise BadAnswer(f"parameter {name[:40]!r} must be a number, a text or a boolean")
        _refuse_hidden(str(value))
    return given


def _text(told: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = told.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value.strip() and default is None):
        raise BadAnswer(f"`{name}` must be a text")
    _refuse_hidden(value)
    return value


def _texts(told: Mapping[str, Any], name: str) -> list[str]:
    value = told.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadAnswer(f"`{name}` must be a list of texts")
    return value
