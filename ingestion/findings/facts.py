"""Facts proposed from the tables and sentences of a manual: known numbers in their unit, with the
cell or the sentence that states them.

A person accepts or corrects proposals, so a doubtful cell is skipped, not guessed: ranges, lists,
cells with two numbers, values with a footnote that may say "with sparsity", units that do not fit.
Knows the labels and units of `kb/hardware/fact_keys.toml` and no chip; `subjects.py` decides which
hardware a `subject` is.

Prefixes without an `i` follow the convention of `kb/hardware/facts.py` (sizes binary, rates
decimal); `text_value` is the text of the manual.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise

from ingestion.elements import Element, Table
from ingestion.findings.fact_cells import Label, Names, converted, read_cell, read_label, tidy
from kb.hardware.facts import FactKey, Unit, fact_keys, find_unit, mistyped_key

# -- sentences: "each core has 256 KB of scratchpad", "the wavefront size is 64"
#
# A sentence is read only if it clearly states a number: no comparison, example, condition,
# measurement, range or code, and for a fact of the whole chip no part of it (a die, a link, a
# memory channel) and not several chips. Skipped facts are mostly in a table too; a wrong proposal
# costs a person time. The forms of each fact are data (`nouns`, `sentences`, `per`, `bound`,
# `unless` of `kb/hardware/fact_keys.toml`), whose placeholders are filled in here.

MAX_SENTENCE = 400  # characters; longer ones are lists or lost line ends
MAX_LISTED = 2000  # characters of one that is listed as not read
MAX_TEXT = 20_000  # characters of one element
CONFIDENCE = 0.7
_MIN_WORDS = 3
_PAIR = re.compile(r"(?P<label>[^:.=]{2,60})(?::| =) (?P<value>[^:=]{1,40}?)\.?")
_LIMIT = re.compile(r"\b(?:max|maximum|limit|boost|peak|tdp|tbp|power)\b", re.IGNORECASE)

_WORD_NUMBERS = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
}
_ANY_NUMBER = re.compile(rf"\d|\b(?:{'|'.join(_WORD_NUMBERS)})\b", re.IGNORECASE)
_START = r"(?<![\w.,\u00d7*/+$-])"
_DIGITS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_BYTES = r"(?:[kmgtp]i?b|(?:kilo|mega|giga|tera)?bytes?|b)"
_UNITS = {
    "B": rf"{_BYTES}|bits?",
    "B/s": rf"{_BYTES}(?:/s(?:ec(?:ond)?)?|ps)",
    "Hz": r"[kmg]hz",
    "flop/s": r"[gtpe]flops?(?:/s(?:ec)?)?|(?:giga|tera|peta|exa)flops?",
    "op/s": r"[gtpe]ops?(?:/s(?:ec)?)?|[gtpe]flops?(?:/s)?|(?:tera|peta)(?:fl)?ops",
    "W": r"kw|w|watts?",
    "bit": r"bits?|bytes?",
    "threads": r"threads|lanes|work-items",
}
_WORDS = {
    "n": rf"{_START}(?P<number>\d{{1,3}}(?:,\d{{3}})+|\d+|{'|'.join(_WORD_NUMBERS)})"
    r"(?:x|(?P<thousands> ?k))?",
    "chip": r"(?:gpu|chip|device|accelerator|asic|processor|apu|ipu|tpu|npu"
    r"|(?!l\d)[a-z]{1,8}-?\d{1,4}[a-z]{0,3})",
    "unit": r"(?:sm|streaming multiprocessor|(?:[a-z]+ )?multiprocessor|cu|compute unit|xe-? ?core"
    r"|(?:[a-z]+ )?core|(?:[a-z]+ )?tile|tensix|neuroncore|tpc|processing element|dss"
    r"|(?:dual )?sub-?slice)",
    "list": r"(?:(?:up to |at most )?\d[\d.,]* ?[\w/ -]{1,40}?(?:,? and|,? with|,) ){0,6}",
    "has": r"(?:(?:which |that )?(?:has|have|contains?|includes?|provides?|offers?|features?"
    r"|comprises?|consists? of|(?:is|are) (?:equipped with|composed of)|with|integrates?|houses?))",
}
_ADJECTIVES = (
    r"(?:(?:the|its|a|total|dedicated|on-chip|on-board|onboard|on-package|high-speed|fast|local"
    r"|attached|peak|theoretical|aggregate|aggregated|maximum|vector|data|shared|raw|available"
    r"|usable|unified|fused|board|global|level) ){0,3}"
)
_AMONG = r"(?: (?:of|for|in|on|per) (?:[\w'-]+ ){0,4}?[\w'-]+)?"
_VERB = (
    r"(?:,? (?:is|are|of|at|equals|totals|amounts to|has|holds|reaches|is fixed at|is set to)"
    r"|\s?[:=])"
    r" (?:an? |the )?(?:(?:total|maximum|peak|size|capacity|bandwidth|typical|theoretical) )*"
    r"(?:of )?(?:exactly |equal to |up to )?"
)
_FURTHER = r"(?:spaces?|regions?|utili[sz]ation|traffic)\b"  # "256 KB of L1 space" of something
_FORMS = (
    rf"{{q}}(?: of)? {_ADJECTIVES}{{noun}}(?![\w/])(?! {_FURTHER})",
    rf"(?<![\w/]){{noun}}{_AMONG}{_VERB}{{q}}",
    r"(?<![\w/]){noun} \(\s?{q}\s?[),;]",
)


@cache
def _skip() -> re.Pattern[str]:  # 40 ms, at the first sentence
    return re.compile(
        r"\b(?:for (?:example|instance)|e\.g|i\.e|suppose|assum\w*|let us|let's|say|imagine"
        r"|consider|if|when|whenever|unless|would|could|might|should|depend\w*|configur\w*"
        r"|in this case"
        r"|than|compar\w*|versus|vs|unlike|whereas|previous\w*|predecessors?|earlier|later|older|newer"
        r"|increas\w*|decreas\w*|reduc\w*|improv\w*|faster|slower|twice|doubled|doubles"
        r"|(?:double|half)(?![- ]precision)|halves|instead"
        r"|rather|except|respectively|either|chang\w*|rais\w*|measur\w*|achiev\w*|observ\w*|attain\w*"
        r"|obtain\w*|benchmark\w*|sustain\w*|estimat\w*|realistic|not|cannot|no|nor|never|without|only"
        r"|fits?|fitting|exceed\w*|exhaust\w*|kernels?|workloads?|programs?|applications?"
        r"|tensors? of|matri(?:x|ces) of|arrays?|messages?|packets?|transfers? of|virtual"
        r"|emulat\w*|simulat\w*"
        r"|future|planned|disabled|reserved|minimum|legacy|command|option|flag|default|copy|copies"
        r"|(?:sub-?)?problem|disk|ssd|requir\w*|need\w*|recommend\w*|bottleneck\w*|modes?)\b|n't\b|\?$",
        re.IGNORECASE,
    )


# "On one X1 with 2 TFLOPS FP64 peak performance, the benchmark reached 80 GFLOPS": only the part
# before the benchmark is read, for a person to judge.
UNCLEAR_SUBJECT = 0.5  # confidence below which a person judges what the sentence is about
_RUN = re.compile(
    r"(?P<device>(?:On|With|For) (?=.*?\b(?:peak|theoretical)\b).+?"
    r"(?<!\bby)(?<!\bin)(?<!\bof)(?<!\bfor))"
    r",? (?:the|our|an?) (?:[\w-]+ ){0,2}(?:benchmark|kernel|application|program|workload|code)s?"
    r" (?:has |have |can )?(?:reach|achiev|attain|obtain|sustain|deliver|run|ran|get|got)\w*\b"
)
_IN_MODE = re.compile(r"^(?:In|Under) [A-Z]{2,5}\b")  # "In CPX each device has ..."
_CODE = re.compile(r"[{};$\\|]|::|->|==|\w\([^)]*\)|--\w|\b\w+_\w+|</?\w+>|https?:")
_BEFORE = re.compile(
    r"(?:about|approx(?:imately|\.)?|around|roughly|nearly|almost|over|more than|less than|at least"
    r"|another|additional|extra|first|last|low|lower|upper|high|next|remaining|every|~|≈|>|<|≥|≤"
    r"|between|from|minimum(?: of)?|each|per|entire"
    r"|\d[\w.]* ?(?:x|\u00d7|\*|,|or|and|to|-|\u2013|/|\+)?|,\s?or)\s*$",
    re.IGNORECASE,
)
_BOUND = re.compile(r"(?:up to|at most|as much as|maximum of|limit of)\s*(?:an? )?$", re.IGNORECASE)
_AFTER = re.compile(
    r"\s*(?:(?:,|or|and|to|-|\u2013|/|x|\u00d7|\*|\+|,\s?or|,\s?and)\s*\d"
    r"|(?:or|and) (?:more|less|higher|lower)"
    r"|per (?:clock|cycle)|/ ?(?:clk|clock|cycle)|each\b|-?aligned|apart|[+*\u00d7])",
    re.IGNORECASE,
)
_PART_NAMES = (
    r"dies?|gcds?|xcds?|ccds?|iods?|chiplets?|(?:sub-?)?slices?|channels?|stacks?|partitions?"
    r"|links?|shader (?:engines?|arrays?)|clusters?|gpcs?|tpcs?|nodes?|systems?|\w*servers?|pods?"
    r"|racks?|instances?|vms?|quadrants?|controllers?|ports?|hops?|ranks?|banks?|box(?:es)?"
    r"|machines?|hosts?|trays?|sections?|regions?|lanes?|numa"
    r"|\w*engines?|pipes?|pipelines?"
)
_WITHIN = (
    r"tiles?|sms?|cus?|compute units?|multiprocessors?|units?|engines?|blocks?|threads?"
    r"|warps?|wavefronts?|waves?|simds?|\w*cores?(?:-v\d+)?|tensix|elements?|cycles?|clocks?|batch"
)
_PART = re.compile(
    rf"\b(?:{_PART_NAMES})\b"
    rf"|\b(?:per|each|every|single|individual|private|own)[ -](?:[\w-]+ )?(?:{_WITHIN})\b"
    # a part is the subject of the sentence: "the vector unit delivers ..."
    rf"|\b(?:{_WITHIN}) (?:has|have|delivers?|provides?|offers?|features?|supports?|contains?)\b",
    re.IGNORECASE,
)
_SEVERAL = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|sixteen|multiple|several|both|\d+)x? (?:[a-z]+ )?"
    r"(?:gpus|devices|accelerators|chips|cards|processors|asics|ipus|tpus|modules|apus|boards)\b",
    re.IGNORECASE,
)
_BRACKET = re.compile(r"\([^()]*\)")
_TOTAL = re.compile(
    r"\b(?:in total|a total(?: of)?"
    r"|total (?:[\w-]+ ){1,4}of(?: [\d.,]+ ?\w+ and (?:[\w-]+ ){1,3}of)?)\s*$",
    re.IGNORECASE,
)
_SUMMED = re.compile(r"\b(?:stacks?|dies|channels|controllers)\b", re.IGNORECASE)
_PER_OTHER = re.compile(
    r"\s*\(?(?:per|for each|in each|/) ?(?!(?:the )?(?:gpu|chip|device|accelerator|asic|processor"
    r"|package|card|board|apu|ipu|tpu|second|s)\b)",
    re.IGNORECASE,
)
_SEVERAL_UNITS = re.compile(
    r"\b(?:two|three|four|pairs? of|\d+) (?:neighbou?ring |adjacent )?(?:cus|sms|cores|tiles"
    r"|compute units|multiprocessors)\b",
    re.IGNORECASE,
)

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ROLE = re.compile(r":[\w:+-]+:`([^`<]*?)\s*(?:<[^`>]*>)?`")
_REFERENCE = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{1,2}")
_FOOTNOTE = re.compile(r"\[\^?\w{1,8}\]_?|\[#\w*\]_")
_SIGNS = re.compile(r"\*\*|``|[`™®©†‡“”\"]|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|&nbsp;|\xa0")
_TYPE = re.compile(r"\s\(\w+<\w+>\)")  # of the quantity before it: (vector<32xf32>)
_ITEM = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+•]|\d+[.)])\s)")
_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(\[A-Z])|(?<=[.!?]\))\s+(?=[A-Z])")
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s+")


@dataclass(frozen=True)
class Statement:
    """One number of a sentence. `quantity` is the number with its unit as written, `sentence` is
    without markup, `confidence` between 0 and 1, `place` that of the number in the sentence."""

    key: str
    value: float | int
    unit: str
    quantity: str
    sentence: str
    confidence: float
    place: int = 0


def statements(text: str, lead: str = "") -> list[Statement]:
    """The statements of a paragraph or list, in reading order. `lead` is the text before a list:
    "Each chip contains:" is read with each item."""
    stated: list[Statement] = []
    before = _lead_of(lead)
    for block in _ITEM.split(text[:MAX_TEXT]):
        if block.lstrip().startswith(("|", "+-", "..", ">>>", "$", "#")):
            continue
        is_item = _BULLET.match(block) is not None
        for number, sentence in enumerate(_sentences(block)):
            joined = f"{before} {sentence}" if before and is_item and number == 0 else ""
            stated += read_sentence(sentence) or (read_sentence(joined) if joined else ())
        if not is_item:
            before = _lead_of(block)
    return stated


def _lead_of(text: str) -> str:
    """The last sentence of a text, without its colon, if it ends with one; else empty."""
    if not text.rstrip().endswith(":"):
        return ""
    *_, last = _sentences(text[-MAX_SENTENCE:])
    return last.rstrip(" :")


def _sentences(block: str) -> list[str]:
    """The sentences of a paragraph or list item, without markup and line ends."""
    cleaned = _BULLET.sub("", block)
    for pattern in (_LINK, _ROLE, _REFERENCE):
        cleaned = pattern.sub(r"\1", cleaned)
    cleaned = _TYPE.sub("", _SIGNS.sub("", _FOOTNOTE.sub("", cleaned)))
    cleaned = " ".join(cleaned.split())
    return [sentence.strip() for sentence in _END.split(cleaned)]


@lru_cache(maxsize=4096)
def read_sentence(sentence: str) -> tuple[Statement, ...]:
    """The statements of one sentence; none if it is doubtful."""
    if len(sentence) > MAX_SENTENCE or sentence.count(" ") < _MIN_WORDS - 1:
        return ()
    run = _RUN.match(sentence)
    stated = run["device"] if run else sentence
    if not _ANY_NUMBER.search(stated) or _skip().search(stated) or _CODE.search(stated):
        return ()
    if _IN_MODE.match(sentence):
        return ()
    if run:
        return tuple(replace(s, confidence=UNCLEAR_SUBJECT) for s in _read_forms(stated, sentence))
    if pair := _read_pair(sentence):
        return pair
    found = _read_forms(sentence, sentence)
    keys = {statement.key for statement in found}
    listed = (s for s in _read_items(sentence) if s.key not in keys)
    return tuple(sorted((*found, *listed), key=lambda s: s.place))


# "The X1 has 6 MB of L2 cache, 16 GB of HBM2 and 900 GB/s of memory bandwidth": words of an item,
# such as "cache", forbid no other item. A person judges these.
_ITEM_START = re.compile(
    rf"(?<!(?<![A-Za-z])\d)(?<!\bor)(?:,? (?:and|with)|,) "
    rf"(?=(?:{_DIGITS})[ -]?(?:[kmgtp]i?b|[kmg]hz|[gtpe]fl?ops?|[kmgtp]i?b/s|w|watts|cores)\b)",
    re.IGNORECASE,
)


def _read_items(sentence: str) -> Iterator[Statement]:
    """The facts of an enumeration about the whole chip. Of quantities in one unit each must name
    another fact: in "the two have 16 GB and 32 GB of HBM" one of them is of something else."""
    starts = [0, *(match.end() for match in _ITEM_START.finditer(sentence)), len(sentence)]
    if len(starts) < 3 or _PART.search(sentence) or _SEVERAL.search(sentence):
        return
    items = [(a, sentence[a:b].rstrip(" ,.")) for a, b in pairwise(starts)]
    found = [(start, _read_forms(item, item)) for start, item in items]
    stated = [s for _, statements in found for s in statements]
    written = Counter(unit.lower() for unit in _QUANTITY.findall(sentence))
    read = Counter(unit.lower() for s in stated for unit in _QUANTITY.findall(s.quantity))
    keys = Counter(s.key for s in stated)
    for start, statements in found:
        for s in statements:
            units = _QUANTITY.findall(s.quantity)
            if keys[s.key] == 1 and all(read[u.lower()] == written[u.lower()] for u in units):
                yield replace(
                    s, sentence=sentence, confidence=UNCLEAR_SUBJECT, place=s.place + start
                )


_QUANTITY = re.compile(rf"(?:{_DIGITS})[ -]?([a-z]+(?:/s)?)", re.IGNORECASE)


def _read_forms(text: str, sentence: str) -> tuple[Statement, ...]:
    plain = re.sub(r" per second\b", "/s", text)
    claims: dict[tuple[int, int], list[Statement]] = {}
    for known in fact_keys().values():
        for span, stated in _read_key(known, plain, sentence):
            claims.setdefault(span, []).append(stated)
    claims |= {(rate.place, n): [rate] for n, rate in enumerate(_rates(plain, sentence))}
    alone = [rows[0] for _, rows in sorted(claims.items()) if len({r.key for r in rows}) == 1]
    values: dict[str, set[float]] = {}
    for stated in alone:
        values.setdefault(stated.key, set()).add(stated.value)
    unique = {s.key: s for s in reversed(alone) if len(values[s.key]) == 1}
    return tuple(s for s in alone if unique.get(s.key) is s)


def _read_pair(sentence: str) -> tuple[Statement, ...]:
    """A line that is a label and a value: "Shared memory per SM: 48 KB"."""
    pair = _PAIR.fullmatch(sentence)
    label = read_label(pair["label"]) if pair else None
    if pair is None or label is None or len(label.keys) != 1 or label.weak:
        return ()
    known = fact_keys()[label.keys[0]]
    limited = _LIMIT.search(pair["label"]) or not known.bound
    reading = read_cell(pair["value"], known, [label.unit] if label.unit else [])
    # "Threads per block: 256" is mostly the launch of a kernel.
    if reading is None or isinstance(reading.value, str) or not limited:
        return ()
    if known.unless is not None and known.unless.search(pair["label"]):
        return ()
    if known.per == "chip" and _PART.search(pair["label"]):
        return ()
    confidence = min(CONFIDENCE, reading.confidence)
    text = pair["value"]
    return (Statement(known.key, reading.value, known.unit, text, sentence, confidence),)


# "380 INT8 TOPS", "190 FP16/BF16/TF32 TFLOPS", "354 TFLOPS of INT8". A rate that a matrix-only type
# shares is that of the matrix units; FP16 and BF16 alone may be that of either unit, and are left.
_DATA_TYPE = r"(?:c?fp8|tf32|xf32|b?fp?16|bfloat16|fp32|fp64|int8|(?:mx|nv)?fp4)"
_TYPES = rf"(?P<{{}}>(?:dense )?{_DATA_TYPE}(?: ?/ ?{_DATA_TYPE}){{{{0,6}}}})"
_RATE = re.compile(
    rf"{_START}(?P<number>{_DIGITS}) ?(?:{_TYPES.format('before')} )?"
    rf"(?P<unit>[gtpe](?:fl)?ops?(?:/s)?)(?!\w)"
    rf"(?: (?:of|in|for|at|with) {_TYPES.format('after')}(?!\w))?",
    re.IGNORECASE,
)
_OF_MATRIX = frozenset(("tf32", "fp8", "int8", "fp4"))
_HEDGED = re.compile(
    r"(?:\b(?:about|around|roughly|nearly|almost|over|than|up to|at least|another)|[~≈<>≤≥])\s*$",
    re.IGNORECASE,
)
RATE_CONFIDENCE = 0.6


def _read_rates(plain: str) -> Iterator[tuple[str, re.Match[str]]]:
    """The keys of the rates of the whole chip by data type, and the match of each."""
    if re.search("spars", plain, re.IGNORECASE):
        return
    for match in _RATE.finditer(plain):
        before, after = plain[: match.start()], plain[match.end() :]
        outside = f"{before} # {after}"
        if _HEDGED.search(before) or _SEVERAL.search(before) or _PER_OTHER.match(after):
            continue
        if _PART.search(outside):
            continue
        types = _types_of(match["before"] or match["after"] or "")
        matrix = _OF_MATRIX & {*types} or re.search(
            r"matri|tensor|dense", plain[: match.end()], re.I
        )
        for name in types:
            if matrix or name not in ("fp16", "bf16"):
                yield f"peak_{'matrix_' if matrix else ''}{name}", match


def _rates(plain: str, sentence: str) -> Iterator[Statement]:
    for key, match in _read_rates(plain):
        known, unit = fact_keys().get(key), find_unit(match["unit"])
        if known is None or unit is None:
            continue
        value = converted(float(match["number"].replace(",", "")), unit, known)
        if value is not None and known.plausible(value):
            place = match.start("number")
            quantity = plain[place : match.end()]
            yield Statement(key, value, known.unit, quantity, sentence, RATE_CONFIDENCE, place)


def _types_of(text: str) -> list[str]:
    parts = text.lower().removeprefix("dense ").split("/")
    names = (part.strip() for part in parts if part.strip())
    usual = {"cfp8": "fp8", "xf32": "tf32", "bfloat16": "bf16", "mxfp4": "fp4", "nvfp4": "fp4"}
    return [usual.get(name, name.replace("bfp16", "bf16")) for name in names]


def _read_key(
    known: FactKey, plain: str, sentence: str
) -> Iterator[tuple[tuple[int, int], Statement]]:
    """The numbers of forms of this fact, by their place in the sentence."""
    if not _about(known, plain):
        return
    for form in _forms(known.key):
        for match in form.finditer(plain):
            if not _unhedged(match, known, plain):
                continue
            reading = _value(match, known)
            if reading is not None:
                value, assumed = reading
                confidence = round(CONFIDENCE - (0.05 if assumed else 0.0), 2)
                quantity = plain[match.start("number") : _end(match)]
                place = match.start("number")
                stated = Statement(
                    known.key, value, known.unit, quantity, sentence, confidence, place
                )
                yield match.span("number"), stated


@cache
def _forms(key: str) -> tuple[re.Pattern[str], ...]:
    """The compiled forms of a fact; none for facts that are text."""
    known = fact_keys()[key]
    units = _UNITS.get(known.unit, "x")
    quantity = rf"{_START}(?P<number>{_DIGITS})[ -]?(?P<unit>{units})(?![\w/])"
    forms = [*known.sentences]
    forms += [form.replace("{noun}", f"(?:{noun})") for noun in known.nouns for form in _FORMS]
    words = {"q": quantity, **_WORDS}
    patterns = []
    for form in forms:
        for name, pattern in words.items():
            form = form.replace(f"{{{name}}}", pattern)
        patterns.append(re.compile(rf"(?<!\w){form}(?!\w)", re.IGNORECASE))
    return tuple(patterns)


def _about(known: FactKey, plain: str) -> bool:
    """Whether the sentence can be about this fact."""
    if not known.nouns and not known.sentences:
        return False
    if known.unless is not None and known.unless.search(plain):
        return False
    if known.per == "unit":
        return bool(_per_unit().search(plain)) and not _SEVERAL_UNITS.search(plain)
    return True


@cache
def _per_unit() -> re.Pattern[str]:
    return re.compile(rf"\b(?:per|each|every|an?|one|single)[ -]{_WORDS['unit']}\b", re.IGNORECASE)


def _unhedged(match: re.Match[str], known: FactKey, plain: str) -> bool:
    """Whether the number is exact: not "about", "more than", a range or per something else."""
    before, after = plain[: match.start("number")], plain[_end(match) :]
    if _BEFORE.search(before) or (not known.bound and _BOUND.search(before)):
        return False
    if _AFTER.match(after) and not _other_quantity(after, known):
        return False
    return known.per != "chip" or (not _PER_OTHER.match(after) and _of_the_whole(match, plain))


def _other_quantity(after: str, known: FactKey) -> bool:
    """Whether the next number has another unit: "at 3.35 TB/s and 700 W"."""
    following = re.match(rf"(?:,| and|, and) (?:{_DIGITS})[ -]?([A-Za-z/]+)", after)
    unit = find_unit(following[1]) if following else None
    return unit is not None and unit.canonical != known.unit


def _of_the_whole(match: re.Match[str], plain: str) -> bool:
    """Whether the value is that of the whole chip, not of a part of it or of several chips."""
    before, after = plain[: match.start("number")], plain[_end(match) :]
    outside = _BRACKET.sub(" ", before) + " # " + _BRACKET.sub(" ", after)
    if _SEVERAL.search(outside):
        return False
    unit = match.groupdict().get("unit")
    if unit and re.search(rf"\d[ -]?{unit}\b(?!/)", outside, re.IGNORECASE):
        return False  # "1 MB in this product and 2 MB in that"
    if _TOTAL.search(before):  # "a total of 120 units, organized in eight clusters"
        if not unit:
            return not re.match(r"(?: [\w-]+){1,3} (?:per|in each|on each) ", after, re.IGNORECASE)
        outside = _SUMMED.sub(" ", outside)  # "four stacks for a total of 32 GB"
    return not _PART.search(outside)


def _end(match: re.Match[str]) -> int:
    groups = match.groupdict()
    return max(match.end(name) for name in ("number", "unit", "thousands") if groups.get(name))


def _value(match: re.Match[str], known: FactKey) -> tuple[float | int, bool] | None:
    """The value in the unit of the fact, and whether its prefix follows the convention."""
    groups = match.groupdict()
    written = groups["number"].lower()
    number = float(_WORD_NUMBERS.get(written) or written.replace(",", ""))
    unit: Unit | None = Unit(known.unit, 1024.0 if groups.get("thousands") else 1.0)
    if groups.get("unit"):
        unit = find_unit(groups["unit"])
    number *= float(groups.get("elements") or 1)  # "32-element vectors for 32-bit data"
    value = converted(number, unit, known) if unit is not None else None
    if unit is None or value is None or not known.plausible(value):
        return None
    return (int(value) if value.is_integer() and value < 2**53 else value), unit.assumed


# -- tables

_SUBJECT = re.compile(
    r"(?:\w+ ){0,2}(?:model|gpus?|products?|name|devices?|chips?|accelerators?|sku|part|card"
    r"|processor|architecture|generation|variant|instance(?: type)?|target)"
    r"(?: name| model| family)?",
    re.IGNORECASE,
)
_GENERIC = re.compile(
    r"(?:values?|spec(?:ification)?s?|details?|description|parameters?|propert(?:y|ies)|features?"
    r"|metrics?|items?|units?|capacity|size|amount|count|maximum|max|typical|peak|total|limits?"
    r"|performance)?",
    re.IGNORECASE,
)
_NOT_A_VALUE = re.compile(
    r"\b(?:notes?|comments?|remarks?|examples?|default|sources?|references?|improvement|factor"
    r"|ratio|speed ?up|measured|achieved|actual|observed|utili[sz]ation|efficiency|scaling"
    r"|min(?:imum)?|sparse|sparsity)\b|%|/ ?(?:clock|clk|cycle)|per (?:clock|clk|cycle)",
    re.IGNORECASE,
)
_UNIT_HEAD = re.compile(r"units?", re.IGNORECASE)
MIN_CONFIDENCE = 0.4
KEYED_CONFIDENCE = 0.6  # of a fact whose key its author chose
_NUMBERED = re.compile(r"[~<>≤≥≈]? ?\d")
MAX_ROW = 100  # characters of a quoted row
MAX_QUOTED = 200  # characters of a quoted sentence


@dataclass(frozen=True)
class ProposedFact:
    """One number (or short text) that a table or a sentence seems to state.

    `confidence` is between 0 and 1. `subject` is the chip or variant that the row or column of a
    table names, empty for a table about one chip and for sentences. `cell` is (row, column) in the
    body of the table; `sentence` is the source of a fact in words, `place` that of the number in
    it. `element` is the index of either among the elements that were read, `section` the heading
    path of these elements.
    """

    key: str
    value: float | int | str
    unit: str
    text_value: str
    confidence: float
    subject: str = ""
    caption: str | None = None
    row_label: str = ""
    column_label: str = ""
    cell: tuple[int, int] | None = None
    sentence: str = ""
    place: int = 0
    element: int = 0
    section: tuple[str, ...] = ()
    page_index: int | None = None
    page_label: str | None = None

    @property
    def locator(self) -> str:
        """The place of the fact for a reader: page, table, row, column, or sentence."""
        page = self.page_label or (str(self.page_index + 1) if self.page_index is not None else "")
        if self.sentence:
            quoted = _quoted(self.sentence, self.place)
            return f"p. {page}, {quoted!r}" if page else repr(quoted)
        parts = [f"p. {page}" if page else "", self.caption or "table"]
        parts += [f"row {self.row_label!r}" if self.row_label else ""]
        parts += [f"column {self.column_label!r}" if self.column_label else ""]
        return ", ".join(part for part in parts if part)


def _quoted(sentence: str, place: int) -> str:
    """A sentence, of a long one the part with the number at this place."""
    start = max(0, min(place - MAX_QUOTED // 2, len(sentence) - MAX_QUOTED))
    if start:
        start = sentence.find(" ", start) + 1
    shown = textwrap.shorten(sentence[start:], MAX_QUOTED, placeholder=" ...")
    return f"... {shown}" if start else shown


def propose_facts(
    elements: Sequence[Element], names: Names = (), section: tuple[str, ...] = ()
) -> list[ProposedFact]:
    """Facts from every table and sentence among the elements of a document or section, in reading
    order. `names` are the document's names of its parts."""
    proposed: list[ProposedFact] = []
    lead = ""
    for index, element in enumerate(elements):
        box = element.boxes[0] if element.boxes else None
        page = (box.page_index, box.page_label) if box else (None, None)
        proposed += (
            replace(fact, element=index, section=section, page_index=page[0], page_label=page[1])
            for fact in _facts_of(element, lead, names)
        )
        lead = element.text if element.kind == "text" else ""
    return proposed


