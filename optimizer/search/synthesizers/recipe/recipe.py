"""A recipe: a kernel template with named tensors, typed parameters and constraints over facts.

Data only: importing one runs nothing. A template holds `@{name}` placeholders for parameters and
traits, and `@{host}` where the generated host code goes; a value is a number or an identifier, so
nothing can be smuggled in through one. Knows neither problems nor toolchains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kb.errors import InvalidPredicate
from kb.hardware.checks import Problems, TableReader
from kb.moves_vocabulary import ROLES
from kb.predicates import compile_predicate

FORMAT = 1
HOST = "host"
Value = int | float | str | bool
TensorRole = Literal["input", "weight", "output"]
TENSOR_ROLES: tuple[TensorRole, ...] = ("input", "weight", "output")
MAX_VALUES = 64
UNITS = ("elements", "B", "bit", "threads", "count")

PLACEHOLDER = re.compile(r"@\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIM = re.compile(r"\*?[A-Za-z_][A-Za-z0-9_]*|[0-9]+")
_FIELDS = (
    "format",
    "language",
    "template",
    "ops",
    "tensors",
    "traits",
    "when",
    "parameters",
    "constraints",
)


@dataclass(frozen=True)
class TensorPattern:
    """One tensor of the binary interface, in its order.

    role: weight stands for parameters and buffers. dtypes: allowed ones, by torch's names. dims:
    names that must agree across tensors, numbers, or one `*name` for the product of any number of
    dimensions.
    """

    name: str
    role: TensorRole
    dtypes: tuple[str, ...]
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Parameter:
    """role: what moves call it. values: in their natural order, so that a move can step up or down.
    tested: those that were evaluated where the recipe comes from. unit: of the values, where a
    move's limit may bound them: `elements` of the problem's type, or a unit of fact_keys.toml."""

    name: str
    role: str
    values: tuple[Value, ...]
    default: Value
    about: str = ""
    tested: tuple[Value, ...] = ()
    unit: str = ""


@dataclass(frozen=True)
class Recipe:
    """name: of its skill. template: its text. traits: name in the template -> name in the problem
    (`native_layer_norm.eps`). when: predicate over dims, traits, facts and problem. constraints:
    over parameters too."""

    name: str
    language: str
    template: str
    ops: tuple[str, ...]
    tensors: tuple[TensorPattern, ...]
    parameters: tuple[Parameter, ...] = ()
    traits: Mapping[str, str] = field(default_factory=dict)
    when: str | None = None
    constraints: tuple[str, ...] = ()

    @property
    def defaults(self) -> dict[str, Value]:
        return {parameter.name: parameter.default for parameter in self.parameters}

    def parameter(self, name: str) -> Parameter:
        return next(p for p in self.parameters if p.name == name)


def parse_recipe(
    name: str, raw: Mapping[str, Any], files: Mapping[str, str], problems: Problems
) -> Recipe | None:
    """A recipe from its JSON and the skill's other files; None when something is wrong with it,
    which `problems` then says."""
    before = len(problems.entries)
    reader = TableReader(raw, "recipe", problems)
    reader.only(_FIELDS)
    if raw.get("format") != FORMAT:
        reader.add("format", f"is {raw.get('format')!r}", f"this version reads format {FORMAT}")
    path = reader.text("template", required=True)
    if path and path not in files:
        reader.add("template", f"the skill has no file {path}", "put the template there")
    recipe = Recipe(
        name=name,
        language=reader.text("language", required=True),
        template=files.get(path, ""),
        ops=reader.texts("ops"),
        tensors=tuple(_tensor(table) for table in reader.tables("tensors")),
        parameters=tuple(_parameter(table) for table in reader.tables("parameters")),
        traits={k: str(v) for k, v in reader.table("traits").raw.items()},
        when=reader.text("when", limit=2_000) or None,
        constraints=reader.texts("constraints"),
    )
    _check(recipe, reader)
    return recipe if len(problems.entries) == before else None


def _tensor(table: TableReader) -> TensorPattern:
    table.only(("name", "role", "dtypes", "dims"))
    role = table.choice("role", TENSOR_ROLES, "input")
    dims = table.texts("dims")
    for dim in dims:
        if not _DIM.fullmatch(dim):
            table.add("dims", f"{dim!r} is no dimension", "a name, a number, or *name")
    if sum(dim.startswith("*") for dim in dims) > 1:
        table.add("dims", "has more than one *name", "one stands for all that is not named")
    return TensorPattern(
        table.text("name", required=True),
        next(known for known in TENSOR_ROLES if known == role),
        table.texts("dtypes") or ("float32",),
        dims,
    )


def _parameter(table: TableReader) -> Parameter:
    table.only(("name", "role", "values", "default", "about", "tested", "unit"))
    role = table.choice("role", tuple(sorted(ROLES)), "block")
    values = _values(table, "values")
    default = table.raw.get("default", values[0] if values else 0)
    if not 1 <= len(values) <= MAX_VALUES:
        table.add("values", f"has {len(values)} values", f"between 1 and {MAX_VALUES}")
    if default not in values:
        table.add("default", f"{default!r} is none of the values", "choose one of them")
    return Parameter(
        table.text("name", required=True),
        role,
        values,
        default,
        table.text("about"),
        _values(table, "tested"),
        table.text("unit") and table.choice("unit", UNITS, "elements"),
    )


def _values(table: TableReader, key: str) -> tuple[Value, ...]:
    raw = table.raw.get(key, [])
    values = tuple(raw) if isinstance(raw, list | tuple) else ()
    for value in values:
        if not is_value(value):
            table.add(key, f"{value!r} is no value", "numbers, true, false or identifiers")
    return tuple(value for value in values if is_value(value))


def is_value(value: object) -> bool:
    """What may be put into a template."""
    if isinstance(value, str):
        return bool(_NAME.fullmatch(value))
    return isinstance(value, bool | int | float)


def _check(recipe: Recipe, reader: TableReader) -> None:
    known = {p.name for p in recipe.parameters} | set(recipe.traits)
    names = [t.name for t in recipe.tensors] + [p.name for p in recipe.parameters]
    names += list(recipe.traits)
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            reader.add("names", f"{name!r} is no name, or used twice", "letters, digits, _; once")
    if not any(t.role == "output" for t in recipe.tensors):
        reader.add("tensors", "has no output", 'add one with role = "output"')
    used = set(PLACEHOLDER.findall(recipe.template))
    for name in sorted(used - known - {HOST}):
        reader.add("template", f"@{{{name}}} is nothing", f"known: {', '.join(sorted(known))}")
    for name in sorted({p.name for p in recipe.parameters} - used):
        reader.add("parameters", f"{name} is not in the template", f"write @{{{name}}} there")
    _check_predicates(recipe, known, reader)


def _check_predicates(recipe: Recipe, known: set[str], reader: TableReader) -> None:
    free = {dim.lstrip("*") for tensor in recipe.tensors for dim in tensor.dims}
    free |= set(recipe.traits)
    given = [("when", recipe.when, free)] if recipe.when else []
    given += [(f"constraints[{n}]", c, free | known) for n, c in enumerate(recipe.constraints)]
    for where, text, allowed in given:
        try:
            names = compile_predicate(text or "").names()
        except InvalidPredicate as problem:
            reader.add(where, problem.message, problem.hint)
            continue
        for name in sorted(set(names.parameters) - allowed):
            reader.add(where, f"{name} is nothing", f"known: {', '.join(sorted(allowed))}")


def filled(template: str, values: Mapping[str, Value], host: str, *, python: bool) -> str:
    """The template with every placeholder replaced. Raises KeyError for one without a value."""

    def put(found: re.Match[str]) -> str:
        name = found.group(1)
        return host if name == HOST else literal(values[name], python=python)

    return PLACEHOLDER.sub(put, template)


def literal(value: Value, *, python: bool) -> str:
    """A value as source text of Python, or of C and what resembles it."""
    if isinstance(value, bool):
        return str(value) if python else str(value).lower()
    return value if isinstance(value, str) else repr(value)
