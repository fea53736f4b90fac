"""The hardware.toml schema: a file (or the body of a request) in, one checked `HardwareSpec` out.

It reports all problems at once, each with its place and what to write instead. It does not know the
other hardware: whether a parent exists is a question for `lineage`, whether a signal exists is one
for the retrieval data.

Facts. A value stands in the one unit of its key (`fact_keys.toml`), without prefixes: 3.35e12 B/s.
A key that is not in that list is accepted as the file's own, unless it looks like a typing error of
a known one; `x_...` always is.

The `toolchains` table is read in `toolchain_schema`, `rules` and `metrics` in `rule_schema`.
"""

from __future__ import annotations

import math
import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeGuard, cast

import tomli_w

from kb.errors import InvalidKnowledge, InvalidPredicate
from kb.hardware.facts import fact_keys, find_unit, mistyped_key
from kb.hardware.spec import (
    CONFIDENCES,
    FACT_KINDS,
    HARDWARE_ID,
    HARDWARE_KINDS,
    Confidence,
    FactKind,
    FactSpec,
    FactValue,
    HardwareKind,
    HardwareSpec,
    MetricAlias,
    RuleSpec,
    ScalarSpec,
    SignatureSpec,
    ToolchainSpec,
)
from kb.hardware.table_reader import Problems, TableReader, names_of
from kb.hardware.toolchains import read_toolchains
from kb.predicates import compile_predicate

MAX_PATTERN = 300
MAX_ITEMS = 500
KEPT_TEXTS = 200  # of some ten thousand characters each

_LARGEST = 1e100

_SNAKE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LANGUAGE = re.compile(r"[a-z][a-z0-9_+.-]{0,31}")
_NESTED_REPEAT = re.compile(r"\((?:[^()\\]|\\.)*[*+](?:[^()\\]|\\.)*\)(?:[*+]|\{\d*,\d*\})")
_ID_RULE = "1-64 of a-z 0-9 . _ -, starting with a letter or digit"


def parse_hardware(toml: str | Mapping[str, Any], origin: str) -> HardwareSpec:
    """Check a hardware.toml text, or the same as a mapping; `origin` names it in messages."""
    return _text_parsed(toml, origin) if isinstance(toml, str) else _parsed(toml, origin)


# A start reads each of the chips that ship three times, and every opened catalog reads them again.
@lru_cache(KEPT_TEXTS)
def _text_parsed(text: str, origin: str) -> HardwareSpec:
    return _parsed(text, origin)


def _parsed(toml: str | Mapping[str, Any], origin: str) -> HardwareSpec:
    problems = Problems(origin)
    root = TableReader(_load(toml, problems), "", problems)
    root.only(names_of(HardwareSpec))
    languages = _languages(root)
    spec = HardwareSpec(
        id=_identifier(root, "id", required=True),
        name=root.text("name", required=True, limit=120),
        vendor=_identifier(root, "vendor", required=True),
        parent=_identifier(root, "parent") or None,
        aliases=_aliases(root),
        languages=languages,
        kind=cast(HardwareKind, root.choice("kind", HARDWARE_KINDS, "accelerator")),
        summary=root.text("summary"),
        facts=_facts(root),
        signatures=tuple(_signature(reader) for reader in _some(root, "signatures")),
        rules=read_rules(root),
        metrics=read_aliases(root),
        toolchains=read_toolchains(root, languages),
    )
    if spec.parent is not None and spec.parent == spec.id:
        root.add("parent", "is the hardware itself", "name the family above it or leave it out")
    problems.raise_if_any()
    return spec


def named(description: Mapping[str, Any]) -> dict[str, Any]:
    """A description with a name and a vendor, which a newcomer may leave out: the id, and unknown,
    for a vendor itself the id."""
    completed = {key: value for key, value in description.items() if value is not None}
    identity = completed.get("id")
    if isinstance(identity, str) and identity:
        completed.setdefault("name", identity)
        is_vendor = completed.get("kind") == "vendor"  # which is its own vendor
        completed.setdefault("vendor", identity if is_vendor else "unknown")
    return completed