def _facts_of(element: Element, lead: str, names: Names) -> Iterable[ProposedFact]:
    if element.table is not None:
        return _table_facts(element.table, names, _lead_of(lead))
    if element.kind not in ("text", "list"):
        return ()
    return (
        ProposedFact(
            s.key, s.value, s.unit, s.quantity, s.confidence, sentence=s.sentence, place=s.place
        )
        for s in statements(element.text, lead)
    )


def _table_facts(table: Table, names: Names, lead: str = "") -> list[ProposedFact]:
    """Read a table by rows or by columns, depending on which has more labels of known facts; a
    table with equally many has only keyed facts. Cells in words are read as sentences, also behind
    the `lead` above the table ("Each chip consists of")."""
    if not table.rows:
        return []
    labelled = _labelled_facts(table, names)
    known = {(fact.key, fact.cell[0]) for fact in labelled if fact.cell}
    worded = [f for f in _worded_facts(table, lead) if f.cell and (f.key, f.cell[0]) not in known]
    return [*labelled, *_without_contradictions(worded)]


def _worded_facts(table: Table, lead: str) -> Iterator[ProposedFact]:
    """The facts of cells such as "32 GiB of device memory, with 820 GB/s of bandwidth", in tables
    of one column of values."""
    if len(table.rows[0]) > 2:
        return
    heads = _headers(table)
    for r, row in enumerate(table.rows):
        cell = tidy(row[-1])
        if cell.count(" ") < _MIN_WORDS:
            continue
        alone = statements(cell)
        keys = {s.key for s in alone}
        joined = statements(f"{lead} {cell}") if lead else ()
        for s in (*alone, *(s for s in joined if s.key not in keys)):
            fact = ProposedFact(s.key, s.value, s.unit, s.quantity, s.confidence)
            yield _located(fact, table, (r, len(row) - 1), "", (row[0], heads[-1]))


