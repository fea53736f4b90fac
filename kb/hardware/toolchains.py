"""Reads the `[toolchains.LANGUAGE]` tables of a hardware.toml.

A language has a built-in toolchain by name, or command templates, which are split into words like
in a POSIX shell and run without one. Placeholders: compile {source} {output}, run {output} or
{source}, and {input}, profile the same and {report}; anywhere {workdir} {arch} {hardware} {entry}
{examples}. `{{` and `}}` are literal braces. {input} is the JSON manifest of the .npy files to read
and to write, {report} the output of the profiler, {arch} the fact compute_capability, {examples}
the folder of the examples that come with Kernlore. Values of `env` may contain {workdir}, {arch},
{hardware} and {examples}.
"""

from __future__ import annotations

import ast
import re
import shlex
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import cast

from kb.errors import InvalidPredicate
from kb.hardware.spec import (
    COST_KINDS,
    SAMPLE_ROLES,
    TIMINGS,
    CostKind,
    SampleArgument,
    SampleRole,
    ScalarSpec,
    Timing,
    ToolchainSpec,
)
from kb.hardware.table_reader import TableReader, names_of
from kb.predicates import Bindings, CompiledExpression, Computed, compile_expression

MAX_COMMAND = 2000  # characters
_ANYWHERE = frozenset({"workdir", "arch", "hardware", "entry", "examples"})
_PLACEHOLDERS = {
    "compile": _ANYWHERE | {"source", "output"},
    "run": _ANYWHERE | {"source", "output", "input"},
    "profile": _ANYWHERE | {"source", "output", "input", "report"},
    "env": frozenset({"workdir", "arch", "hardware", "examples"}),
}
_REQUIRED = {"compile": ("source", "output"), "run": ("input",), "profile": ("input", "report")}