def checked_toml(text: str, origin: str) -> dict[str, Any]:
    """The table of a hardware.toml that `parse_hardware` takes, of which only the id is required.
    Raises InvalidKnowledge."""
    try:
        description = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        parse_hardware(text, origin)  # says where it breaks
        raise
    parse_hardware(named(description), origin)
    return description


def _load(toml: str | Mapping[str, Any], problems: Problems) -> Mapping[str, Any]:
    if not isinstance(toml, str):
        return toml
    try:
        return tomllib.loads(toml)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problems.add("(file)", f"not TOML: {error}", "correct the syntax at that line")
        problems.raise_if_any()
        raise


def _identifier(root: TableReader, key: str, *, required: bool = False) -> str:
    value = root.text(key, required=required, limit=64)
    if value and not HARDWARE_ID.fullmatch(value):
        fixed = re.sub(r"[^a-z0-9._-]+", "-", value.lower()).strip("._-")[:64]
        example = f"for example {fixed!r}; " if fixed else ""
        root.add(key, f"{value!r} is not an id", f"{example}{_ID_RULE}")
    return value


def _aliases(root: TableReader) -> tuple[str, ...]:
    aliases = root.texts("aliases")
    for index, alias in enumerate(aliases):
        if len(alias) > 64:
            root.add(f"aliases[{index}]", "over 64 characters", "use a shorter name")
    return aliases


def _languages(root: TableReader) -> tuple[str, ...]:
    languages = root.texts("languages")
    for index, language in enumerate(languages):
        if not _LANGUAGE.fullmatch(language):
            root.add(f"languages[{index}]", f"{language!r} is no language id", "like triton, cuda")
    return languages


def _some(root: TableReader, key: str) -> list[TableReader]:
    readers = root.tables(key)
    if len(readers) > MAX_ITEMS:
        root.add(key, f"{len(readers)} entries", f"at most {MAX_ITEMS}")
    return readers[:MAX_ITEMS]


def _facts(root: TableReader) -> tuple[FactSpec, ...]:
    facts = []
    seen: dict[tuple[str, str], str] = {}
    for reader in _some(root, "facts"):
        fact = _fact(reader)
        identity = (fact.key, fact.kind)
        if fact.key and identity in seen:
            fix = f"keep one {fact.kind} value per key, or put the variant's into its own id"
            reader.add("key", f"{fact.key} is already at {seen[identity]}", fix)
        seen.setdefault(identity, reader.path)
        facts.append(fact)
    return tuple(facts)


def _fact(reader: TableReader) -> FactSpec:
    reader.only(names_of(FactSpec))
    key = _fact_name(reader)
    kind = cast(FactKind, reader.choice("kind", FACT_KINDS, "datasheet"))
    if "kind" not in reader.raw:
        reader.add("kind", "missing", f'add kind = "..." with one of {", ".join(FACT_KINDS)}')
    formula = reader.text("formula", required=kind == "derived", limit=300)
    if formula and kind != "derived":
        reader.add("formula", f"belongs to derived facts, not {kind}", 'set kind = "derived"')
    return FactSpec(
        key=key,
        value=_fact_value(reader, key),
        unit=_fact_unit(reader, key),
        kind=kind,
        title=reader.text("title", required=kind != "derived"),
        publisher=reader.text("publisher", required=kind == "datasheet"),
        locator=reader.text("locator", required=kind == "datasheet"),
        url=_url(reader),
        date=reader.date("date", required=kind != "derived"),
        note=reader.text("note"),
        formula=formula,
    )