def _labelled_facts(table: Table, names: Names) -> list[ProposedFact]:
    heads = _headers(table)
    columns = _without_doubles([read_label(head, names) for head in heads])
    rows = _without_doubles([read_label(row[0] if row else "", names) for row in table.rows])
    by_column = sum(bool(label.keys) for label in columns[1:])
    by_row = sum(bool(label.keys) for label in rows)
    facts: Iterable[ProposedFact] = ()
    if by_row > by_column:
        facts = _rows_are_facts(table, rows, heads)
    elif by_column > by_row:
        facts = _columns_are_facts(table, columns, heads)
    known = _without_contradictions([fact for fact in facts if fact.confidence >= MIN_CONFIDENCE])
    return [*known, *_keyed_facts(table, heads, {fact.key for fact in known})]


def _without_doubles(labels: Sequence[Label]) -> list[Label]:
    """Drop the keys of a label that only may mean a fact ("Memory bandwidth (LPDDR5)", "Clock
    frequency") if another label of the table names that fact ("Memory bandwidth", "Boost clock").
    """
    outright = {k for label in labels if not (label.turned or label.weak) for k in label.keys}
    weak = {key for label in labels if not label.turned for key in label.keys}

    def is_double(label: Label) -> bool:
        clearer = weak if label.turned else outright if label.weak else frozenset()
        return bool(clearer & set(label.keys))

    return [replace(label, keys=()) if is_double(label) else label for label in labels]


