"""Reads and writes hardware.toml: `parse_hardware` checks a file or the body of a request and
reports all problems at once, each with its place and what to write instead.

Knows no other hardware and no signals, so it does not check that parents and signals exist. Values
of facts are in the unit of their key (`fact_keys.toml`), without prefixes: 3.35e12 B/s. A key that
is not in that list is accepted, unless it looks like a typing error of a known one and does not
start with `x_`. The `toolchains` table is read in `kb.hardware.toolchains`.
"""

from __future__ import annotations

import math
import re
import tomllib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import tomli_w

from kb.errors import InvalidKnowledge, InvalidPredicate
from kb.hardware.facts import fact_keys, find_unit, is_quantity, mistyped_key, value_problem
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
MAX_RULES = 200
MAX_ALIASES = 500
MAX_TERMS = 200
_CACHED_TEXTS = 200  # of about ten thousand characters
_RULE_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SNAKE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LANGUAGE = re.compile(r"[a-z][a-z0-9_+.-]{0,31}")
_NESTED_REPEAT = re.compile(r"\((?:[^()\\]|\\.)*[*+](?:[^()\\]|\\.)*\)(?:[*+]|\{\d*,\d*\})")
_ID_RULE = "1-64 of a-z 0-9 . _ -, starting with a letter or digit"
# Commented facts of the template: the keys whose absence costs most, with example values.
_EXAMPLE_FACTS: dict[str, int | float | str] = {
    "memory_bandwidth": 2.0e12,
    "memory_size": 85899345920,
    "compute_units": 64,
    "shared_memory_per_block": 65536,
    "peak_fp32": 5.0e13,
    "peak_matrix_bf16": 4.0e14,
    "compute_capability": "xyz2",
}


def parse_hardware(toml: str | Mapping[str, Any], origin: str) -> HardwareSpec:
    """Check the text of a hardware.toml, or its parsed table; `origin` names it in errors. Raises
    InvalidKnowledge with all problems."""
    return _parse_text(toml, origin) if isinstance(toml, str) else _parse(toml, Problems(origin))


# A start parses each of the built-in files three times, and every opened catalog once more.
@lru_cache(_CACHED_TEXTS)
def _parse_text(text: str, origin: str) -> HardwareSpec:
    problems = Problems(origin)
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problems.add("(file)", f"not TOML: {error}", "correct the syntax at that line")
        problems.raise_if_any()
        raise
    return _parse(table, problems)


def _parse(table: Mapping[str, Any], problems: Problems) -> HardwareSpec:
    root = TableReader(table, "", problems)
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
        rules=_rules(root),
        metrics=_metrics(root),
        terms=_terms(root),
        toolchains=read_toolchains(root, languages),
    )
    if spec.parent is not None and spec.parent == spec.id:
        root.add("parent", "is the hardware itself", "name the family above it or leave it out")
    problems.raise_if_any()
    return spec


def with_defaults(description: Mapping[str, Any]) -> dict[str, Any]:
    """A description with its optional name and vendor: by default the id and "unknown", for a
    vendor the id."""
    completed = {key: value for key, value in description.items() if value is not None}
    identity = completed.get("id")
    if isinstance(identity, str) and identity:
        completed.setdefault("name", identity)
        is_vendor = completed.get("kind") == "vendor"
        completed.setdefault("vendor", identity if is_vendor else "unknown")
    return completed


def checked_toml(text: str, origin: str) -> dict[str, Any]:
    """The table of a hardware.toml that is valid with the defaults. Raises InvalidKnowledge."""
    try:
        description = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        parse_hardware(text, origin)  # raises with the line
        raise
    parse_hardware(with_defaults(description), origin)
    return description


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
            root.add(
                f"languages[{index}]", f"{language!r} is not a language id", "like triton, cuda"
            )
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
    if stated is not None and stated.canonical == known.unit and is_quantity(value):
        exact = float(value) * stated.factor
        fix = f'value = {int(exact) if exact.is_integer() else exact}, unit = "{known.unit}"'
    reader.add("unit", f"the unit of {key} is {known.unit}, not {unit}", fix)
    return known.unit


def _fact_value(reader: TableReader, key: str) -> FactValue:
    value = reader.raw.get("value")
    if value is None:
        reader.add("value", "missing", "state it, or leave the whole fact out")
        return 0
    problem = value_problem(key, value)
    if problem is None:
        return cast(FactValue, value)
    if problem.out_of_range and not _in_unit_of(reader, key):
        return cast(FactValue, value)  # the wrong unit has its own message
    reader.add("value", problem.reason, problem.fix)
    return value if isinstance(value, str) else 0


def _in_unit_of(reader: TableReader, key: str) -> bool:
    """Whether the unit is right."""
    return reader.raw.get("unit") == fact_keys()[key].unit


