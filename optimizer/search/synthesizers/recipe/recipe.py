"""A recipe: a kernel template with named tensors, typed parameters and constraints over facts; its
match with a case, and its instance as a candidate.

Recipes are data: reading one runs nothing. A template has `@{name}` placeholders for parameters and
traits, and `@{host}` for generated host code. A value is a number or an identifier, so that it
cannot inject code. Standard library only; knows no toolchains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from kb.candidate_abi import c_declarations
from kb.errors import InvalidPredicate
from kb.hardware.table_reader import Problems, TableReader
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import ROLES
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import Value

FORMAT = 1
HOST = "host"
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
    "kinds",
    "when",
    "parameters",
    "constraints",
)
KINDS = ("product", "convolution", "attention", "pointwise", "other")  # counted by `observe`
ROLE_OF = {"input": "input", "parameter": "weight", "buffer": "weight", "output": "output"}
C_LIKE = ("cpp", "cuda")
PYTHON = ("torch", "triton")
SUFFIXES = {"cpp": "cpp", "cuda": "cu"}
ENTRY = "kernlore_run"
# The Python part of a recipe is a function of tensors; this adapts it to the problem's Model.
_PYTHON_HOST = '''

{reference}


class ModelNew(Model):
    """The reference's weights with the recipe's kernel."""

    def forward(self, *inputs):
        return run(*inputs, *self.state_dict(keep_vars=True).values())
'''


@dataclass(frozen=True)
class TensorPattern:
    """One tensor of the binary interface. The role `weight` covers parameters and buffers. `dtypes`
    are the allowed types by torch's names. `dims` are names that must agree across tensors,
    numbers, or a single `*name` for the product of any number of dimensions."""

    name: str
    role: TensorRole
    dtypes: tuple[str, ...]
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a recipe and its domain.

    `role` is its name in moves. `values` are in natural order, so that a move can step up or down.
    `tested` are the values that were evaluated for the recipe. `unit` is `elements` of the
    problem's type or a unit of fact_keys.toml, for values that a move's limit may bound.
    """

    name: str
    role: str
    values: tuple[Value, ...]
    default: Value
    about: str = ""
    tested: tuple[Value, ...] = ()
    unit: str = ""


@dataclass(frozen=True)
class Recipe:
    """A kernel template with its tensors, parameters and conditions.

    `name` is that of its skill, `template` the text. `traits` maps a name in the template to a name
    in the problem (`native_layer_norm.eps`). `kinds` counts the reference's operators by kind,
    empty for any: it detects operators that no tensor shows, such as an activation after a product.
    `when` is a predicate over dims, traits, facts and problem; `constraints` are predicates over
    parameters too.
    """

    name: str
    language: str
    template: str
    ops: tuple[str, ...]
    tensors: tuple[TensorPattern, ...]
    parameters: tuple[Parameter, ...] = ()
    traits: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)
    when: str | None = None
    constraints: tuple[str, ...] = ()

    @property
    def defaults(self) -> dict[str, Value]:
        """The default of every parameter, by name."""
        return {parameter.name: parameter.default for parameter in self.parameters}

    @property
    def written_traits(self) -> frozenset[str]:
        """The traits that an instance contains; the others only decide whether it fits."""
        names = set(PLACEHOLDER.findall(self.template))
        for constraint in self.constraints:
            names |= set(compile_predicate(constraint).names().parameters)
        return frozenset(names & self.traits.keys())

    def parameter(self, name: str) -> Parameter:
        """The parameter with this name. Raises StopIteration for an unknown name."""
        return next(p for p in self.parameters if p.name == name)


def parse_recipe(
    name: str, raw: Mapping[str, Any], files: Mapping[str, str], problems: Problems
) -> Recipe | None:
    """Read a recipe from its JSON and the skill's other files. Returns None for an invalid recipe
    and adds its errors to `problems`."""
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
        kinds=_kinds(reader.table("kinds")),
        when=reader.text("when", limit=2_000) or None,
        constraints=reader.texts("constraints"),
    )
    _check(recipe, reader)
    return recipe if len(problems.entries) == before else None


def _kinds(table: TableReader) -> dict[str, int]:
    for kind, count in table.raw.items():
        if kind not in KINDS or not isinstance(count, int) or count < 1:
            table.add(kind, f"is {count!r}", f"a number from 1 for one of {', '.join(KINDS)}")
    return dict(table.raw)


def _tensor(table: TableReader) -> TensorPattern:
    table.only(("name", "role", "dtypes", "dims"))
    role = table.choice("role", TENSOR_ROLES, "input")
    dims = table.texts("dims")
    for dim in dims:
        if not _DIM.fullmatch(dim):
            table.add("dims", f"{dim!r} is no dimension", "a name, a number, or *name")
    if sum(dim.startswith("*") for dim in dims) > 1:
        table.add("dims", "has more than one *name", "one of them matches all unnamed dimensions")
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
        table.add("default", f"{default!r} is not one of the values", "choose one of them")
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
    """Whether a template may contain a value: a number, a boolean or an identifier."""
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
    predicates = [("when", recipe.when, free)] if recipe.when else []
    predicates += [(f"constraints[{n}]", c, free | known) for n, c in enumerate(recipe.constraints)]
    for where, text, allowed in predicates:
        try:
            names = compile_predicate(text or "").names()
        except InvalidPredicate as problem:
            reader.add(where, problem.message, problem.hint)
            continue
        for name in sorted(set(names.parameters) - allowed):
            reader.add(where, f"{name} is nothing", f"known: {', '.join(sorted(allowed))}")


def filled(template: str, values: Mapping[str, Value], host: str, *, python: bool) -> str:
    """The template with all placeholders replaced. Raises KeyError for one without a value."""

    def put(match: re.Match[str]) -> str:
        name = match.group(1)
        return host if name == HOST else literal(values[name], python=python)

    return PLACEHOLDER.sub(put, template)


