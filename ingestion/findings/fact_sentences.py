"""Facts that running text states: "each core has 256 KB of scratchpad", "the wavefront size is 64".

A sentence is read only if it clearly states a number: no comparison, example, condition,
measurement, range or code, and for a fact of the whole chip no part of it (a die, a link, a memory
channel) and not several chips. Skipped facts are mostly in a table too; a wrong proposal costs a
person time.

The forms of each fact are data (`nouns`, `sentences`, `per`, `bound`, `unless` of
`kb/hardware/fact_keys.toml`); this module fills in their placeholders. Knows no chip:
`ingestion/findings/subjects.py` decides which chip a sentence is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from ingestion.findings.fact_cells import converted, read_cell, read_label
from kb.hardware.facts import FactKey, Unit, fact_keys, find_unit

MAX_SENTENCE = 400  # characters; longer ones are lists or lost line ends
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
_IS = (
    r"(?:,? (?:is|are|of|at|equals|totals|amounts to|has|holds|reaches|is fixed at|is set to)"
    r"|\s?[:=])"
    r" (?:an? |the )?(?:(?:total|maximum|peak|size|capacity|bandwidth|typical|theoretical) )*"
    r"(?:of )?(?:exactly |equal to |up to )?"
)
_FURTHER = r"(?:spaces?|regions?|utili[sz]ation|traffic)\b"  # "256 KB of L1 space" of something
_FORMS = (
    rf"{{q}}(?: of)? {_ADJECTIVES}{{noun}}(?![\w/])(?! {_FURTHER})",
    rf"(?<![\w/]){{noun}}{_AMONG}{_IS}{{q}}",
    r"(?<![\w/]){noun} \(\s?{q}\s?[),;]",
)

_SKIP = re.compile(
    r"\b(?:for (?:example|instance)|e\.g|i\.e|suppose|assum\w*|let us|let's|say|imagine|consider"
    r"|if|when|whenever|unless|would|could|might|should|depend\w*|configur\w*|in this case"
    r"|than|compar\w*|versus|vs|unlike|whereas|previous\w*|predecessors?|earlier|later|older|newer"
    r"|increas\w*|decreas\w*|reduc\w*|improv\w*|faster|slower|twice|double[ds]?|half|halves|instead"
    r"|rather|except|respectively|either|chang\w*|rais\w*|measur\w*|achiev\w*|observ\w*|attain\w*"
    r"|obtain\w*|benchmark\w*|sustain\w*|estimat\w*|realistic|not|cannot|no|nor|never|without|only"
    r"|fits?|fitting|exceed\w*|exhaust\w*|kernels?|workloads?|programs?|applications?|tensors? of"
    r"|matri(?:x|ces) of|arrays?|messages?|packets?|transfers? of|virtual|emulat\w*|simulat\w*"
    r"|future|planned|disabled|reserved|minimum|legacy|command|option|flag|default|copy|copies"
    r"|(?:sub-?)?problem|disk|ssd|requir\w*|need\w*|recommend\w*|bottleneck\w*|modes?)\b|n't\b|\?$",
    re.IGNORECASE,
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
_TOTAL = re.compile(r"\b(?:in total|a total(?: of)?)\s*$", re.IGNORECASE)
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
_ITEM = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+•]|\d+[.)])\s)")
_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(\[A-Z])|(?<=[.!?]\))\s+(?=[A-Z])")
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s+")


@dataclass(frozen=True)
class Statement:
    """One number of a sentence. `quantity` is the number with its unit as written, `sentence` is
    without markup, `confidence` between 0 and 1.
    """

    key: str
    value: float | int
    unit: str
    quantity: str
    sentence: str
    confidence: float


def statements(text: str, lead: str = "") -> list[Statement]:
    """The statements of a paragraph or list, in reading order. `lead` is the text before a list:
    "Each chip contains:" is read with each item.
    """
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
    cleaned = " ".join(_SIGNS.sub("", _FOOTNOTE.sub("", cleaned)).split())
    return [sentence.strip() for sentence in _END.split(cleaned)]


@lru_cache(maxsize=4096)
def read_sentence(sentence: str) -> tuple[Statement, ...]:
    """The statements of one sentence; none if it is doubtful."""
    if len(sentence) > MAX_SENTENCE or sentence.count(" ") < _MIN_WORDS - 1:
        return ()
    if not _ANY_NUMBER.search(sentence) or _SKIP.search(sentence) or _CODE.search(sentence):
        return ()
    if _IN_MODE.match(sentence):
        return ()
    if pair := _read_pair(sentence):
        return pair
    plain = re.sub(r" per second\b", "/s", sentence)
    claims: dict[tuple[int, int], list[Statement]] = {}
    for known in fact_keys().values():
        for span, stated in _read_key(known, plain, sentence):
            claims.setdefault(span, []).append(stated)
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
                stated = Statement(known.key, value, known.unit, quantity, sentence, confidence)
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
    value = converted(number, unit, known) if unit is not None else None
    if unit is None or value is None or not known.plausible(value):
        return None
    return (int(value) if value.is_integer() and value < 2**53 else value), unit.assumed
