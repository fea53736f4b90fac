"""torch.compile's public configuration space as data, the order in which to try it, and the Python
text of a candidate. Standard library only, except that `installed` imports torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from kb.problem_terms import op_family
from optimizer.evaluation.bundle import Bundle, Origin
from optimizer.search.knowledge import ShownMove
from optimizer.search.records import Value
from optimizer.search.synthesizers.base import ProposalContext

FILE = Path(__file__).with_name("configurations.toml")
EAGER = "eager"  # the mode of a candidate that is not compiled
DEFAULT = "default"
Options = Mapping[str, Value]


@dataclass(frozen=True)
class Help:
    """Conditions under which a configuration is worth trying.

    `devices` are the kinds that it affects, empty for any. `precision` and `weights` are the
    required policy, empty for any. `ops` are operators or their families. `needs` are kinds of
    operators; the problem must have one of them, empty for any. `least` is the number of computing
    operators below which the generated code does not change. `beside` are options, one of which
    must be on for this one to have an effect; empty without such a condition.
    """

    about: str
    devices: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    precision: str = ""
    weights: str = ""
    needs: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    least: int = 0

    def acts_with(self, options: Options) -> bool:
        """Whether an option of `beside` is on."""
        return not self.beside or any(options.get(name) is True for name in self.beside)

    def fits(self, context: ProposalContext) -> bool:
        """Whether it has an effect on this device and these operators and the policy allows it."""
        device, problem = device_of(context), context.problem
        return (
            (not self.devices or device in self.devices)
            and self.precision in ("", problem.policy.get("precision"))
            and self.weights in ("", problem.policy.get("weights"))
            and self._acts_on(problem.main.kinds)
        )

    def _acts_on(self, kinds: Mapping[str, int]) -> bool:
        """Whether it affects these operators; True if they are unknown."""
        if not kinds:
            return True
        needed = not self.needs or any(kinds.get(kind) for kind in self.needs)
        return needed and sum(kinds.values()) >= self.least

    def move(self, context: ProposalContext) -> ShownMove | None:
        """The first move of the context that asks for this change."""
        if not context.with_knowledge:
            return None
        moves = (r for r in context.knowledge.moves if r.change.get("role") in self.roles)
        return next(moves, None)

    def rank(self, context: ProposalContext) -> int:
        """Rank in this context, higher is better: a move counts most, then the leading signal, then
        the operator."""
        op = context.problem.op
        places = [n for n, signal in enumerate(context.parent.signals) if signal in self.signals]
        rank = 4 if self.move(context) is not None else 0
        rank += max(0, 3 - places[0]) if places else 0
        return rank + (2 if {op, op_family(op)} & set(self.ops) else 0)


@dataclass(frozen=True)
class StartingPoint:
    """A configuration to start from."""

    name: str
    mode: str
    options: Options
    help: Help


@dataclass(frozen=True)
class Option:
    """An option and the values to try; `default` is torch's own, None if not stated."""

    name: str
    values: tuple[Value, ...]
    default: Value | None
    help: Help


@dataclass(frozen=True)
class ConfigurationStep:
    """A configuration to try next; `attributed` is the id of the move that asks for it."""

    mode: str
    options: Options
    plan: str
    attributed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Installed:
    """The modes of torch with the options that they set, and the names of its options."""

    modes: Mapping[str, Options]
    options: frozenset[str]


@dataclass(frozen=True)
class Space:
    """The configuration space of a file."""

    points: tuple[StartingPoint, ...]
    options: tuple[Option, ...] = field(default=())

    def starts(self, context: ProposalContext, installed: Installed) -> list[ConfigurationStep]:
        """Starting points for this device and policy: the default, then by rank."""
        fitting = [p for p in self.points if p.help.fits(context)]
        # A mode without effect in this torch or a point whose options it lacks equals the default.
        there = [
            p for p in fitting if p.mode in installed.modes and set(p.options) <= installed.options
        ]
        there.sort(key=lambda p: (p.name != DEFAULT, -p.help.rank(context)))
        return [_start(point, context) for point in there]

    def neighbours(
        self, mode: str, options: Options, context: ProposalContext, installed: Installed
    ) -> Iterator[ConfigurationStep]:
        """Configurations with one option or the mode changed, the highest rank first."""
        changes: list[tuple[int, ConfigurationStep]] = []
        now = {**installed.modes.get(mode, {}), **options}
        for option in self.options:
            there = option.name in installed.options and option.help.acts_with(now)
            if there and option.help.fits(context):
                rank = option.help.rank(context)
                known = installed.modes.get(mode, {}).get(option.name, option.default)
                changes += [
                    (rank, step) for step in _changed(option, mode, options, known, context)
                ]
        for point in self.points:
            if point.mode in installed.modes and point.help.fits(context):
                if point.options or point.mode == mode:
                    continue
                plan = f"Compile in mode {point.mode} instead of {mode}: {point.help.about}"
                changes.append(
                    (point.help.rank(context), ConfigurationStep(point.mode, dict(options), plan))
                )
        changes.sort(key=lambda change: -change[0])
        return (step for _, step in changes)


def device_of(context: ProposalContext) -> str:
    """The kind of device of the candidates."""
    return context.hardware.device or "cpu"


def _start(point: StartingPoint, context: ProposalContext) -> ConfigurationStep:
    move = point.help.move(context)
    attributed = (move.id,) if move is not None else ()
    return ConfigurationStep(
        point.mode, dict(point.options), f"{point.name}: {point.help.about}", attributed
    )


