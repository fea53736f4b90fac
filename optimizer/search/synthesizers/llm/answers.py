"""Parses a model's answer, a JSON object and files in code blocks, into a bundle.

Tolerates surrounding text, but checks object and files strictly; nothing is repaired or guessed.
Standard library only.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from kb.candidate_abi import HEADER_NAME
from kb.errors import InvalidRequest
from optimizer.evaluation.bundle import MANIFEST, Bundle, Parameter
from optimizer.search.synthesizers.base import ProposalContext
from optimizer.search.synthesizers.llm import templates

_BLOCK = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.M | re.S
)
_OPENED = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.M)
_LABEL = re.compile(  # `File: kernel.cpp`, also as a heading, in bold or in backticks
    r"[\s#>*_`-]*file(?:[ ]?name)?[*_`]*\s*:\s*[*_`\"]*([^\s*`\"]+)[*`\"]*\s*", re.I
)
_FIELD = re.compile(r'"(?:plan|used|language|main|files)"\s*:?')
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.S)
_DECODER = json.JSONDecoder(strict=False)  # models put raw line breaks into strings
TAGS: Mapping[str, tuple[str, ...]] = {
    "python": ("triton", "torch"),
    "py": ("triton", "torch"),
    "c": ("cpp",),
    "c++": ("cpp",),
    "cc": ("cpp",),
    "cu": ("cuda",),
}
MAX_OBJECTS = 200  # possible beginnings of an object that are tried in an answer
FIELDS = frozenset({"plan", "used", "language", "entry", "files", "main", "parameters"})
MAX_FILES = 8
MAX_PARAMETERS = 64
MAX_PLAN = 4_000
MAX_ANSWER = 2_000_000  # characters
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_]+)+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RESERVED = frozenset({MANIFEST, HEADER_NAME})


class BadAnswer(Exception):
    """The answer is no candidate; the message is sent to the model."""


def object_in(text: str) -> dict[str, Any] | None:
    """The first JSON object in the text that has files, else the first with another field of an
    answer, if any."""
    objects = [item for item in _objects(text) if {"files", "main", "plan"} & item.keys()]
    return next((item for item in objects if "files" in item), objects[0] if objects else None)


def why_no_object(text: str) -> str:
    """The position of the syntax error in the answer's JSON object; "" if there is no object."""
    field = _FIELD.search(text)
    start = text.rfind("{", 0, field.start()) if field else -1
    if start < 0:
        return ""
    try:
        _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as problem:
        return f"it breaks at line {problem.lineno}, column {problem.colno}: {problem.msg}"
    except RecursionError:
        return "it is nested too deeply"
    return ""


def named_files(text: str) -> dict[str, str]:
    """The code blocks under `File: NAME` lines. Raises BadAnswer for an unclosed block and for two
    blocks of one name."""
    files: dict[str, str] = {}
    end = 0
    for block in _BLOCK.finditer(text):
        name = _label(text[end : block.start()])
        if name in files:
            raise BadAnswer(f"there are two code blocks for {name[:80]}")
        if name:
            files[name] = block[3]
        end = block.end()
    opened = _OPENED.search(text, end)
    if opened is not None and (name := _label(text[end : opened.start()])):
        raise BadAnswer(f"the code block of {name[:80]} is not closed")
    return files


def _label(before: str) -> str:
    """The file name in the line before a code block, if it is a label."""
    last = before.rstrip().rsplit("\n", 1)[-1]
    label = _LABEL.fullmatch(last)
    return label[1] if label is not None else ""


def _objects(text: str) -> Iterator[dict[str, Any]]:
    bodies = [block[3] for block in _BLOCK.finditer(text) if block[2].lower() in ("", "json")]
    for candidate in (text, *bodies):
        for repaired in (candidate, _without_trailing_commas(candidate)):
            yield from _decoded(repaired)