MAX_INTERFACE = 8_000
MAX_SAMPLE = 20_000
MAX_SAMPLE_ELEMENTS = 1 << 24  # of one tensor
MAX_ARGUMENTS = 64
MAX_SCALARS = 64
MAX_SCALAR = 300  # characters
# Element types of the interface of programs.
FLOATS = ("float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOATS, "bool", "int8", "uint8", "int16", "int32", "int64")
_COMMAND_KEYS = (
    "entry",
    "interface",
    "sample",
    "arguments",
    "scalars",
    "cost",
    "programs",
    "install",
)
# Patterns of argument names: for each of several tensors of a role, and for its only one.
_ARGUMENT_KEYS = (
    "input", "weight", "output", "single_input", "single_weight", "single_output",
)  # fmt: skip
_IN_PATTERNS = ("index", "number", "name")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SCALAR_HINT = (
    "Write arithmetic over x.shape[0], input[0].shape[1], weight[0].elements, output[0].ndim and"
    " constants of the reference such as eps; + - * / // %, min max abs ceil floor log2 sqrt."
)


def read_toolchains(root: TableReader, languages: tuple[str, ...]) -> Mapping[str, ToolchainSpec]:
    """The table `toolchains` of a file; problems are added to the reader."""
    table = root.table("toolchains")
    toolchains = {}
    for language in table.raw:
        if languages and language not in languages:
            table.add(language, "language not in `languages`", f'add "{language}" to languages')
        toolchains[str(language)] = _toolchain(table.table(language))
    return MappingProxyType(toolchains)


def _toolchain(reader: TableReader) -> ToolchainSpec:
    reader.only(names_of(ToolchainSpec))
    builtin = reader.text("builtin", limit=64)
    commands = {step: _command(reader, step) for step in _REQUIRED}
    if builtin and any(commands.values()):
        reader.add(
            "builtin", "set together with command templates", "keep either builtin or the templates"
        )
    if not builtin and not commands["run"]:
        reader.add("run", "missing", "give builtin = ..., or at least a run template")
    suffix = reader.text("suffix", limit=16)
    if suffix and not re.fullmatch(r"\.[A-Za-z0-9_.]+", suffix):
        reader.add("suffix", f"{suffix!r} is not a file suffix", "like .cu")
    timing = cast(Timing, reader.choice("timing", TIMINGS, "wall"))
    cost = cast(CostKind, reader.choice("cost", COST_KINDS, "cycles"))
    if cost != "cycles" and timing != "simulator":
        reader.add("cost", f"{cost} without a simulator", 'add timing = "simulator"')
    for key in _COMMAND_KEYS if builtin else ():
        if key in reader.raw:
            fix = "omit it: a built-in toolchain defines its interface"
            reader.add(key, "belongs to command templates", fix)
    sample, sample_arguments, sample_reference = _sample(reader)
    return ToolchainSpec(
        builtin=builtin,
        timing=timing,
        cost=cost,
        programs=reader.texts("programs"),
        install=reader.text("install", limit=MAX_COMMAND),
        suffix=suffix,
        env=_environment(reader),
        entry=_entry(reader),
        interface=reader.text("interface", limit=MAX_INTERFACE),
        arguments=_argument_patterns(reader),
        scalars=_scalars(reader),
        sample=sample,
        sample_arguments=sample_arguments,
        sample_reference=sample_reference,
        **commands,
    )


def _command(reader: TableReader, step: str) -> str:
    command = reader.text(step, limit=MAX_COMMAND)
    if not command:
        return ""
    used = _placeholders(reader, step, command, _PLACEHOLDERS[step])
    for needed in _REQUIRED[step]:
        if used is not None and needed not in used:
            reader.add(step, f"does not use {{{needed}}}", f"put {{{needed}}} where it belongs")
    if used is not None and step != "compile" and not used & {"source", "output"}:
        reader.add(step, "runs nothing of the candidate", "use {output}, or {source} if uncompiled")
    try:
        words = shlex.split(command)
    except ValueError as error:
        reader.add(step, f"cannot be split into words: {error}", "close the quotes")
        return command
    if "\n" in command or {"|", "&&", "||", ";", ">", "<", "&"} & set(words):
        fix = "call one program; put several steps into a script"
        reader.add(step, "runs without a shell: no pipes, redirections or second lines", fix)
    return command


def _environment(reader: TableReader) -> Mapping[str, str]:
    table = reader.table("env")
    env = {}
    for name in table.raw:
        value = table.text(name, limit=MAX_COMMAND)
        if not _IDENTIFIER.fullmatch(name):
            table.add(name, "not a name of an environment variable", "letters, digits and _")
        _placeholders(table, name, value, _PLACEHOLDERS["env"])
        env[name] = value
    return MappingProxyType(env)


def _placeholders(
    reader: TableReader, key: str, template: str, allowed: frozenset[str]
) -> set[str] | None:
    """The placeholders of a template; None, with a problem, if it is malformed."""
    listed = " ".join(f"{{{name}}}" for name in sorted(allowed))
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        reader.add(key, f"broken placeholder: {error}", "write {{ and }} for literal braces")
        return None
    used = {name for _, name, _, _ in parts if name is not None}
    plain = all(not spec and conversion is None for _, _, spec, conversion in parts)
    if unknown := sorted(used - allowed):
        reader.add(key, f"unknown placeholder {{{unknown[0]}}}", f"allowed here: {listed}")
        return None
    if not plain:
        reader.add(key, "a placeholder with a format", "write the bare name, as in {source}")
    return used


def _entry(reader: TableReader) -> str:
    entry = reader.text("entry", limit=64)
    if entry and not _IDENTIFIER.fullmatch(entry):
        reader.add("entry", f"{entry!r} is not a name of a function", 'like entry = "main"')
    return entry


def _argument_patterns(reader: TableReader) -> Mapping[str, str]:
    table = reader.table("arguments")
    table.only(_ARGUMENT_KEYS)
    patterns = {
        key: table.text(key, required=True, limit=64) for key in _ARGUMENT_KEYS if key in table.raw
    }
    if "arguments" in reader.raw and not patterns and not table.raw:
        reader.add("arguments", "empty", 'write input = "in{index}" and output = "out{index}"')
    for key, pattern in patterns.items():
        used = _placeholders(table, key, pattern, frozenset(_IN_PATTERNS))
        if used is None or not pattern.strip():
            continue
        if not _IDENTIFIER.fullmatch(argument_name(pattern, 0, "x")):
            table.add(key, f"{pattern!r} gives no plain names", 'like "in{index}"')
        elif not used and not key.startswith("single_"):
            fix = f'write {key} = "{pattern}{{index}}", and single_{key} for the only one'
            table.add(key, f"names every {key} {pattern!r}", fix)
    _check_distinct(table, patterns)
    return MappingProxyType(patterns)


def _check_distinct(table: TableReader, patterns: Mapping[str, str]) -> None:
    """Add a problem for patterns of two roles that give the same name."""
    seen: dict[str, str] = {}
    for key, pattern in patterns.items():
        role = key.removeprefix("single_")
        other = seen.setdefault(pattern, role)
        if other != role and "{name}" not in pattern:
            table.add(key, f"{pattern!r} is the name of an {other} too", "use another name")


def argument_name(pattern: str, index: int, name: str) -> str:
    """The name by a pattern of the tensor `name`, the `index`-th of its role (from 0)."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return pattern.format(index=index, number=index + 1, name=plain)


def _scalars(reader: TableReader) -> Mapping[str, ScalarSpec]:
    table = reader.table("scalars")
    if len(table.raw) > MAX_SCALARS:
        reader.add("scalars", f"{len(table.raw)} entries", f"at most {MAX_SCALARS}")
    scalars = {}
    for name in table.raw:
        if not _IDENTIFIER.fullmatch(name):
            table.add(name, "not a plain name", "letters, digits and _, like inverse_columns")
        scalars[name] = _scalar(table, name)
    return MappingProxyType(scalars)


def _scalar(table: TableReader, name: str) -> ScalarSpec:
    value, optional = table.raw[name], False
    place, key = table, name
    if isinstance(value, Mapping):
        place, key = table.table(name), "value"
        place.only(names_of(ScalarSpec))
        optional = place.flag("optional")
    text = place.text(key, required=True, limit=MAX_SCALAR)
    if text.strip():
        try:
            compile_scalar(text)
        except InvalidPredicate as problem:
            place.add(key, problem.message, problem.hint)
    return ScalarSpec(text, optional)


def _sample(reader: TableReader) -> tuple[str, tuple[SampleArgument, ...], str]:
    """The source of the sample, its arguments, and its reference expression."""
    sample = reader.text("sample", limit=MAX_SAMPLE)
    arguments = tuple(_sample_argument(row) for row in reader.tables("sample_arguments"))
    reference = reader.text("sample_reference", limit=1_000)
    if (arguments or reference) and not sample.strip():
        fix = 'write sample = """...""" with the text of a kernel, or leave them out'
        reader.add("sample", "required with sample_arguments or sample_reference", fix)
    if reference and not arguments:
        fix = 'list them: [{name = "x", role = "input", dtype = "float32", shape = [64, 64]}, ...]'
        reader.add("sample_arguments", "required with sample_reference", fix)
    _check_roles(reader, arguments)
    if reference:
        _check_reference(reader, reference, arguments)
    return sample, arguments, reference


def _sample_argument(row: TableReader) -> SampleArgument:
    row.only(names_of(SampleArgument))
    name = row.text("name", required=True, limit=64)
    if name and not _IDENTIFIER.fullmatch(name):
        row.add("name", f"{name!r} is not a plain name", 'like "x"')
    dtype = row.text("dtype", limit=20) or "float32"
    if dtype not in DTYPES:
        row.add("dtype", f"{dtype!r} is not known", f"one of {', '.join(DTYPES)}")
    shape = row.raw.get("shape")
    sizes = shape if isinstance(shape, list | tuple) else [0]
    elements = 1
    for size in sizes:
        whole = (
            isinstance(size, int) and not isinstance(size, bool) and 0 < size <= MAX_SAMPLE_ELEMENTS
        )
        elements *= size if whole else 0
    if not 0 < elements <= MAX_SAMPLE_ELEMENTS:
        fix = f"shape = [64, 64]: whole numbers, at most {MAX_SAMPLE_ELEMENTS:,} elements in all"
        row.add("shape", "missing, or not a list of sizes", fix)
        sizes = [1]
    role = cast(SampleRole, row.choice("role", SAMPLE_ROLES, "input"))
    return SampleArgument(name, role, dtype, tuple(sizes))


def _check_roles(reader: TableReader, arguments: tuple[SampleArgument, ...]) -> None:
    if not arguments:
        return
    if len(arguments) > MAX_ARGUMENTS:
        reader.add("sample_arguments", f"{len(arguments)} entries", f"at most {MAX_ARGUMENTS}")
    names = [argument.name for argument in arguments]
    if len({*names}) < len(names):
        reader.add("sample_arguments", "duplicate names", "give each argument another name")
    if not any(argument.role == "output" for argument in arguments):
        fix = 'add {name = "out", role = "output", dtype = "float32", shape = [...]}'
        reader.add("sample_arguments", "no output", fix)
    order = [SAMPLE_ROLES.index(argument.role) for argument in arguments]
    if order != sorted(order):
        fix = "list inputs, then weights, then outputs, as the manifest does"
        reader.add("sample_arguments", "not in the order of the interface", fix)


def _check_reference(reader: TableReader, text: str, arguments: tuple[SampleArgument, ...]) -> None:
    """Check that the reference is an expression over inputs, weights and torch."""
    known = {a.name for a in arguments if a.role != "output"} | {"torch"}
    fix = f'like sample_reference = "x * 2 + 1"; it may name {", ".join(sorted(known))}'
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
        reader.add("sample_reference", f"not an expression: {problem}", fix)
        return
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if unknown := sorted(names - known):
        reader.add("sample_reference", f"names {unknown[0]}, which is not an argument", fix)


@dataclass(frozen=True)
class ScalarFormula:
    """A compiled scalar. `references` are its names, as written: `x.shape[0]`, `eps`."""

    text: str
    references: tuple[str, ...]
    _expression: CompiledExpression

    def compute(self, values: Mapping[str, int | float]) -> Computed:
        """The number for values by reference; None with `missing` references or `reasons`."""
        bound = {_parameter(n): values.get(name) for n, name in enumerate(self.references)}
        result = self._expression.compute(Bindings(parameters=bound))
        names = {_parameter(n): name for n, name in enumerate(self.references)}
        missing = tuple(names.get(name, name) for name in result.missing)
        return Computed(result.value, missing, (), result.reasons)


@lru_cache(maxsize=1024)
def compile_scalar(text: str) -> ScalarFormula:
    """Compile an expression of the table `scalars`. Raises InvalidPredicate."""
    if len(text) > MAX_SCALAR:
        raise _invalid(text, f"longer than {MAX_SCALAR} characters")
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
        raise _invalid(text, f"cannot be read: {problem}") from problem
    collected = _References(text)
    flat = ast.unparse(collected.visit(tree))
    try:
        expression = compile_expression(flat)
        # `x + 0` accepts only operands that can be numbers, so no comparisons.
        compile_expression(f"({flat}) + 0")
    except InvalidPredicate as problem:
        raise _invalid(text, problem.message.partition(" (column")[0]) from problem
    return ScalarFormula(text, tuple(collected.names), expression)


class _References(ast.NodeTransformer):
    """Replaces every reference by a parameter, and collects the references."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._parameter(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._parameter(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return self._parameter(node)

    def _parameter(self, node: ast.expr) -> ast.Name:
        name = self._source(node)
        if name.endswith(".shape"):
            raise _invalid(self.text, f"{name} is a list of sizes: write {name}[0]")
        if name not in self.names:
            self.names.append(name)
        return ast.Name(_parameter(self.names.index(name)), ast.Load())

    def _source(self, node: ast.expr) -> str:
        match node:
            case ast.Name():
                return node.id
            case ast.Attribute():
                return f"{self._source(node.value)}.{node.attr}"
            case ast.Subscript(slice=ast.Constant(value=int() as index)) if index is not True:
                return f"{self._source(node.value)}[{index}]"
            case ast.Subscript(
                slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as index))
            ):
                return f"{self._source(node.value)}[-{index}]"
        raise _invalid(self.text, f"{ast.unparse(node)[:80]} is not a name of a tensor or constant")


def _parameter(number: int) -> str:
    return f"reference{number}"


def _invalid(text: str, message: str) -> InvalidPredicate:
    return InvalidPredicate(message, hint=_SCALAR_HINT, details={"expression": text[:MAX_SCALAR]})
