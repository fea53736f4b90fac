"""One label or cell of a specification table as strings: its fact, and its value.

Knows nothing about the shape of the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kb.hardware.facts import FactKey, Unit, fact_keys, find_unit

_MARKUP = re.compile(r"\*\*|__|`|&nbsp;|\xa0")
_SIGNS = re.compile(r"[™®©†‡§¶¹²³⁴⁵⁶⁷⁸⁹⁰*]|\[\d+\]_?|\(\d\)$")
_FOOTNOTE = re.compile(r"[†‡§¶*¹²³⁴⁵⁶⁷⁸⁹⁰]\s*$|\[\d+\]_?\s*$")
_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
_LEAD = re.compile(
    r"(?:(?:the|number of|no of|num|total|maximum|max|peak|theoretical|amount of|available) )+"
)
_DTYPE = r"(?:fp64|fp32|tf32|xf32|fp16|bf16|bfloat16|fp8|fp4|int8)"
_FLOAT = re.compile(r"\b(?:float|f) ?(64|32|16|8|4)\b")
_DTYPES = re.compile(rf"({_DTYPE}(?: {_DTYPE})+)")
# Additions to a label, after a comma or in brackets, that do not change its meaning.
_NO_MATTER = re.compile(
    r"(?:hbm\d?e?|gddr\d?x?|lpddr\d?x?|ddr\d|ecc|peak|max(?:imum)?|theoretical|total"
    r"|per (?:chip|device|board|card|accelerator))"
)
_ENGINES = (
    (re.compile(r"\b(?:matrix|tensor)(?: multiply)? (?:engines?|units?|cores?|arrays?)"), "matrix"),
    (re.compile(r"\b(?:vector|simd) (?:engines?|units?|cores?|pipes?|lanes)"), "vector"),
)
_MATRIX_ONLY = {"tf32", "xf32", "fp8", "fp4", "int8"}

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_CELL = re.compile(
    rf"(?P<about>up to|~|≈|approx\.?|about|>|≥|<|≤)?\s*(?P<number>{_NUMBER})"
    r"(?:\s*-?\s*(?P<unit>[A-Za-zµ][\w-]*(?:/[A-Za-z]+)?))?(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_IN_BITS = re.compile(r"(?:.*\W)?(?:VLEN|SVL)\W*", re.IGNORECASE)  # lengths without a unit
Names = tuple[tuple[str, str], ...]  # (the document's name of a part, the usual word for it)
_TEXTS = {
    "compute_capability": re.compile(r"gfx[0-9a-f]{3,4}|sm_\d{2,3}a?|\d{1,2}\.\d"),
    "process_node": re.compile(
        r"(?:TSMC |Samsung |Intel )?\d{1,2} ?(?:nm|N\w*|FFN?)(?:/\d{1,2} ?nm)?", re.IGNORECASE
    ),
}


@dataclass(frozen=True)
class Label:
    """A row or column header. `text` is the label without its unit, `keys` are its facts, mostly
    none or one. `weak`: it may mean something else; `turned`: its words had to be reordered or
    replaced to find the fact."""

    text: str
    unit: str
    keys: tuple[str, ...]
    weak: bool = False
    turned: bool = False


@dataclass(frozen=True)
class CellValue:
    """A value in the unit of its fact, with a confidence between 0 and 1."""

    value: float | int | str
    confidence: float


def tidy(text: str) -> str:
    """A text without markup and footnote signs."""
    return " ".join(_SIGNS.sub("", _MARKUP.sub(" ", text)).split())


@lru_cache(maxsize=4096)
def read_label(text: str, names: Names = ()) -> Label:
    """Read a row or column header. `names` are the document's names of its parts; see
    `scratchpad_names`."""
    cleaned = tidy(text)
    unit = ""
    for bracket in _BRACKETS.finditer(cleaned):
        inside = bracket[1].strip()
        if find_unit(inside) is not None:
            unit = inside
            cleaned = cleaned.replace(bracket[0], " ")
    name, _, last = cleaned.rpartition(",")
    if name and find_unit(last) is not None:
        cleaned, unit = name, last.strip()
    words = cleaned.split()
    # "Peak TFLOPS", "BF16 TFLOPS": the unit is a word. A short word is often something else.
    loose = [word for word in words if len(word) > 2 and _is_measure(word)]
    if not unit and len(loose) == 1:
        unit = loose[0]
        words.remove(unit)
    label = " ".join(words)
    if not unit and _IN_BITS.fullmatch(label):
        unit = "bits"
    keys, weak = _keys(_plain(label))
    if not keys and (of := _MEASURE_OF.fullmatch(_plain(label))):
        keys, weak = _keys(f"{of['name']} {of['measure']}".removesuffix(" number"))
    if not keys and (turned := _turned(label, names)):
        return Label(label, unit, turned, weak=True, turned=True)
    return Label(label, unit, keys, weak)


# "Size of the L1 data cache" is "L1 data cache size", "Number of cores" is "cores".
_MEASURE_OF = re.compile(
    r"(?P<measure>size|capacity|length|width|number|bandwidth|frequency|latency) of"
    r"(?: the| an?| each| all)? (?P<name>.+)"
)


def _plain(text: str) -> str:
    plain = " ".join(re.sub(r"[^a-z0-9%]+", " ", text.lower()).split())
    return _FLOAT.sub(r"fp\1", plain)


def _turned(label: str, names: Names) -> tuple[str, ...]:
    """The fact of a label with a qualifier after a comma or in brackets ("Clock, boost"), with its
    two words in another order, or with a name that the document defines. A qualifier that could
    change the meaning has to be part of a known label."""
    bare, *behind = _BRACKETS.sub(" ", label).split(",")
    parts = [_usual(_plain(part), names) for part in (*behind, *_BRACKETS.findall(label))]
    qualifiers = [part for part in parts if part and not _NO_MATTER.fullmatch(part)]
    name = _usual(_plain(bare), names)
    if len(qualifiers) > 1:
        return ()
    name = _LEAD.sub("", name, count=1) if _LEAD.match(name) else name
    words = [*qualifiers, name] if qualifiers else name.split()
    forms = {name} if not qualifiers else set()
    if len(words) == 2:
        forms |= {" ".join(words), " ".join(reversed(words))}
    keys = {key for form in forms for key in _keys(form)[0]}
    return tuple(keys) if len(keys) == 1 else ()


def _usual(plain: str, names: Names) -> str:
    """The text with the usual words for engines and for names that the document defines."""
    for pattern, word in _ENGINES:
        plain = pattern.sub(word, plain)
    for own, usual in names:
        plain = re.sub(rf"\b{re.escape(own)}\b", usual, plain)
    return plain


def _is_measure(word: str) -> bool:
    unit = find_unit(word)
    return unit is not None and unit.canonical not in ("threads", "bit", "count", "text")


def _keys(plain: str) -> tuple[tuple[str, ...], bool]:
    if not plain:
        return (), False
    dtypes = _DTYPES.search(plain)
    if dtypes is None:
        return _keys_of_label(plain)
    keys: list[str] = []
    for dtype in dtypes[1].split():
        matching, _ = _keys_of_label(plain.replace(dtypes[1], dtype))
        keys += matching
    if _MATRIX_ONLY & set(dtypes[1].split()):
        keys = [re.sub(r"^peak_(?!matrix)", "peak_matrix_", key) for key in keys]
    known = tuple(dict.fromkeys(key for key in keys if key in fact_keys()))
    return known, True


def _keys_of_label(plain: str) -> tuple[tuple[str, ...], bool]:
    forms = (plain, _LEAD.sub("", plain, count=1) if _LEAD.match(plain) else plain)
    strong = [k.key for k in fact_keys().values() if any(k.labels.fullmatch(f) for f in forms)]
    if strong:
        return (tuple(strong), False) if len(strong) == 1 else ((), False)
    weak = [
        known.key
        for known in fact_keys().values()
        if known.weak is not None and any(known.weak.fullmatch(form) for form in forms)
    ]
    return (tuple(weak), True) if len(weak) == 1 else ((), False)


def read_cell(text: str, known: FactKey, units: Sequence[str]) -> CellValue | None:
    """The value of a cell in the unit of the fact, or None for a doubtful cell. `units` are those
    of its labels, the nearest first; a unit in the cell wins."""
    cleaned = " ".join(_MARKUP.sub(" ", text).split())
    if known.unit == "text":
        pattern = _TEXTS.get(known.key)
        fits = pattern is not None and pattern.fullmatch(tidy(cleaned))
        return CellValue(tidy(cleaned), 0.8) if fits else None
    if known.key.startswith("peak_") and _FOOTNOTE.search(cleaned):
        return None  # the footnote mostly says "with sparsity"
    match = _CELL.fullmatch(tidy(cleaned))
    if match is None:
        return None
    stated = _stated_unit(match, known, units)
    if stated is None:
        return None
    unit, rest, inherited = stated
    confidence = 0.9 - (0.1 if inherited else 0.0) - (0.05 if unit.assumed else 0.0)
    confidence -= 0.2 if match["about"] else 0.0
    tail = _tail_doubt(rest, known)
    number = float(match["number"].replace(",", ""))
    value = converted(number, unit, known)
    if tail is None or value is None or not known.plausible(value):
        return None
    exact = int(value) if value == int(value) and abs(value) < 2**53 else value
    return CellValue(exact, round(confidence - tail, 2))


def _stated_unit(
    match: re.Match[str], known: FactKey, units: Sequence[str]
) -> tuple[Unit, str, bool] | None:
    """The unit of a cell, the text after it, and whether the unit is from a label."""
    word, rest = match["unit"] or "", match["rest"].strip()
    own = _count_unit(word, known) or find_unit(word)
    if own is not None:
        return own, rest, False
    rest = f"{word} {rest}".strip()
    for label in units:
        if (unit := find_unit(label)) is not None:
            return unit, rest, True
    if known.unit in ("count", "threads"):
        return Unit(known.unit, 1.0), rest, False
    return None


def _count_unit(word: str, known: FactKey) -> Unit | None:
    """The unit of counts such as `64 K` registers, which are 65,536."""
    if known.unit == "count" and word in ("K", "k"):
        return Unit("count", 1024.0, assumed=True)
    return None


def converted(number: float, unit: Unit, known: FactKey) -> float | None:
    """A number of this unit in the unit of the fact; None if the units do not fit."""
    if unit.canonical == known.unit or {unit.canonical, known.unit} == {"count", "threads"}:
        return number * unit.factor
    if unit.canonical == "B" and known.item_bytes is not None:
        return number * unit.factor / known.item_bytes
    if known.unit == "B" and unit.canonical == "bit" and number % 8 == 0:
        return number / 8
    if known.unit == "bit" and unit.canonical == "B":
        return number * unit.factor * 8
    if known.unit == "op/s" and unit.canonical == "flop/s":
        return number * unit.factor  # "INT8 1979 TFLOPS" is a common mistake
    return None


def _tail_doubt(rest: str, known: FactKey) -> float | None:
    """How much the text after a value lowers its confidence; None if it may change the value."""
    if not rest:
        return 0.0
    if known.tail is not None and known.tail.fullmatch(rest):
        return 0.0
    # "304 (38 per XCD)": the parts of the total stated before the bracket
    bracket = re.fullmatch(r"\(([^()]*)\)", rest)
    if bracket is None or re.search(
        r"spars|each|shared|with|\+|combined", bracket[1], re.IGNORECASE
    ):
        return None
    return 0.1