def _url(reader: TableReader) -> str:
    url = reader.text("url", limit=2000)
    if url and not re.match(r"https?://[^\s]+$", url):
        reader.add("url", f"{url!r} is not a web address", "start it with https:// or leave it out")
    return url


def _signature(reader: TableReader) -> SignatureSpec:
    reader.only(names_of(SignatureSpec))
    pattern = reader.text("pattern", required=True, limit=MAX_PATTERN)
    _check_pattern(reader, pattern)
    signal = reader.text("signal", required=True, limit=64)
    if signal and not _SNAKE.fullmatch(signal):
        reader.add("signal", f"{signal!r} is not a signal id", "like shared_memory_limit")
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
        reader.add("pattern", f"not a regular expression: {error}", fix)
        return
    if compiled.search("") is not None:
        reader.add("pattern", "matches every line", "name words of the error text")
    if _NESTED_REPEAT.search(pattern):
        reader.add("pattern", "nested repetition, which can take forever", "repeat once: [^)]*")


def _rules(root: TableReader) -> tuple[RuleSpec, ...]:
    rules: list[RuleSpec] = []
    rows = root.tables("rules")
    if len(rows) > MAX_RULES:
        root.add("rules", f"{len(rows)} entries", f"at most {MAX_RULES}")
    for row in rows[:MAX_RULES]:
        rule = _rule(row)
        if rule.id and any(rule.id == other.id for other in rules):
            row.add("id", f"{rule.id!r} is already a rule of this file", "give it another id")
        rules.append(rule)
    return tuple(rules)


def _rule(row: TableReader) -> RuleSpec:
    row.only(names_of(RuleSpec))
    identity = row.text("id", required=True, limit=64)
    if identity and not _RULE_ID.fullmatch(identity):
        row.add("id", f"{identity!r} is not a rule id", "lower case words with -: stalls-on-memory")
    signal = row.text("signal", required=True, limit=64)
    if signal and not _SNAKE.fullmatch(signal):
        row.add("signal", f"{signal!r} is not a signal id", "like latency_bound")
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


def _metrics(root: TableReader) -> Mapping[str, MetricAlias]:
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
            row.add("scale", f"{str(scale)[:20]} is not a factor", "a positive number, like 100")
            scale = 1.0
        canonical = row.text("canonical", required=True, limit=100)
        aliases[str(counter)] = MetricAlias(canonical, float(scale))
    return MappingProxyType(aliases)


def _terms(root: TableReader) -> Mapping[str, str]:
    table = root.table("terms")
    if len(table.raw) > MAX_TERMS:
        root.add("terms", f"{len(table.raw)} entries", f"at most {MAX_TERMS}")
    for term in table.raw:
        if not 1 <= len(term.strip()) <= 40:
            root.add("terms", f"{term[:20]!r} is no term", "use 1 to 40 characters")
    return MappingProxyType({term.strip(): table.text(term, limit=40) for term in table.raw})


def dump_hardware(spec: HardwareSpec) -> str:
    """The hardware.toml of a description, without empty entries; inverse of `parse_hardware`."""
    return tomli_w.dumps(
        _without_empty(
            {
                **_fields(spec),
                "facts": [_without_empty(_fields(fact)) for fact in spec.facts],
                "signatures": [_without_empty(_fields(item)) for item in spec.signatures],
                "rules": [_without_empty(_fields(rule)) for rule in spec.rules],
                "metrics": {name: _fields(alias) for name, alias in spec.metrics.items()},
                "terms": dict(spec.terms),
                "toolchains": {
                    language: _toolchain(toolchain)
                    for language, toolchain in spec.toolchains.items()
                },
            }
        )
    )


def _fields(item: Any) -> dict[str, Any]:
    """The fields of a dataclass, one level deep."""
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
    if toolchain.cost == "cycles":
        del table["cost"]
    return table


def _scalar(scalar: ScalarSpec) -> str | dict[str, Any]:
    return _fields(scalar) if scalar.optional else scalar.value


def hardware_template(hardware_id: str) -> str:
    """A commented hardware.toml to fill in. Raises InvalidKnowledge for a malformed id."""
    if not HARDWARE_ID.fullmatch(hardware_id):
        raise InvalidKnowledge(
            f"{hardware_id!r} is not a hardware id",
            hint="Use 1-64 of a-z 0-9 . _ -, starting with a letter or digit, like my-chip-2.",
            details={"hardware": hardware_id},
        )
    keys = (f"#   {key.key:26} {key.unit:8} {key.meaning}" for key in fact_keys().values())
    examples = (_commented_fact(key, value) for key, value in _EXAMPLE_FACTS.items())
    template = Path(__file__).with_name("template.toml").read_text(encoding="utf-8")
    template = template.replace("{keys}", "\n".join(keys)).replace("{facts}", "\n\n".join(examples))
    return template.replace("{id}", hardware_id)


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


