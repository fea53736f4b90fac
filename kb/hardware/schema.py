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
from functools import lru_cache
from typing import Any, TypeGuard, cast

from kb.hardware.checks import Problems, TableReader, names_of
from kb.hardware.facts import fact_keys, find_unit, mistyped_key
from kb.hardware.rule_schema import read_aliases, read_rules
from kb.hardware.spec import (
    FACT_KINDS,
    HARDWARE_ID,
    HARDWARE_KINDS,
    FactKind,
    FactSpec,
    FactValue,
    HardwareKind,
    HardwareSpec,
    SignatureSpec,
)
from kb.hardware.toolchain_schema import read_toolchains

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