def _fact_name(reader: TableReader) -> str:
    key = reader.text("key", required=True, limit=64)
    if not key:
        return ""
    if not _SNAKE.fullmatch(key):
        reader.add("key", f"{key!r} is not a key", "lower case words joined by _, like l2_size")
    elif (meant := mistyped_key(key)) is not None:
        fix = f"did you mean {meant}? For a fact of your own write x_{key}"
        reader.add("key", f"{key} looks like a typing error", fix)
    return key


def _fact_unit(reader: TableReader, key: str) -> str:
    known = fact_keys().get(key)
    if known is not None and known.unit == "text" and "unit" not in reader.raw:
        return "text"
    unit = reader.text("unit", required=True, limit=20)
    if not unit or known is None or unit == known.unit:
        return unit
    fix = f'unit = "{known.unit}"'
    value = reader.raw.get("value")
    stated = find_unit(unit)
    if stated is not None and stated.canonical == known.unit and _is_quantity(value):
        exact = float(value) * stated.factor
        fix = f'value = {int(exact) if exact.is_integer() else exact}, unit = "{known.unit}"'
    reader.add("unit", f"{key} is kept in {known.unit}, not {unit}", fix)
    return known.unit


def _fact_value(reader: TableReader, key: str) -> FactValue:
    value = reader.raw.get("value")
    known = fact_keys().get(key)
    if value is None:
        reader.add("value", "missing", "state it, or leave the whole fact out")
    elif isinstance(value, bool) or not isinstance(value, int | float | str):
        reader.add("value", "neither number nor text", "write a number in the key's unit")
    elif isinstance(value, str):
        return _text_value(reader, key, value)
    elif not _is_quantity(value):
        reader.add("value", f"{str(value)[:20]} cannot be", "a finite number, not negative")
    elif known is not None and known.unit == "text":
        reader.add("value", f"{key} is text", f'write value = "{value}"')
    elif known is not None and not known.plausible(value) and _in_unit_of(reader, key):
        low, high = known.range or (0.0, math.inf)
        fix = f"convert it to {known.unit} without prefix"
        reader.add("value", f"{value:g} {known.unit} is outside {low:g} .. {high:g}", fix)
    else:
        return value
    return 0


def _is_quantity(value: object) -> TypeGuard[int | float]:
    """TOML integers have no upper bound; what does not fit a float is no measure of a chip."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _LARGEST


def _text_value(reader: TableReader, key: str, value: str) -> str:
    known = fact_keys().get(key)
    if known is not None and known.unit != "text":
        reader.add("value", f"text where a number in {known.unit} belongs", "write it unquoted")
    elif not value.strip() or len(value) > 200:
        reader.add("value", "empty or over 200 characters", "a short text")
    return value


def _in_unit_of(reader: TableReader, key: str) -> bool:
    """A value in the wrong unit gets the unit's message only, not a second one about its size."""
    return reader.raw.get("unit") == fact_keys()[key].unit


def _url(reader: TableReader) -> str:
    url = reader.text("url", limit=2000)
    if url and not re.match(r"https?://[^\s]+$", url):
        reader.add("url", f"{url!r} is no web address", "start it with https:// or leave it out")
    return url


def _signature(reader: TableReader) -> SignatureSpec:
    reader.only(names_of(SignatureSpec))
    pattern = reader.text("pattern", required=True, limit=MAX_PATTERN)
    _check_pattern(reader, pattern)
    signal = reader.text("signal", required=True, limit=64)
    if signal and not _SNAKE.fullmatch(signal):
        reader.add("signal", f"{signal!r} is no signal id", "like shared_memory_limit")
    title = reader.text("title", required=True, limit=200)
    return SignatureSpec(pattern, signal, title, reader.text("remedy", limit=1000))


def _check_pattern(reader: TableReader, pattern: str) -> None:
    if not pattern or len(pattern) > MAX_PATTERN:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # "[[" will change its meaning
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        fix = "correct it; in TOML, single quotes keep backslashes as they are"
        reader.add("pattern", f"no regular expression: {error}", fix)
        return
    if compiled.search("") is not None:
        reader.add("pattern", "matches every line", "name words of the error text")
    if _NESTED_REPEAT.search(pattern):
        reader.add("pattern", "repeats a repeat, which can take forever", "repeat once: [^)]*")


