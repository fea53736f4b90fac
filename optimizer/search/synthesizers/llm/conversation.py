"""The synthesizer that asks language models, and its conversations: prompt, tool calls, answer, and
the repair of an unusable answer.

Each attempt at a candidate is stored as a transcript, from which a run can be replayed without a
model. Tool calls are bounded in number and length; their results are fenced like any other text.
"""

from __future__ import annotations

import ast
import json
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from kb.candidate_abi import HEADER_NAME
from kb.data_dir import private_folder
from kb.errors import InvalidRequest, KernloreError, StoreError
from kb.plain import from_json
from optimizer.evaluation.bundle import MANIFEST, Bundle, Parameter
from optimizer.search.knowledge import ShownExcerpt
from optimizer.search.records import Cost, Proposal
from optimizer.search.synthesizers.base import (
    ModelCall,
    ProposalContext,
    ProposalFailed,
    Unreachable,
)
from optimizer.search.synthesizers.llm import templates
from optimizer.search.synthesizers.llm.client import (
    CallAbandoned,
    CallFailed,
    ChatReply,
    ContextOverflow,
    LitellmClient,
    Message,
    ModelClient,
    NoAnswer,
    RateLimit,
    ToolCall,
    load,
    reply_as_json,
    reply_from_json,
    total,
)
from optimizer.search.synthesizers.llm.prompt import ModelPrompt, compose
from optimizer.search.synthesizers.llm.settings import LlmSettings, Redaction, drawn
from optimizer.search.synthesizers.llm.templates import VERSION, Fence, data, rendered, rule

# -- answers
#
# A JSON object and files in code blocks become a bundle. Surrounding text is tolerated, but
# object and files are checked strictly; nothing is repaired or guessed.

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
    plan = _answer_text(fields, "plan", "")[:MAX_PLAN]
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
    language = _answer_text(fields, "language")
    if language not in context.hardware.languages:
        offered = ", ".join(context.hardware.languages)
        raise BadAnswer(f"language {language[:40]!r} is not offered; use {offered}")
    files = files_from(fields.get("files"))
    main = _answer_text(fields, "main", next(iter(files)) if len(files) == 1 else None)
    _refuse_files(files, main, language, context)
    entry = _answer_text(fields, "entry", templates.own_entry(language, main, context))
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


def _answer_text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
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


# -- conversations

_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,120}")
MAX_CALLS = 8  # of one answer, that are run
MOST_CALLS = 64  # of one answer, that are stored
NOT_ANSWERED = f"not run: only the first {MAX_CALLS} calls of an answer are; ask again if needed"
MAX_RESULT = 6_000  # characters
MAX_QUERY = 400
MAX_QUOTED = 60_000  # characters of an answer that is sent back to the model
UNPRICED = "the price of this model is not in litellm's list: usd is unknown, not 0"
# Returns remarks on a candidate's source, or "".
DraftCheck = Callable[[str], str]


@dataclass
class ModelTranscript:
    """A stored conversation: one attempt at a candidate.

    `attempt` counts the attempts at this step; a failed attempt has a transcript but no node.
    `prompt` is the version of the templates. `replies` are the replies and failures in order, for a
    replay. `note` is a remark for the reader, for example that the price is unknown.
    """

    run: str
    step: int
    attempt: int
    model: str
    prompt: str
    messages: list[Message] = field(default_factory=list)
    replies: list[ChatReply | CallFailed] = field(default_factory=list)
    left_out: str = ""
    outcome: str = ""
    note: str = ""

    @property
    def id(self) -> str:
        """`RUN/STEP-ATTEMPT`, which a proposal refers to."""
        return f"{self.run}/{self.step}-{self.attempt}"

    def as_json(self) -> dict[str, Any]:
        """The content of the stored file."""
        plain = {n: getattr(self, n) for n in self.__dataclass_fields__ if n != "replies"}
        return {**plain, "replies": [reply_as_json(reply) for reply in self.replies]}