def _headers(table: Table) -> list[str]:
    """One text per column: the header rows from top to bottom, repeated cells once."""
    width = len(table.rows[0])
    stacked = [[row[i] for row in table.header if i < len(row)] for i in range(width)]
    return [" ".join(dict.fromkeys(cell for cell in cells if cell)) for cells in stacked]


def _rows_are_facts(
    table: Table, labels: Sequence[Label], heads: Sequence[str]
) -> Iterator[ProposedFact]:
    """A property per row; each other column is a chip, or the only column of values."""
    unit_column = next((i for i, head in enumerate(heads) if _UNIT_HEAD.fullmatch(head)), 0)
    for r, (row, label) in enumerate(zip(table.rows, labels, strict=True)):
        stated = row[unit_column] if unit_column else ""
        for c in range(1, len(heads)):
            if c == unit_column or _NOT_A_VALUE.search(heads[c]):
                continue
            head = read_label(heads[c])
            subject = "" if head.unit or _GENERIC.fullmatch(head.text) else tidy(heads[c])
            units = (stated, label.unit, head.unit)
            for fact in _cell_facts(row[c], label, units):
                yield _located(fact, table, (r, c), subject, (row[0], heads[c]))


def _columns_are_facts(
    table: Table, labels: Sequence[Label], heads: Sequence[str]
) -> Iterator[ProposedFact]:
    """A chip per row, a property per column; none without a column that names the chip."""
    named = [i for i, head in enumerate(heads) if _SUBJECT.fullmatch(tidy(head))]
    if not named and heads[0]:
        return
    subject_column = named[0] if named else 0
    for r, row in enumerate(table.rows):
        subject = tidy(row[subject_column])
        for c, label in enumerate(labels) if subject else ():
            if c == subject_column or _NOT_A_VALUE.search(heads[c]):
                continue
            for fact in _cell_facts(row[c], label, (label.unit,)):
                yield _located(fact, table, (r, c), subject, (row[subject_column], heads[c]))