def _decoded(text: str) -> Iterator[dict[str, Any]]:
    place, looked = text.find("{"), 0
    while place >= 0 and looked < MAX_OBJECTS:
        looked += 1
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (json.JSONDecodeError, RecursionError):
            end = place + 1
        else:
            if isinstance(value, dict):
                yield value
        place = text.find("{", end)


def _without_trailing_commas(text: str) -> str:
    return _STRING_OR_COMMA.sub(lambda hit: hit[0] if hit[0][0] == '"' else "", text)


def lone_block(text: str, offered: tuple[str, ...]) -> tuple[str, str] | None:
    """(language, code) of the only code block, if its tag names an offered language."""
    blocks = _code_blocks(text)
    if len(blocks) != 1:
        return None
    tag, code = blocks[0]
    fits = [name for name in TAGS.get(tag, (tag,)) if name in offered]
    if len(fits) == 2:  # Python: Triton only if the code mentions it
        fits = fits[:1] if "triton" in code else fits[1:]
    return (fits[0], code) if fits and code.strip() else None


def lone_code(text: str) -> str | None:
    """The only code block that is not JSON, with any tag."""
    blocks = [code for tag, code in _code_blocks(text) if tag != "json" and not _is_object(code)]
    return blocks[0] if len(blocks) == 1 else None


def _code_blocks(text: str) -> list[tuple[str, str]]:
    return [(block[2].lower(), block[3]) for block in _BLOCK.finditer(text)]


def _is_object(code: str) -> bool:
    return next(_decoded(code), None) is not None and code.lstrip().startswith("{")


@dataclass(frozen=True)
class CheckedAnswer:
    """A checked answer. `claimed` are shown ids that the model says it used, in its order."""

    bundle: Bundle
    plan: str
    claimed: tuple[str, ...]


def answer_from(text: str, context: ProposalContext, shown: Collection[str]) -> CheckedAnswer:
    """The candidate in a model's answer; `shown` are the ids that it may claim.

    Raises BadAnswer with a message for the model.
    """
    if not text.strip():
        raise BadAnswer("the answer is empty")
    if len(text) > MAX_ANSWER:
        raise BadAnswer(f"the answer is longer than {MAX_ANSWER:,} characters")
    fields = object_in(text)
    fields = _from_block(text, context) if fields is None else _with_files(fields, text, context)
    unknown = sorted(set(fields) - FIELDS)
    if unknown:
        raise BadAnswer(f"unknown fields: {', '.join(map(repr, unknown))[:200]}")
    bundle = _bundle(fields, context)
    _refuse_known(bundle, context)
    claimed = dict.fromkeys(_texts(fields, "used"))
    plan = _text(fields, "plan", "")[:MAX_PLAN]
    return CheckedAnswer(bundle, plan, tuple(name for name in claimed if name in shown))


def _from_block(text: str, context: ProposalContext) -> dict[str, Any]:
    block = lone_block(text, context.hardware.languages)
    if block is None:
        why = why_no_object(text) or "it is missing, cut off or malformed"
        raise BadAnswer(f"there is no complete JSON object: {why}")
    language, code = block
    main = templates.default_main(language, context)
    plan = text.split("```")[0].strip()
    return {"plan": plan, "language": language, "files": {main: code}, "main": main}


def _with_files(fields: dict[str, Any], text: str, context: ProposalContext) -> dict[str, Any]:
    """The object with its own files, else with those of the code blocks."""
    own = fields.get("files")
    if own and isinstance(own, dict):
        return fields
    files = named_files(text)
    if "files" in fields and not files:
        return fields
    if not files and (code := lone_code(text)) is not None:
        language = fields.get("language")
        name = fields.get("main") or templates.default_main(str(language), context)
        files = {str(name): code}
    if not files:
        raise BadAnswer("no file was found: put each in a code block under a line `File: NAME`")
    return {**fields, "files": files}