def _changed(
    option: Option, mode: str, options: Options, known: Value | None, context: ProposalContext
) -> Iterator[ConfigurationStep]:
    """All other values of an option, and the configuration without it if it is set."""
    move = option.help.move(context)
    attributed = (move.id,) if move is not None else ()
    now = options.get(option.name, known)
    for value in option.values:
        if not _same(value, now):
            plan = f"Set {option.name} to {value!r}: {option.help.about}"
            yield ConfigurationStep(mode, {**options, option.name: value}, plan, attributed)
    if option.name in options:
        left = {name: value for name, value in options.items() if name != option.name}
        yield ConfigurationStep(mode, left, f"Leave {option.name} to torch again.")


def _same(left: Value, right: Value | None) -> bool:
    """Equality of values with their types, since 1 and True are different options."""
    return type(left) is type(right) and left == right


@lru_cache(maxsize=1)
def shipped() -> Space:
    """The space that is part of the package."""
    return read(FILE)


def read(path: Path) -> Space:
    """Read a space from a TOML file. Raises KeyError or TypeError for a malformed file, which only
    a defect of the package can be."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    points = [
        StartingPoint(row["name"], row["mode"], dict(row.get("options", {})), _help(row))
        for row in tables["points"]
    ]
    options = [
        Option(row["name"], tuple(row["values"]), row.get("default"), _help(row))
        for row in tables["options"]
    ]
    return Space(tuple(points), tuple(options))


def _help(row: Mapping[str, Any]) -> Help:
    lists: dict[str, Sequence[str]] = {
        name: tuple(row.get(name, ()))
        for name in ("devices", "ops", "signals", "roles", "needs", "beside")
    }
    return Help(
        row["about"],
        **{name: tuple(value) for name, value in lists.items()},
        precision=row.get("precision", ""),
        weights=row.get("weights", ""),
        least=row.get("least", 0),
    )


@lru_cache(maxsize=1)
def installed() -> Installed:
    """The modes and options of this machine's torch."""
    from torch._inductor import list_mode_options, list_options

    return Installed(list_mode_options(), frozenset(list_options()))


# -- text of candidates

GENERATED_FILE = "candidate.py"
# A stored candidate may run with another version of torch.
_COMPILED = '''

import torch._inductor

MODE = {mode!r}
OPTIONS = {options}


def compile_options():
    """What the mode sets and what is changed in it, as far as this torch knows the names."""
    known = set(torch._inductor.list_options())
    chosen = {{**torch._inductor.list_mode_options().get(MODE, {{}}), **OPTIONS}}
    return {{name: value for name, value in chosen.items() if name in known}}


class ModelNew({base}):
    """{summary}"""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.compiled = torch.compile(super().forward, dynamic=False, options=compile_options())

    def forward(self, *inputs):
        return self.compiled(*{inputs})
'''
# The reference changes inputs in place, and a candidate may only read them.
_COPIED = "[x.clone() if n in {numbers} else x for n, x in enumerate(inputs)]"
_REWRITTEN = '''

{imports}

{functions}class {name}(Model):
    """{summary}"""

{state}{forward}
'''
_STATE = """    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
{rows}

"""


@dataclass(frozen=True)
class ForwardText:
    """A forward as the text of a method, with its imports. `functions` is the text before the
    class; `kept` names the functions whose results the model caches as `self.NAME`."""

    forward: str
    imports: str
    functions: str = ""
    kept: tuple[str, ...] = ()


def configured_bundle(
    reference: str, mode: str, options: Options, overwritten: Sequence[int] = ()
) -> Bundle:
    """A candidate that runs the problem through torch.compile in this mode with these options.
    `overwritten` are the numbers of the inputs that the reference changes in place."""
    summary = "The reference through torch.compile."
    text = reference + _compiled("Model", mode, options, summary, overwritten)
    return _bundle(text, {"mode": mode, **options}, "config")


def rewritten_bundle(
    reference: str,
    text: ForwardText,
    names: tuple[str, ...],
    mode: str = EAGER,
    options: Options | None = None,
) -> Bundle:
    """A candidate with a rewritten forward, compiled unless the mode is EAGER; `names` are those of
    the rewrites."""
    eager = mode == EAGER
    applied = ", ".join(names)
    rows = "\n".join(f"        self.{name} = _Kept({name})" for name in text.kept)
    source = reference + _REWRITTEN.format(
        imports=text.imports,
        functions=f"{text.functions}\n" if text.functions else "",
        name="ModelNew" if eager else "Rewritten",
        summary=f"The reference with its graph rewritten: {applied}.",
        state=_STATE.format(rows=rows) if rows else "",
        forward=text.forward,
    )
    if not eager:
        source += _compiled("Rewritten", mode, options or {}, "The rewritten graph, compiled.")
    return _bundle(source, {"mode": mode, "rewrites": applied, **(options or {})}, "rewrite")


def _compiled(
    base: str, mode: str, options: Options, summary: str, overwritten: Sequence[int] = ()
) -> str:
    rows = "".join(f"    {name!r}: {value!r},\n" for name, value in sorted(options.items()))
    table = f"{{\n{rows}}}" if rows else "{}"
    inputs = _COPIED.format(numbers=tuple(overwritten)) if overwritten else "inputs"
    return _COMPILED.format(mode=mode, options=table, base=base, summary=summary, inputs=inputs)


def _bundle(text: str, values: Mapping[str, Value], origin: Origin) -> Bundle:
    return Bundle({GENERATED_FILE: text}, GENERATED_FILE, "torch", "ModelNew", dict(values), origin)