def _cell_facts(cell: str, label: Label, units: Sequence[str]) -> Iterator[ProposedFact]:
    """The facts of a cell: one for each key of its label that the cell has a value of."""
    for key in label.keys:
        known = fact_keys()[key]
        read = read_cell(cell, known, [unit for unit in units if unit])
        if read is not None:
            confidence = round(read.confidence - (0.3 if label.weak else 0.0), 2)
            yield ProposedFact(key, read.value, known.unit, cell, confidence)


def _located(
    fact: ProposedFact,
    table: Table,
    cell: tuple[int, int],
    subject: str,
    labels: tuple[str, str],
) -> ProposedFact:
    """The fact with its place; `labels` are those of its row and column."""
    row, column = map(tidy, labels)
    return replace(
        fact,
        subject=subject,
        caption=table.caption,
        row_label=row,
        column_label=column,
        cell=cell,
    )


def _without_contradictions(facts: Sequence[ProposedFact]) -> list[ProposedFact]:
    """Drop the facts of a subject and key with two values in one table, which was misread."""
    groups: dict[tuple[str, str], list[ProposedFact]] = {}
    for fact in facts:
        groups.setdefault((fact.key, fact.subject.lower()), []).append(fact)
    agreed = [group[0] for group in groups.values() if len({fact.value for fact in group}) == 1]
    return sorted(agreed, key=lambda fact: fact.cell or (0, 0))