def _bundle(fields: Mapping[str, Any], context: ProposalContext) -> Bundle:
    language = _text(fields, "language")
    if language not in context.hardware.languages:
        offered = ", ".join(context.hardware.languages)
        raise BadAnswer(f"language {language[:40]!r} is not offered; use {offered}")
    files = files_from(fields.get("files"))
    main = _text(fields, "main", next(iter(files)) if len(files) == 1 else None)
    _refuse_files(files, main, language, context)
    entry = _text(fields, "entry", templates.own_entry(language, main, context))
    source = files[main]
    if not _IDENTIFIER.fullmatch(entry) or entry not in source:
        raise BadAnswer(f"{main} does not define the entry {entry[:80]!r}")
    if main.endswith(".py"):
        _refuse_syntax(main, source)
    try:
        return Bundle(files, main, language, entry, _parameters(fields), "llm")
    except InvalidRequest as problem:
        raise BadAnswer(f"{problem.message}. {problem.hint}") from None


def files_from(files: Any) -> dict[str, str]:
    """The files of an answer, by name, with names and texts checked. Raises BadAnswer."""
    if (
        not isinstance(files, dict)
        or not files
        or not all(isinstance(t, str) for t in files.values())
    ):
        raise BadAnswer("`files` must be an object from file name to the text of the file")
    if len(files) > MAX_FILES:
        raise BadAnswer(f"{len(files)} files; at most {MAX_FILES} are allowed")
    for name, text in files.items():
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise BadAnswer(f"file name {name[:80]!r} is not allowed: plain names, no folders")
        if not text.strip():
            raise BadAnswer(f"{name} is empty")
        _refuse_hidden(text)
    return dict(files)


def _refuse_files(
    files: Mapping[str, str], main: str, language: str, context: ProposalContext
) -> None:
    """Raise BadAnswer for other files than one source and, in C-like languages, headers."""
    if main not in files:
        raise BadAnswer(f"`main` is {main[:80]!r}, which is none of the files")
    allowed = templates.main_suffixes(language, context)
    if allowed and not main.endswith(allowed):
        raise BadAnswer(f"{main} is no {language} file: use {' or '.join(allowed)}")
    headers = () if language in templates.PYTHON_LIKE else templates.HEADER_SUFFIXES
    for name in files:
        if name != main and PurePosixPath(name).suffix not in headers:
            raise BadAnswer(f"{name} was not asked for. {templates.rule(context)}")


def _refuse_syntax(name: str, source: str) -> None:
    try:
        ast.parse(source, name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise BadAnswer(f"{name} is not valid Python: {str(problem)[:200]}") from None


def _refuse_known(bundle: Bundle, context: ProposalContext) -> None:
    """Raise BadAnswer for the parent's bundle or one that was tried already."""
    for node in (context.parent, *context.tried):
        if node.proposal is not None and node.proposal.bundle.sha256 == bundle.sha256:
            raise BadAnswer(f"this is node {node.number} again, without a change")


def _refuse_hidden(text: str) -> None:
    """Raise BadAnswer for characters that files and databases refuse."""
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise BadAnswer("a text holds characters that are no text (NUL or lone surrogates)")


def _parameters(fields: Mapping[str, Any]) -> dict[str, Parameter]:
    parameters = fields.get("parameters") or {}
    if not isinstance(parameters, dict) or len(parameters) > MAX_PARAMETERS:
        raise BadAnswer(f"`parameters` must be an object of at most {MAX_PARAMETERS} values")
    for name, value in parameters.items():
        finite = not isinstance(value, float) or math.isfinite(value)
        if (
            not _IDENTIFIER.fullmatch(name)
            or not isinstance(value, int | float | str)
            or not finite
        ):
            raise BadAnswer(f"parameter {name[:40]!r} must be a number, a text or a boolean")
        _refuse_hidden(str(value))
    return parameters


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value.strip() and default is None):
        raise BadAnswer(f"`{name}` must be a text")
    _refuse_hidden(value)
    return value


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    value = fields.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadAnswer(f"`{name}` must be a list of texts")
    return value