# -- rule schema: `[[rules]]` and `[metrics]` of a hardware.toml: what the counters of a chip's ow

MAX_RULES = 200
MAX_ALIASES = 500
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SIGNAL = re.compile(r"[a-z][a-z0-9_]{0,63}")


def read_rules(root: TableReader) -> tuple[RuleSpec, ...]:
    """The rules in the order of the file; problems go to the reader."""
    rules: list[RuleSpec] = []
    rows = root.tables("rules")
    if len(rows) > MAX_RULES:
        root.add("rules", f"{len(rows)} entries", f"at most {MAX_RULES}")
    for row in rows[:MAX_RULES]:
        rule = _rule(row)
        if rule.id and any(rule.id == other.id for other in rules):
            row.add("id", f"{rule.id!r} is already a rule of this file", "give it an id of its own")
        rules.append(rule)
    return tuple(rules)


def _rule(row: TableReader) -> RuleSpec:
    row.only(names_of(RuleSpec))
    identity = row.text("id", required=True, limit=64)
    if identity and not _ID.fullmatch(identity):
        row.add("id", f"{identity!r} is no rule id", "lower case words with -: stalls-on-memory")
    signal = row.text("signal", required=True, limit=64)
    if signal and not _SIGNAL.fullmatch(signal):
        row.add("signal", f"{signal!r} is no signal id", "like latency_bound")
    return RuleSpec(
        id=identity,
        when=_when(row),
        signal=signal,
        title=row.text("title", required=True, limit=200),
        why=row.text("why", limit=1_000),
        confidence=cast(Confidence, row.choice("confidence", CONFIDENCES, "C")),
    )


def _when(row: TableReader) -> str:
    text = row.text("when", required=True, limit=1_000)
    if not text.strip():
        return text
    try:
        names = compile_predicate(text).names()
    except InvalidPredicate as problem:
        row.add("when", problem.message, problem.hint)
        return text
    if not names.parameters and not names.metrics:
        fix = "compare a counter, like my_stall_cycles / my_cycles > 0.4"
        row.add("when", "reads no counter and no metric", fix)
    return text


def read_aliases(root: TableReader) -> Mapping[str, MetricAlias]:
    """The canonical metrics of own counters, by the counter's name as the profiler reports it."""
    table = root.table("metrics")
    if len(table.raw) > MAX_ALIASES:
        root.add("metrics", f"{len(table.raw)} entries", f"at most {MAX_ALIASES}")
    aliases = {}
    for counter in table.raw:
        row = table.table(counter)
        row.only(names_of(MetricAlias))
        scale = row.raw.get("scale", 1.0)
        if (
            isinstance(scale, bool)
            or not isinstance(scale, int | float)
            or not 0 < scale < math.inf
        ):
            row.add("scale", f"{str(scale)[:20]} is no factor", "a positive number, like 100")
            scale = 1.0
        canonical = row.text("canonical", required=True, limit=100)
        aliases[str(counter)] = MetricAlias(canonical, float(scale))
    return MappingProxyType(aliases)


# -- writer: Writes hardware.toml: a `HardwareSpec` as text, and the commented file that a team fi