_LIMITS = re.compile(
    r"\b(?:limit(?:s|ations?)?|(?:specification|feature|resource|propert(?:y|ie)|data ?sheet)s?)\b",
    re.IGNORECASE,
)
_WORDED = re.compile(r"[A-Z][^_`\[\]]*$")  # a label in words, no name in code
_LISTED = re.compile(r"(?P<label>[^:=]{3,60}?)(?: ?[:=]| is| are)[ \t]+(?P<value>[^:=]{1,60})")


def unread_rows(
    elements: Sequence[Element], facts: Sequence[ProposedFact], path: Sequence[str] = ()
) -> list[str]:
    """Label and cells of rows with a number from which no fact was proposed, in tables with a
    property per row, and such items of lists under headings about limits. `facts` are those of the
    same elements, `path` their headings. A table without a column of units, without any fact and
    without a word like limit or feature may list anything, and is skipped."""
    unread: list[str] = []
    limits = any(_LIMITS.search(title) for title in path[-2:])
    for index, element in enumerate(elements):
        table = element.table
        if table is None or not table.rows:
            if limits and element.kind in ("text", "list"):
                stated = {fact.sentence for fact in facts if fact.element == index}
                unread += _unread_items(element.text[:MAX_TEXT], stated)
            continue
        read = {fact.cell[0] for fact in facts if fact.element == index and fact.cell}
        columns = {fact.cell[1] for fact in facts if fact.element == index and fact.cell}
        heads = _headers(table)
        of_limits = limits or _LIMITS.search(heads[0]) is not None
        named = of_limits and all(_WORDED.match(row[0]) for row in table.rows if row)
        of_values = (len(columns) == 1 or named) and len(heads) <= 3
        if not of_values and not any(_UNIT_HEAD.fullmatch(head) for head in heads):
            continue
        for r, row in enumerate(table.rows):
            if r not in read and row[0] and any(_NUMBERED.match(tidy(cell)) for cell in row[1:]):
                shown = f"{tidy(row[0])}: {' '.join(filter(None, map(tidy, row[1:])))}"
                shown = textwrap.shorten(shown, MAX_ROW, placeholder=" ...")
                unread.append(f"{shown}{_why_unread(row[0])}")
    return unread