def transcript_from_json(row: Mapping[str, Any]) -> ModelTranscript:
    """Inverse of `ModelTranscript.as_json`."""
    replies = row["replies"] if "replies" in row else row["heard"]  # of versions up to 0.1
    return from_json(ModelTranscript, {**row, "replies": list(map(reply_from_json, replies))})


class FolderTranscripts:
    """Transcripts in files `RUN/STEP-ATTEMPT.json` of a folder, written atomically."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, transcript: ModelTranscript) -> None:
        """Store a transcript. Raises OSError."""
        path = self._path(transcript.run, transcript.step, transcript.attempt)
        private_folder(path.parent)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(transcript.as_json(), indent=1), encoding="utf-8")
        part.replace(path)

    def read(self, run: str, step: int, attempt: int) -> ModelTranscript | None:
        """A stored transcript, if any. Raises StoreError for a broken file."""
        path = self._path(run, step, attempt)
        if not path.is_file():
            return None
        try:
            return transcript_from_json(json.loads(path.read_text(encoding="utf-8")))
        except (json.JSONDecodeError, KeyError, TypeError) as problem:
            raise StoreError(
                f"{path} is no transcript: {problem!r}",
                hint="Delete it or restore it from a backup; the run cannot be replayed without.",
            ) from problem

    def attempts(self, run: str, step: int) -> int:
        """Number of stored attempts at a step."""
        folder = self._path(run, step, 0).parent
        return sum(1 for _ in folder.glob(f"{step}-*.json")) if folder.is_dir() else 0

    def _path(self, run: str, step: int, attempt: int) -> Path:
        if not _PART.fullmatch(run):
            raise InvalidRequest(
                f"{run!r} cannot name a folder of transcripts",
                hint="Give the run an id of letters, digits, `_`, `-` and `.`.",
            )
        return self._folder / run / f"{step}-{attempt}.json"


class ReplayClient:
    """Returns the replies of a stored transcript in order. Prompts are not compared, since their
    random boundaries differ."""

    def __init__(self, transcript: ModelTranscript) -> None:
        self._stored_replies = list(transcript.replies)
        self._id = transcript.id
        self._tools_ran = any(message["role"] == "tool" for message in transcript.messages)

    def ask(self, messages: Sequence[Message], tools: Sequence[Any]) -> ChatReply:
        """The next stored reply; skips calls of tools if no tools are offered now. Raises the
        stored failure, or CallFailed at the end."""
        while self._stored_replies:
            reply = self._stored_replies.pop(0)
            if isinstance(reply, CallFailed):
                raise reply
            if tools or not reply.tool_calls or not self._tools_ran:
                return reply
        raise CallFailed(f"the stored transcript {self._id} ends before this question")

    def remark(self, source: str) -> str:
        """The remark of the stored check: whether the conversation continued after an answer."""
        return "The stored conversation goes on." if self._stored_replies else ""


def redacted(transcript: ModelTranscript, clean: Any) -> ModelTranscript:
    """A copy with `clean` applied to every text."""
    return transcript_from_json(_each_text(transcript.as_json(), clean))


def _each_text(value: Any, clean: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _each_text(item, clean) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(item, clean) for item in value]
    return value


class Tools(Protocol):
    """Tools that a model may call. Each raises KernloreError, whose message the model gets."""

    def lookup_symbol(self, name: str) -> Sequence[ShownExcerpt]:
        """The cards that fit a name or a few words."""
        ...

    def search_manual(self, query: str) -> Sequence[ShownExcerpt]:
        """Excerpts of the manuals that answer the query."""
        ...

    def read_section(self, id: str) -> ShownExcerpt:
        """The whole section of an excerpt."""
        ...

    def compile_draft(self, step: int, files: Mapping[str, str]) -> str:
        """The compiler's messages for a draft of candidate `step`."""
        ...