_TEMPLATE = """\
# Description of one accelerator for Kernlore. It is valid as it is; every entry you fill in makes
# answers better. Lines starting with "#" and a name are entries to fill in and uncomment. Register
# it with `kernlore hardware add FILE` (or POST /hardware), again after each change.

# How requests name it: 1-64 of a-z 0-9 . _ -, starting with a letter or digit.
id = "{id}"
name = "{id}"
# Whose chip it is: the id of the vendor, such as "nvidia".
vendor = "custom"
# The family above it, already registered: its facts and manuals then hold here too.
#parent = "custom-family"
# Other names in logs, manuals and device listings; a heading "On Xyz 2 ..." is scoped by them.
#aliases = ["xyz-2", "XYZ 2 PCIe"]
# What kernels are written in for it.
#languages = ["mylang"]
# accelerator | family | vendor
kind = "accelerator"
#summary = "One sentence: what it is and what it is good at."

# ---- Facts: numbers with their source, in the unit of the key and without prefixes
# (80 GB of memory are 85899345920 B, 2 TB/s are 2.0e12 B/s).
# kind: datasheet (title, publisher, locator, date) | measured (title, date) | derived (formula).
# A number that is not published is left out. Known keys:
#
{keys}
#
# Any other lower_case key is accepted as your own. Start with these, they bound and prune the most:

{facts}

#[[facts]]
#key = "x_my_own_fact"
#value = 42
#unit = "count"
#kind = "measured"
#title = "Micro-benchmark xyz, 20 runs"
#date = "2026-01-31"

# ---- Error texts of its own compiler or runtime. Single quotes keep backslashes as they are. A
# pattern needs four ordinary characters in a row: 'E\\d+' has none, 'E\\d+: no such register' has.

#[[signatures]]
#pattern = 'out of local memory: requested (\\d+)'
#signal = "shared_memory_limit"
#title = "The kernel asks for more on-chip memory than a block may have"
#remedy = "Use smaller tiles or fewer pipeline stages."

# ---- What the counters of its profiler mean. `when` names them as the report does; metrics.X and
# facts.X as well. `kernlore hardware check {id}` shows which counters lead to which signals.

#[[rules]]
#id = "xyz-waits-on-memory"
#when = "xyz_stall_memory_cycles / xyz_cycles > 0.4"
#signal = "memory_latency"
#title = "The core waits for memory"
#why = "A second buffer lets the transfer run beside the arithmetic."
# A (documented), B (published) or C (heuristic, the default).
#confidence = "C"

# A counter that is a metric which the built-in rules know: its name, and the factor to its unit.
#[metrics.xyz_dram_beats]
#canonical = "dram_bytes"
#scale = 64

# ---- Toolchain per language: a built-in one by name, or commands that are run without a shell.
# {{source}} the kernel, {{output}} what compile writes, {{input}} the JSON manifest of .npy files
# to read and to write, {{report}} what the profiler writes, {{arch}} the fact compute_capability;
# {{workdir}}, {{hardware}} and {{entry}} (the kernel's function) wherever you need them.

#[toolchains.mylang]
#compile = "xyzcc -O3 --target={{arch}} {{source}} -o {{output}}"
#run = "xyzsim {{output}} --manifest {{input}}"
#profile = "xyzsim --profile={{report}} {{output}} --manifest {{input}}"
# "simulator" when run reports a simulator's time; it is never mixed with wall time. "wall" when the
# program measures its own time and writes it into the report that the manifest names, in time_us.
#timing = "simulator"
#suffix = ".xyz"
# What the program wants a kernel to be called; without it, kernlore_run.
#entry = "main"
# For whoever writes a kernel: how it is launched, what its arguments are.
#interface = '''
#The kernel runs once on each core; in0 .. inN and out are row-major arrays in device memory.
#'''
# A whole kernel that compiles and runs, what it is run with, and a torch expression of its result.
# Inputs first, then weights (role = "weight"), then outputs. `kernlore hardware check` runs it.
#sample = '''
#kernel main(in0, out) {{ ... }}
#'''
#sample_arguments = [
#{{name = "x", role = "input", dtype = "float32", shape = [64, 64]}},
#{{name = "y", role = "output", dtype = "float32", shape = [64, 64]}},
#]
#sample_reference = "x * 2 + 1"

# The names that tensors have in the program, `argument` in the manifest. {{index}} counts from 0,
# {{number}} from 1, {{name}} is the reference's own; single_... is for the only one of its role.
#[toolchains.mylang.arguments]
#input = "in{{index}}"
#weight = "w{{index}}"
#output = "out{{index}}"
#single_output = "out"

# Numbers that the program gets, `scalars` in the manifest: shapes of tensors by name (x.shape[0])
# or by place (input[0], weight[0], output[0]; also .ndim, .elements), constants of the reference.
# An optional one is left out where a problem has no such name.
#[toolchains.mylang.scalars]
#rows = "input[0].shape[0]"
#inverse_columns = "1 / input[0].shape[-1]"
#eps = {{value = "eps", optional = true}}

#[toolchains.mylang.env]
#XYZ_CACHE = "{{workdir}}/cache"
"""