def _unread_items(text: str, stated: Collection[str]) -> Iterator[str]:
    for block in _ITEM.split(text):
        item = " ".join(_sentences(block)[:1])
        listed = _LISTED.match(item) if _BULLET.match(block) and item not in stated else None
        if listed and _NUMBERED.match(listed["value"]):
            yield textwrap.shorten(item, MAX_ROW, placeholder=" ...")


def unread_sentences(elements: Sequence[Element], facts: Sequence[ProposedFact]) -> list[str]:
    """Sentences that name a known fact and a number in its unit, or a peak rate, and from which no
    fact was proposed. Those that compare, measure or give an example only if a number is beside
    the name."""
    read: dict[str, dict[str, str]] = {}
    for fact in facts:
        read.setdefault(fact.sentence, {})[fact.key] = fact.text_value
    unread = []
    for element in elements:
        blocks = _ITEM.split(element.text[:MAX_TEXT]) if element.kind in ("text", "list") else []
        for sentence in (s for block in blocks for s in _sentences(block)):
            if len(sentence) > MAX_LISTED:
                continue
            known = next((values for text, values in read.items() if sentence in text), {})
            doubtful = _skip().search(sentence) or _CODE.search(sentence)
            key = _beside(sentence) if doubtful else _named_key(sentence, known)
            if key and key not in known:
                unread.append(unclear(sentence, key))
            elif not (key or known or doubtful) and _PEAK.search(sentence):
                unread.append(_quoted(sentence, 0))
    return unread


UNCLEAR = ", but not clearly)"  # the end of a row that may state a known fact


def unclear(sentence: str, key: str, place: int = 0) -> str:
    """The row of a report for a sentence that may state this fact."""
    return f"{_quoted(sentence, place)} (perhaps {key}{UNCLEAR}"


def _beside(sentence: str) -> str:
    """The first known fact of the chip whose name is next to a number in its unit."""
    if not _ANY_NUMBER.search(sentence) or _EXAMPLE.search(sentence):
        return ""
    stated = _read_forms(sentence, sentence)
    return next((s.key for s in stated if fact_keys()[s.key].per == "chip"), "")


_EXAMPLE = re.compile(
    r"\b(?:for (?:example|instance)|e\.g|suppose|assum\w*|say|imagine|if|would|could|than|versus|vs"
    r"|previous\w*|future|no|not|measur\w*|achiev\w*|observ\w*|tensors? of|matri(?:x|ces) of)\b",
    re.IGNORECASE,
)
_PEAK = re.compile(
    r"\b(?:peak|theoretical|maximum (?:\w+ ){0,2}(?:bandwidth|performance|throughput))\b.*?"
    rf"\d ?(?:{_UNITS['flop/s']}|{_UNITS['op/s']}|{_UNITS['B/s']})(?![\w/])",
    re.IGNORECASE,
)