def offered() -> Sequence[Any]:
    """The descriptions of the tools for the providers' chat interface."""
    return list(data("tools.json"))


class ToolBench:
    """Runs the tool calls of one conversation; `shown` collects the ids in their results."""

    def __init__(self, tools: Tools, fence: Fence, step: int) -> None:
        self._fence = fence
        self.shown: set[str] = set()
        self._run: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
            "lookup_symbol": lambda arguments: self._excerpts(
                tools.lookup_symbol(_answer_text(arguments, "name")[:MAX_QUERY])
            ),
            "search_manual": lambda arguments: self._excerpts(
                tools.search_manual(_answer_text(arguments, "query")[:MAX_QUERY])
            ),
            "read_section": lambda arguments: self._excerpts(
                [tools.read_section(_answer_text(arguments, "id"))]
            ),
            "compile_draft": lambda arguments: (
                tools.compile_draft(step, files_from(arguments.get("files"))) or "It compiles."
            ),
        }

    def result(self, call: ToolCall) -> str:
        """The fenced result of a call, or the reason of its failure."""
        run = self._run.get(call.name)
        if run is None:
            return f"There is no such tool. The tools are {', '.join(self._run)}."
        try:
            arguments = json.loads(call.arguments or "{}")
            if not isinstance(arguments, dict):
                raise BadAnswer("the arguments must be an object")
            text = run(arguments)
        except (json.JSONDecodeError, RecursionError, BadAnswer, KernloreError) as problem:
            text = f"failed: {problem}"
        return self._fence.around("tool-result", text[:MAX_RESULT])

    def _excerpts(self, excerpts: Sequence[ShownExcerpt]) -> str:
        self.shown |= {excerpt.id for excerpt in excerpts}
        parts = [f"id: {e.id}\nfrom: {e.title} {e.citation}\n{e.text}" for e in excerpts]
        return "\n\n".join(parts) or "Nothing was found."