# key -> example value; the keys whose absence hurts most
_EXAMPLES: dict[str, int | float | str] = {
    "memory_bandwidth": 2.0e12,
    "memory_size": 85899345920,
    "compute_units": 64,
    "shared_memory_per_block": 65536,
    "peak_fp32": 5.0e13,
    "peak_matrix_bf16": 4.0e14,
    "compute_capability": "xyz2",
}


def dump_hardware(spec: HardwareSpec) -> str:
    """The hardware.toml that `parse_hardware` reads back as `spec`; empty entries are left out."""
    return tomli_w.dumps(
        _without_empty(
            {
                **_fields(spec),
                "facts": [_without_empty(_fields(fact)) for fact in spec.facts],
                "signatures": [_without_empty(_fields(item)) for item in spec.signatures],
                "rules": [_without_empty(_fields(rule)) for rule in spec.rules],
                "metrics": {name: _fields(alias) for name, alias in spec.metrics.items()},
                "toolchains": {
                    language: _toolchain(toolchain)
                    for language, toolchain in spec.toolchains.items()
                },
            }
        )
    )


def _fields(item: Any) -> dict[str, Any]:
    """Of a dataclass, one level deep."""
    return {entry.name: getattr(item, entry.name) for entry in fields(item)}


def _without_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in table.items()
        if value is not None and (isinstance(value, int | float) or len(value) > 0)
    }


def _toolchain(toolchain: ToolchainSpec) -> dict[str, Any]:
    arguments = [{**_fields(row), "shape": list(row.shape)} for row in toolchain.sample_arguments]
    table = _without_empty(
        {
            **_fields(toolchain),
            "env": dict(toolchain.env),
            "sample_arguments": arguments,
            "arguments": dict(toolchain.arguments),
            "scalars": {name: _scalar(scalar) for name, scalar in toolchain.scalars.items()},
        }
    )
    if toolchain.timing == "wall":
        del table["timing"]
    return table


def _scalar(scalar: ScalarSpec) -> str | dict[str, Any]:
    return _fields(scalar) if scalar.optional else scalar.value


def hardware_template(hardware_id: str) -> str:
    """The commented hardware.toml to start from. Raises InvalidKnowledge for a malformed id."""
    if not HARDWARE_ID.fullmatch(hardware_id):
        raise InvalidKnowledge(
            f"{hardware_id!r} is not a hardware id",
            hint="Use 1-64 of a-z 0-9 . _ -, starting with a letter or digit, like my-chip-2.",
            details={"hardware": hardware_id},
        )
    return _TEMPLATE.format(
        id=hardware_id,
        keys="\n".join(
            f"#   {known.key:26} {known.unit:8} {known.meaning}" for known in fact_keys().values()
        ),
        facts="\n\n".join(_commented_fact(key, value) for key, value in _EXAMPLES.items()),
    )


def _commented_fact(key: str, value: int | float | str) -> str:
    entries = {
        "key": key,
        "value": value,
        "unit": fact_keys()[key].unit,
        "kind": "datasheet",
        "title": "XYZ-2 datasheet",
        "publisher": "My company",
        "locator": "Table 1",
        "date": "2026-01-31",
    }
    lines = ["[[facts]]", *tomli_w.dumps(entries).splitlines()]
    return "\n".join(f"#{line}" for line in lines)