# -- optional extensions of instruction sets
#
# Whether a text, a name or a fact is about one that a machine lacks; read from `extensions.toml`.

MIN_MENTIONS = 2  # of lacking extensions in a text that is about them


@dataclass(frozen=True)
class Extension:
    """An optional extension. `flags` are its flags in the operating system, `words` match its names
    in texts, `names` its names in code; `facts` are keys of facts about it, `*` ending a prefix;
    `macro` tests for it in C; `within` is the extension that it extends, or ""."""

    id: str
    family: str
    flags: frozenset[str]
    words: re.Pattern[str]
    names: re.Pattern[str] | None
    facts: tuple[str, ...] = ()
    macro: str = ""
    within: str = ""

    def mentions(self, text: str) -> int:
        """Number of mentions in a text, by its words or names."""
        named = self.names.findall(text) if self.names is not None else ()
        return len(self.words.findall(text)) + len(named)

    def has_fact(self, key: str) -> bool:
        """Whether a fact with this key is about it."""
        return any(
            key.startswith(f.removesuffix("*")) if f.endswith("*") else f == key for f in self.facts
        )


@cache
def load_extensions() -> tuple[Extension, ...]:
    """The extensions, in the order of `extensions.toml`."""
    rows = tomllib.loads(Path(__file__).with_name("extensions.toml").read_text(encoding="utf-8"))[
        "extensions"
    ]
    return tuple(
        Extension(
            row["id"],
            row["family"],
            frozenset(row["flags"]),
            _words(row["words"]),
            _names(row["names"]) if "names" in row else None,
            tuple(row.get("facts", ())),
            row.get("macro", ""),
            row.get("with", ""),
        )
        for row in rows
    )


def _words(words: Sequence[str]) -> re.Pattern[str]:
    either = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(rf"(?<![\w-])(?:{either})(?![\w-])")


def _names(prefixes: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, prefixes))})\w*")


def extensions_of(lineage: Collection[str], flags: Collection[str]) -> tuple[str, ...]:
    """Ids of the extensions of a processor with these flags."""
    return tuple(e.id for e in _of(lineage) if not e.flags.isdisjoint(flags))


def lacking(lineage: Collection[str], flags: Collection[str]) -> tuple[str, ...]:
    """Ids of the extensions of its family that a processor with these flags lacks; none if the
    flags are unknown."""
    if not flags:
        return ()
    return tuple(e.id for e in _of(lineage) if e.flags.isdisjoint(flags))


def in_words(lacks: Sequence[str]) -> list[str]:
    """The lacking extensions without those that extend another lacking one."""
    return [e.id for e in _named(lacks) if e.within not in lacks]


def macros(lineage: Collection[str], lacks: Collection[str] = ()) -> list[str]:
    """The macros that test for extensions, without those of lacking ones."""
    return [e.macro for e in _of(lineage) if e.macro and e.id not in lacks]


def is_lacking_fact(key: str, lacks: Collection[str]) -> bool:
    """Whether a fact is about a lacking extension."""
    return any(e.has_fact(key) for e in _named(lacks))


def is_lacking_name(name: str, limits: Iterable[str], lacks: Collection[str]) -> bool:
    """Whether a function of this name needs a lacking extension. `limits` are the sentences of its
    card; if they name several extensions, one that is present suffices."""
    if not lacks:
        return False
    absent = _named(lacks)
    if any(e.names is not None and e.names.match(name) for e in absent):
        return True
    text = " ".join(limits)
    needed = any(e.words.search(text) for e in absent)
    return needed and not any(e.words.search(text) for e in _others(absent))


def is_about_lacking(title: str, text: str, lacks: Collection[str]) -> bool:
    """Whether a section is about lacking extensions: its title names one, or its text mentions them
    at least `MIN_MENTIONS` times and more often than others of the family."""
    if not lacks:
        return False
    absent = _named(lacks)
    others = _others(absent)
    if any(e.mentions(title) for e in absent):
        return not any(e.mentions(title) for e in others)
    mentions = sum(e.mentions(text) for e in absent)
    return mentions >= MIN_MENTIONS and mentions > sum(e.mentions(text) for e in others)


def _of(lineage: Collection[str]) -> list[Extension]:
    return [e for e in load_extensions() if e.family in lineage]


def _named(ids: Collection[str]) -> list[Extension]:
    return [e for e in load_extensions() if e.id in ids]


def _others(absent: Sequence[Extension]) -> list[Extension]:
    """The other extensions of the same families."""
    families = {e.family for e in absent}
    return [e for e in load_extensions() if e.family in families and e not in absent]