def literal(value: Value, *, python: bool) -> str:
    """A value as source text of Python, or of a C-like language."""
    if isinstance(value, bool):
        return str(value) if python else str(value).lower()
    return value if isinstance(value, str) else repr(value)


@dataclass(frozen=True)
class Binding:
    """The values of a recipe's names in one case; `dims` are sizes in elements."""

    dims: Mapping[str, int]
    traits: Mapping[str, Value]


@dataclass(frozen=True)
class RecipeMismatch:
    """The reason why a recipe does not fit."""

    reason: str


def match(
    recipe: Recipe,
    signature: Signature,
    traits: Mapping[str, Value],
    facts: Mapping[str, Value],
    op: str,
    kinds: Mapping[str, int] | None = None,
) -> Binding | RecipeMismatch:
    """Bind the recipe's names to one case, or return why it does not fit: its operator, tensors,
    traits, condition, or the kinds of the reference's operators, if known, differ."""
    if recipe.ops and op not in recipe.ops:
        return RecipeMismatch(f"is for {', '.join(recipe.ops)}, not {op}")
    if recipe.kinds and kinds and dict(kinds) != dict(recipe.kinds):
        return RecipeMismatch(f"is for {_counted(recipe.kinds)}, the case runs {_counted(kinds)}")
    if len(recipe.tensors) != len(signature.tensors):
        return RecipeMismatch(
            f"has {len(recipe.tensors)} tensors, the case {len(signature.tensors)}"
        )
    dims: dict[str, int] = {}
    for pattern, tensor in zip(recipe.tensors, signature.tensors, strict=True):
        reason = _unify(pattern, tensor, dims)
        if reason:
            return RecipeMismatch(reason)
    known: dict[str, Value] = {}
    for name, path in recipe.traits.items():
        if path not in traits:
            return RecipeMismatch(f"the problem has no {path}")
        known[name] = traits[path]
    bindings = Bindings(facts=facts, problem={"op": op}, parameters={**dims, **known})
    if recipe.when and compile_predicate(recipe.when).evaluate(bindings).value is False:
        return RecipeMismatch(f"its condition does not hold: {recipe.when}")
    return Binding(dims, known)


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def _unify(pattern: TensorPattern, tensor: TensorSpec, dims: dict[str, int]) -> str:
    """Bind the pattern's dimensions in `dims`; returns the reason if they do not fit, else ""."""
    if ROLE_OF[tensor.role] != pattern.role:
        return f"{tensor.name} is {tensor.role}, {pattern.name} is {pattern.role}"
    if tensor.dtype not in pattern.dtypes:
        return f"{tensor.name} is {tensor.dtype}, {pattern.name} is {' or '.join(pattern.dtypes)}"
    spread = _spread(pattern.dims, tensor.shape)
    if spread is None:
        return f"{tensor.name} has {len(tensor.shape)} dimensions, {pattern.name} others"
    for dim, size in zip(pattern.dims, spread, strict=True):
        name = dim.lstrip("*")
        wanted = int(name) if name.isdigit() else dims.setdefault(name, size)
        if wanted != size:
            return f"{name} is {wanted} and, in {tensor.name}, {size}"
    return ""


def _spread(dims: Sequence[str], shape: Sequence[int]) -> list[int] | None:
    """The sizes in the order of their names; `*name` gets the product of the remaining sizes."""
    starred = next((n for n, dim in enumerate(dims) if dim.startswith("*")), None)
    if starred is None:
        return list(shape) if len(dims) == len(shape) else None
    behind = len(dims) - starred - 1
    if len(shape) < len(dims) - 1:
        return None
    end = len(shape) - behind
    return [*shape[:starred], math.prod(shape[starred:end]), *shape[end:]]


def allowed(
    recipe: Recipe, values: Mapping[str, Value], binding: Binding, facts: Mapping[str, Value]
) -> bool:
    """Whether all constraints hold; one that lacks a value (an unknown fact) does."""
    names = {**binding.dims, **binding.traits, **values}
    bindings = Bindings(facts=facts, parameters=names)
    return all(
        compile_predicate(text).evaluate(bindings).value is not False for text in recipe.constraints
    )


def space(
    recipe: Recipe, binding: Binding, facts: Mapping[str, Value]
) -> Iterator[dict[str, Value]]:
    """Every allowed choice of values, in the order of the domains."""
    names = [parameter.name for parameter in recipe.parameters]
    for chosen in product(*(parameter.values for parameter in recipe.parameters)):
        values = dict(zip(names, chosen, strict=True))
        if allowed(recipe, values, binding, facts):
            yield values


def instantiate(
    recipe: Recipe, values: Mapping[str, Value], binding: Binding, reference: str
) -> Bundle:
    """The recipe as a bundle with these values and the host code of the binary interface.
    `reference` is the source of the problem, whose Model has the weights of a Python candidate."""
    python = recipe.language in PYTHON
    tensors = [(p.name, p.role, p.dtypes[0], p.dims) for p in recipe.tensors]
    host = c_declarations(tensors) if recipe.language in C_LIKE else ""
    names = {**binding.traits, **values}
    text = filled(recipe.template, names, host, python=python)
    parameters = dict(values)
    if python:
        text += _PYTHON_HOST.format(reference=reference)
        return Bundle(
            {"kernel.py": text}, "kernel.py", recipe.language, "ModelNew", parameters, "recipe"
        )
    # The suffix of a chip's own language is its name, unless its toolchain has another.
    name = f"kernel.{SUFFIXES.get(recipe.language, recipe.language)}"
    return Bundle({name: text}, name, recipe.language, ENTRY, parameters, "recipe")