def _named_key(sentence: str, read: Mapping[str, str]) -> str:
    """The first known fact of the chip that a sentence names, with a number in its unit other than
    those `read` in it, which are by key."""
    if not _ANY_NUMBER.search(sentence):
        return ""
    for known in fact_keys().values():
        if known.per is None or (known.unless is not None and known.unless.search(sentence)):
            continue
        units = _UNITS.get(known.unit)
        if units is None or known.key in read:
            continue
        quantity = re.compile(rf"\d ?(?:{units})(?![\w/])", re.IGNORECASE)
        taken = sum(quantity.search(value) is not None for value in {*read.values()})
        if len(quantity.findall(sentence)) <= taken:
            continue
        if any(re.search(rf"(?<!\w){noun}(?!\w)", sentence, re.IGNORECASE) for noun in known.nouns):
            return known.key
    return ""


def _why_unread(label: str) -> str:
    """The reason in brackets; empty for a label of no known fact."""
    keys = read_label(label).keys
    return f" (perhaps {' or '.join(keys)}{UNCLEAR}" if keys else ""


# -- tables of keys, values and units, such as limits in CSV or JSON

# Under "Property" a guide lists anything: such rows are reported as not read.
_KEY = re.compile(r"keys?|names?", re.I)
_VALUE = re.compile(r"values?", re.I)
_NUMBER = re.compile(r"[+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_MAX_KEY, _MAX_UNIT = 64, 20


def _keyed_facts(
    table: Table, heads: Sequence[str], known: Collection[str]
) -> Iterator[ProposedFact]:
    """Facts under keys that their author chose, in a table with one column of keys, one of values
    and one of units. A key with two values gives none."""
    places = [
        [n for n, head in enumerate(heads) if pattern.fullmatch(head.strip())]
        for pattern in (_KEY, _VALUE, _UNIT_HEAD)
    ]
    if any(len(columns) != 1 for columns in places):
        return
    (key,), (value,), (unit,) = places
    read: list[tuple[int, ProposedFact]] = []
    for number, row in enumerate(table.rows):
        fact = _keyed_fact(row[key], row[value].strip(), row[unit].strip())
        if fact is not None:
            read.append((number, fact))
    values: dict[str, set[float | int | str]] = {}
    for _, fact in read:
        values.setdefault(fact.key, set()).add(fact.value)
    for number, fact in read:
        label = table.rows[number][key]
        if len(values[fact.key]) == 1 and fact.key not in known and not read_label(label).keys:
            yield _located(fact, table, (number, value), "", (label, heads[value]))


def _keyed_fact(label: str, number: str, unit: str) -> ProposedFact | None:
    """The fact of a row, in the canonical unit if its unit is known; None if the value is not a
    plain number, or the label cannot be a key, or the unit does not fit."""
    key = re.sub(r"[^a-z0-9]+", "_", label.strip().strip("`*").lower()).strip("_")
    if not key[:1].isalpha() or len(key) > _MAX_KEY:
        return None
    if not _NUMBER.fullmatch(number) or len(unit) > _MAX_UNIT:
        return None
    value, known = float(number.replace(",", "")), fact_keys().get(key)
    stated = find_unit(unit or "count")
    if known is not None:
        if stated is None or stated.canonical != known.unit:
            return None
        if not known.plausible(value * stated.factor):
            return None
    elif mistyped_key(key) is not None:
        key = f"x_{key}"[:_MAX_KEY]
    text = f"{number} {unit}".strip()
    if stated is None:
        return ProposedFact(key, value, unit, text, KEYED_CONFIDENCE)
    return ProposedFact(key, value * stated.factor, stated.canonical, text, KEYED_CONFIDENCE)


# -- names of a chip's scratchpad: "768 KiB of scratchpad called the slab"

_USUAL = "shared memory"  # the word under which `fact_keys.toml` knows it
_SCRATCHPAD = (
    r"(?:scratch-?pad(?: memory| ram| sram)?|shared memory|local data (?:share|store)"
    r"|(?:on-chip|tile|core)[- ]local (?:memory|sram|store))"
)
_QUOTE = r"[*_`\"'\u201c\u201d\u2018\u2019]{0,3}"
_CALLED = re.compile(
    rf"\b{_SCRATCHPAD},? (?:(?:that|which) is )?(?:called|named|known as|termed)(?: the| its)? "
    rf"{_QUOTE}([A-Za-z][A-Za-z0-9-]{{2,20}}){_QUOTE}(?=[\s.,;:)]|$)",
    re.IGNORECASE,
)
_BESIDE = r"(?:of|in|to|for|from|by|on|with|per|and|or|size|part|user|limit)"
_IS = re.compile(
    rf"\b[Tt]he {_QUOTE}([A-Za-z][A-Za-z0-9-]{{2,20}}){_QUOTE}(?:,? which)?(?: is|,) (?:an?|the)"
    rf"(?: (?!{_BESIDE} )[a-z0-9-]+){{0,4}} {_SCRATCHPAD}\b"
    r"(?! (?:size|capacity|limit|banks?|space|usage|budget|allocation|address|controller|user))",
)
_NO_NAME = frozenset({"the", "this", "that", "memory", "cache", "chip", "core", "tile", "unit"})


def scratchpad_names(texts: Iterable[str]) -> Names:
    """The names that the texts define for the scratchpad in so many words, each with the usual word
    for it, for tables with rows such as "Slab banks". None if there are more than two: then they
    hardly all mean it."""
    names: dict[str, str] = {}
    for text in texts:
        for pattern in (_CALLED, _IS):
            for match in pattern.finditer(text):
                name = re.sub(r"[^a-z0-9]+", " ", match[1].lower()).strip()
                if name not in _NO_NAME:
                    names[name] = _USUAL
    return tuple(sorted(names.items())) if len(names) <= 2 else ()