class Conversation:
    """One conversation with a model. Every message is added to `record`."""

    def __init__(
        self,
        context: ProposalContext,
        settings: LlmSettings,
        asker: ModelClient,
        record: ModelTranscript,
        tools: Tools | None,
        fence: Fence,
        check: DraftCheck | None = None,
    ) -> None:
        """`check` is called with a candidate before it is compiled; its remark is sent to the model
        once."""
        self._check = check
        self._context, self._settings = context, settings
        self._asker, self._record = asker, record
        self._fence = fence
        self._bench = ToolBench(tools, self._fence, context.step) if tools is not None else None
        self._rounds = 0
        self._shrunk = False
        self._prompt = self._composed(context.max_tokens)
        record.messages += self._opening()

    def answer(self) -> CheckedAnswer:
        """Talk to the model and return its candidate. Raises ProposalFailed."""
        for left in range(self._settings.repair_rounds, -1, -1):
            reply = self._reply()
            try:
                return self._checked(self._parsed(reply), reply)
            except BadAnswer as problem:
                if not left:
                    raise ProposalFailed(f"{self._record.model}: {problem}") from None
                self._ask_again(reply, problem)
        raise AssertionError("the last round returns or raises")

    def _checked(self, answer: CheckedAnswer, reply: ChatReply) -> CheckedAnswer:
        """The answer, or the model's second one after a remark of the check, if that is usable."""
        remark = self._check(answer.bundle.source) if self._check is not None else ""
        if not remark:
            return answer
        self._check = None
        values = {"remark": self._fence.around("check", remark)}
        self._record.messages += [
            {"role": "assistant", "content": reply.content[:MAX_QUOTED]},
            {"role": "user", "content": rendered("check.md", values)},
        ]
        try:
            return self._parsed(self._reply())
        except (BadAnswer, ProposalFailed):
            return answer

    @property
    def alternatives(self) -> tuple[int, ...]:
        """The numbers of further correct kernels that the model may start from."""
        return self._prompt.alternatives

    def _composed(self, budget: int) -> ModelPrompt:
        prompt = compose(self._context, self._fence, budget=budget, tools=self._bench is not None)
        self._record.left_out = prompt.left_out
        return prompt

    def _opening(self) -> list[dict[str, object]]:
        return [
            {"role": "system", "content": self._prompt.system},
            {"role": "user", "content": self._prompt.user},
        ]

    def _reply(self) -> ChatReply:
        """The first reply without tool calls, or with calls although no tools are offered."""
        while True:
            reply = self._ask()
            if not reply.tool_calls or self._bench is None:
                return reply
            self._rounds += 1
            if self._rounds > self._settings.tool_rounds:
                raise ProposalFailed(
                    f"{self._record.model}: still calling tools after"
                    f" {self._settings.tool_rounds} rounds"
                )
            self._run_tools(reply, self._bench)

    def _ask(self) -> ChatReply:
        try:
            return self._recorded_reply()
        except ContextOverflow as problem:
            if self._shrunk:
                raise ProposalFailed(f"{problem}; also with the shortest prompt") from None
        except NoAnswer as problem:
            raise Unreachable(str(problem)) from None
        except CallFailed as problem:
            raise ProposalFailed(str(problem)) from None
        self._shrunk = True
        self._prompt = self._composed(0)
        self._record.messages[:2] = self._opening()
        return self._ask()

    def _recorded_reply(self) -> ChatReply:
        try:
            reply = self._asker.ask(self._record.messages, offered() if self._bench else ())
        except CallFailed as problem:
            self._record.replies.append(problem)
            raise
        self._record.replies.append(reply)
        return reply

    def _run_tools(self, reply: ChatReply, bench: ToolBench) -> None:
        calls = reply.tool_calls[:MOST_CALLS]
        rows = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in calls
        ]
        self._record.messages.append(
            {"role": "assistant", "content": reply.content, "tool_calls": rows}
        )
        self._record.messages += [
            {
                "role": "tool",
                "tool_call_id": c.id,
                "content": bench.result(c) if place < MAX_CALLS else NOT_ANSWERED,
            }
            for place, c in enumerate(calls)
        ]

    def _parsed(self, reply: ChatReply) -> CheckedAnswer:
        if reply.tool_calls and self._bench is None:
            names = ", ".join(sorted({call.name for call in reply.tool_calls}))[:100]
            raise BadAnswer(f"tools were called that were not offered: {names}")
        found = self._bench.shown if self._bench is not None else set()
        try:
            return answer_from(reply.content, self._context, self._prompt.shown | found)
        except BadAnswer as problem:
            if reply.finish == "length":
                limit = self._settings.max_output_tokens
                raise BadAnswer(f"{problem} (it was cut off at {limit} tokens)") from None
            raise

    def _ask_again(self, reply: ChatReply, problem: BadAnswer) -> None:
        values = {"error": self._fence.around("error", str(problem)), "files": rule(self._context)}
        self._record.messages += [
            {"role": "assistant", "content": reply.content[:MAX_QUOTED] or "(nothing)"},
            {"role": "user", "content": rendered("repair.md", values)},
        ]


