"""Tries statements of a language on a chip's toolchain, without a grammar of the language.

A host is a whole kernel that compiles. A statement is tried by inserting it as a line at a place of
the host where a copy of the neighbouring line compiles too. Messages of the compiler are compared
by their kind: the text without places, numbers, quoted words and words of the statement. Where
messages name lines, one compilation tries many statements.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

from kb.errors import KernloreError
from kb.hardware.spec import ToolchainSpec
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.hardware_check import random_inputs, signature_of
from optimizer.evaluation.toolchains.base import CompileCase, Compiled, EvaluationTarget
from optimizer.evaluation.toolchains.command import CommandRun, CommandToolchain

RUN_SECONDS = 20.0
NONSENSE = "zqxjv"
SHAPES: Sequence[tuple[int, ...]] = ((64, 64), (64,), (4, 64))  # of guessed arguments
MOST_INPUTS = 3
MOST_PLACES = 6  # of a host where insertions compile
_CODE = re.compile(r"\b[A-Z]{2,}[-_]?\d{2,6}\b")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\u2018[^\u2019]*\u2019")
MOST_TOGETHER = 64  # statements of one compilation
_PLACE = re.compile(r"^(\S*?):(\d+)(?::\d+)?:\s*")
_PAIRED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
_MEANT = re.compile(r"[;,.]? *did you mean\b.*", re.IGNORECASE)
# Lines after which a statement may be: with a word, and no directive or import of a file's head.
_STATEMENT = re.compile(r"(?!\s*(?:#|import\b|from\b)).*[^\W\d_]")
_MARKED = re.compile(r"\b(?:error|trap|fatal)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Tried:
    """The result of one compilation: `kind` of the first message ("" where it compiled), `codes` of
    all messages, and the log."""

    ok: bool
    kind: str = ""
    codes: tuple[str, ...] = ()
    log: str = ""

    @property
    def message(self) -> str:
        """The first line of the log that states an error."""
        return _first_message(self.log)

    def about(self, name: str) -> str:
        """The first error that has this name, "" if none has."""
        return next((line for line in _errors(self.log) if name in line), "")


@dataclass
class ProbedTool:
    """The toolchain of one language; results are cached by source."""

    language: str
    template: ToolchainSpec
    target: EvaluationTarget
    folder: Path
    compiled: int = 0
    _tried: dict[str, Tried] = field(default_factory=dict)
    _runs: dict[tuple[str, Signature], CommandRun] = field(default_factory=dict)

    @cached_property
    def chain(self) -> CommandToolchain:
        return CommandToolchain(self.language, self.template)

    def insert_all(self, host: Host, place: int, statements: Sequence[str]) -> dict[str, Tried]:
        """Try each statement as a line after the line `place`. A message is that of the statement
        whose line it names; statements without one are compiled again without the others, and in
        halves if no message names a line."""
        tried: dict[str, Tried] = {}
        closed = [s for s in dict.fromkeys(statements) if _is_closed(s)]
        groups = [closed[n : n + MOST_TOGETHER] for n in range(0, len(closed), MOST_TOGETHER)]
        groups += [[s] for s in dict.fromkeys(statements) if not _is_closed(s)]
        while groups:
            group = groups.pop()
            source = host.insert(place, group)
            whole = self.compile(source, group[0] if len(group) == 1 else "")
            if len(group) == 1 or whole.ok:
                tried |= dict.fromkeys(group, whole)
                continue
            by_line = self._messages(whole.log, place + 2)
            found = {s: by_line[n] for n, s in enumerate(group) if n in by_line}
            for statement, log in found.items():
                codes = tuple(dict.fromkeys(_CODE.findall(log)))
                tried[statement] = Tried(False, kind_of(log, statement), codes, log)
            left = [s for s in group if s not in found]
            middle = len(left) if found else len(left) // 2
            groups += [part for part in (left[:middle], left[middle:]) if part]
        return tried

    def _messages(self, log: str, first: int) -> dict[int, str]:
        """The errors of each line of the source, counted from line `first`."""
        found: dict[int, list[str]] = {}
        for line in _errors(log):
            place = _PLACE.match(line)
            if place and place[1].endswith(self._main):
                found.setdefault(int(place[2]) - first, []).append(line)
        return {number: "\n".join(lines) for number, lines in found.items()}

    @property
    def _main(self) -> str:
        return "sample" + (self.template.suffix or ".txt")

    def _compile(self, source: str, signature: Signature) -> tuple[Compiled, Path]:
        entry = self.template.called
        bundle = Bundle({self._main: source}, self._main, self.language, entry)
        folder = Path(tempfile.mkdtemp(prefix="try-", dir=self.folder))
        self.compiled += 1
        return self.chain.compile(bundle, self.target, folder, (CompileCase(signature),)), folder

    def compile(self, source: str, words: str = "") -> Tried:
        """Compile a whole source. `words` is the statement whose words messages may repeat."""
        if source not in self._tried:
            built, _ = self._compile(source, interface_of(self.template))
            codes = tuple(dict.fromkeys(_CODE.findall(built.log))) if not built.ok else ()
            kind = "" if built.ok else kind_of(built.log, words)
            self._tried[source] = Tried(built.ok, kind, codes, "" if built.ok else built.log)
        return self._tried[source]

    def run(self, source: str, signature: Signature) -> CommandRun:
        """Compile and run on random arrays; equal calls run once."""
        key = (source, signature)
        if key not in self._runs:
            built, folder = self._compile(source, signature)
            if not built.ok:
                return CommandRun("crashed", _first_message(built.log), log=built.log)
            inputs = random_inputs(signature)
            try:
                self._runs[key] = self.chain.run(built, inputs, signature, folder, RUN_SECONDS)
            except KernloreError as problem:
                return CommandRun("crashed", f"{problem.message}. {problem.hint}")
        return self._runs[key]


def interface_of(template: ToolchainSpec) -> Signature:
    """The interface of the sample, or of one input and one output by default."""
    arguments = template.sample_arguments
    return signature_of(arguments) if arguments else guessed(1, SHAPES[0])


def guessed(inputs: int, shape: tuple[int, ...]) -> Signature:
    """So many float32 inputs of one shape, and an output of the same."""
    names = [f"x{n}" for n in range(inputs)]
    tensors = [TensorSpec(name, "input", "float32", shape) for name in names]
    return Signature((*tensors, TensorSpec("y", "output", "float32", shape)))


def _is_closed(statement: str) -> bool:
    """Whether its brackets, quotes and comments end within it, so that it changes no other line."""
    plain = _PAIRED.sub("", statement)
    depths = [0]
    for sign in plain:
        depths.append(depths[-1] + (sign in "([{") - (sign in ")]}"))
    opened = any(mark in plain for mark in ('"', "'", "/*", "\n"))
    return min(depths) == 0 == depths[-1] and not opened and plain[:1] != "#" and plain[-1:] != "\\"


def kind_of(log: str, words: str) -> str:
    """The kind of the first message: its code, if it has one, and its text without places, numbers,
    quoted words and the words of the statement."""
    text = _first_message(log)
    code = _CODE.search(text)
    text = _MEANT.sub("", text)
    text = _QUOTED.sub("?", _PLACE.sub("", text))
    text = re.sub(r":[^:]*$", "", text) if code else text  # details follow the last colon
    own = {word for word in re.split(r"[^\w.]+", words) if len(word) > 1}
    kept = [word for word in re.findall(r"[^\W\d_][\w.-]*", text) if word not in own]
    return f"{code[0] if code else ''} {' '.join(kept)}".strip().lower()


def _first_message(log: str) -> str:
    return next(_errors(log), next(filter(None, map(str.strip, log.splitlines())), ""))


def _errors(log: str) -> Iterator[str]:
    lines = (line.strip() for line in log.splitlines())
    return (line for line in lines if _CODE.search(line) or _MARKED.search(line))


@dataclass(frozen=True)
class Host:
    """A kernel that compiles: its lines, the indices after which statements may be inserted, and
    where it runs, the arrays that it was run with."""

    title: str
    lines: tuple[str, ...]
    places: tuple[int, ...]
    signature: Signature | None = None

    def insert(self, place: int, statements: Sequence[str]) -> str:
        """The source with these lines after the line `place`, indented like it; -1: first."""
        line = self.lines[place] if place >= 0 else ""
        indent = line[: len(line) - len(line.lstrip())]
        added = [indent + statement for statement in statements]
        return "\n".join([*self.lines[: place + 1], *added, *self.lines[place + 1 :]]) + "\n"

    def replace(self, place: int, statement: str) -> str:
        """The source with this line in place of the line `place`, indented like it."""
        line = self.lines[place]
        indent = line[: len(line) - len(line.lstrip())]
        return "\n".join([*self.lines[:place], indent + statement, *self.lines[place + 1 :]]) + "\n"

    def statement(self, place: int) -> str:
        """The line at a place, without indent."""
        return self.lines[place].strip()


def host_of(tool: ProbedTool, title: str, code: str) -> Host | None:
    """The host of a kernel, or None where it does not compile."""
    source = code.strip("\n") + "\n"
    if not tool.compile(source).ok:
        return None
    lines = tuple(source.rstrip("\n").split("\n"))
    named = (n for n, line in enumerate(lines) if _STATEMENT.match(line))
    bare = Host(title, lines, ())
    inserted = (n for n in named if tool.compile(bare.insert(n, [bare.statement(n)])).ok)
    return Host(title, lines, tuple(islice(inserted, MOST_PLACES)), _runs_with(tool, source))


def _runs_with(tool: ProbedTool, source: str) -> Signature | None:
    for signature in _signatures(tool.template):
        if tool.run(source, signature).ok:
            return signature
    return None


def _signatures(template: ToolchainSpec) -> Iterator[Signature]:
    if template.sample_arguments:
        yield interface_of(template)
    for shape in SHAPES:
        for inputs in range(1, MOST_INPUTS + 1):
            yield guessed(inputs, shape)


def cost_of_run(ran: CommandRun) -> float | None:
    """The count or the cycles of a run that ended well."""
    if not ran.ok:
        return None
    return ran.count if ran.count is not None else ran.cycles