class LlmSynthesizer:
    """Proposes the answers of language models. Never exhausted, so it never returns None.

    `replay` is the id of a run whose stored transcripts answer instead of models; then no model is
    called and nothing is stored. Every other attempt is stored as a transcript. The cost of failed
    attempts is added to the next proposal, so that a budget includes it.

    Raises Unavailable without litellm, and OSError if a transcript cannot be stored.
    """

    name = "llm"
    first_tries = 1

    def __init__(
        self,
        settings: LlmSettings,
        transcripts: FolderTranscripts,
        *,
        tools: Tools | None = None,
        check: DraftCheck | None = None,
        replay: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        asking: Callable[[ModelCall], None] | None = None,
        cancelled: Callable[[str], bool] = lambda run: False,
    ) -> None:
        """`asking` is called every second during a call, and so is `cancelled` with the id of the
        run, which ends the call if true."""
        if settings.tools and tools is None:
            raise InvalidRequest(
                "tools are switched on and none are given", hint="Give Tools, or switch them off."
            )
        if replay is None:
            load()
        self._settings, self._transcripts, self._replay = settings, transcripts, replay
        self.context_tokens, self.reader = settings.context_tokens, settings.reader
        self._tools = tools if settings.tools else None
        self._check = check
        self._sleep, self._clock = sleep, clock
        self._asking, self._cancelled = asking, cancelled
        self._limit = RateLimit(settings.requests_per_minute, clock, sleep)
        self._redact = Redaction(settings.api_key)
        self._replayed: Counter[int] = Counter()  # attempts by step
        self._owed = Cost()
        # One fence for all prompts, so that providers can cache equal beginnings.
        self._fence = Fence()

    def propose(self, context: ProposalContext) -> Proposal:
        """The candidate in the model's answer. Raises ProposalFailed for any error of a model or
        its provider."""
        record, asker = self._opened(context)
        began = self._clock()
        try:
            # A replay repeats the stored remark, not today's.
            check = asker.remark if isinstance(asker, ReplayClient) else self._check
            talk = Conversation(
                context, self._settings, asker, record, self._tools, self._fence, check
            )
            answer = talk.answer()
        except ProposalFailed as problem:
            record.outcome = f"failed: {self._redact.error(str(problem))}"
            self._owed = self._spent(record, began)
            raise type(problem)(self._redact.error(str(problem))) from None
        else:
            record.outcome = "proposal"
            cost, self._owed = self._spent(record, began), Cost()
        finally:
            self._store(record)
        return Proposal(
            bundle=answer.bundle,
            synthesizer=self.name,
            parent=context.parent.number,
            plan=self._redact.known(answer.plan),
            claimed=answer.claimed,
            cost=cost,
            model=record.model,
            transcript=record.id,
            alternatives=talk.alternatives,
        )

    def _opened(self, context: ProposalContext) -> tuple[ModelTranscript, ModelClient]:
        if self._replay is not None:
            return self._replayed_from(context, self._replay)
        run, step = context.run_id, context.step
        attempt = self._transcripts.attempts(run, step)
        model = drawn(self._settings.models, context.seed, step, attempt)
        chance = random.Random(f"{context.seed}:{step}:{attempt}:retry")
        asker = LitellmClient(
            model,
            self._settings,
            self._limit,
            self._redact,
            chance,
            self._sleep,
            lambda seconds: self._waited(run, model, step, seconds),
        )
        return ModelTranscript(run, step, attempt, model, VERSION), asker

    def _waited(self, run: str, model: str, step: int, seconds: float) -> None:
        if self._cancelled(run):
            raise CallAbandoned("the run was cancelled during a call of a model")
        if self._asking is not None:
            self._asking(ModelCall(model, step, seconds, self._settings.timeout_s))

    def _replayed_from(
        self, context: ProposalContext, run: str
    ) -> tuple[ModelTranscript, ModelClient]:
        step = context.step
        attempt = self._replayed[step]
        self._replayed[step] += 1
        stored = self._transcripts.read(run, step, attempt)
        if stored is None:
            raise ProposalFailed(f"no transcript {run}/{step}-{attempt} is stored to replay")
        return ModelTranscript(run, step, attempt, stored.model, stored.prompt), ReplayClient(
            stored
        )

    def _spent(self, record: ModelTranscript, began: float) -> Cost:
        replies = [one for one in record.replies if isinstance(one, ChatReply)]
        return total(replies, self._clock() - began, self._owed)

    def _store(self, record: ModelTranscript) -> None:
        if self._replay is not None:
            return
        if any(isinstance(one, ChatReply) and one.usd is None for one in record.replies):
            record.note = UNPRICED
        self._transcripts.write(redacted(record, self._redact.known))
