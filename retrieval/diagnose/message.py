"""Advice in an error message itself, and the amount that exceeds a limit.

A message is a known line of a log with its continuation: wrapped text, list items, and lines
labelled `note:`, `help:` or `hint:`. Other messages of the log are not read. Of its sentences the
first that names an action is the advice, else the first that states a condition ("must be a
multiple of 16"). Sentences on debugging, reporting and documentation do not count.

Two amounts surround a comparison ("41492 exceeds 32768", "1025 must be <= 1024") or after words
for the required and the available amount ("requested: 2048, allowed: 1024"). The words near them
tell which resource it is; the table `resources` of messages.toml has these words.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Any

from retrieval.diagnose.log_lines import (
    LISTED,
    is_advisory,
    is_excerpt,
    without_boilerplate,
    without_prefix,
)
from retrieval.diagnose.metrics import parse_quantity
from retrieval.diagnose.signals import DATA

MAX_LINES = 12  # lines of a message
MAX_LINE = 1_500
MAX_SENTENCE = 320
MAX_NAME = 60  # characters of a name or value in a text
MAX_FILLED = 160  # of a message in the text of a form
MAX_CHOICES = 8  # values that a text lists
MAX_LOG_LINES = 4_000  # lines that are read for devices
OLDEST_CAPABILITY = 5  # of CUDA 12

_NOTE = re.compile(r"(?:^|\W)(?:note|help|hint|suggestion|tip)\s{0,2}[:=]", re.IGNORECASE)
_ITEM = re.compile(r"^\s*(?:[-*\u2022]|\(?\d{1,2}[.)])\s")
_FIELD = re.compile(r"\s*[a-z][\w ]{2,24}: ")
_ADVISES = re.compile(r"\s*(?:You|Please|Try|Consider|Did you|To fix|Use|Set|Increase|Reduce)\b")
_CARET = re.compile(r"^\s*(?:\d*\s*\|)?\s*[~^][\s~^-]*$")
_LOCATION = re.compile(
    r"^\s*[\w./\\+<>-]{1,200}(?:(?::\d{1,7}){1,2}|\(\d{1,7}(?:,\d{1,5})?\))\s*:?\s*"
)
_SENTENCE = re.compile(
    r"(?<![ (][ei]\.[ge]\.)(?<=[.!?])[\"'`]?\s+(?=[\"'`(\[]?[A-Z0-9-])|\s+\|\s+|;\s+|\n|\s+\[Hint: "
)
_LINK = re.compile(r"\(?https?://\S+\)?")


@lru_cache(maxsize=1)
def message_words() -> Mapping[str, Any]:
    """The tables of messages.toml."""
    return tomllib.loads((DATA / "messages.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=20)
def _words(name: str) -> re.Pattern[str]:
    """A list of messages.toml as one pattern."""
    return re.compile("|".join(message_words()[name]), re.IGNORECASE)


@lru_cache(maxsize=1)
def _actions() -> re.Pattern[str]:
    """Instructions: verbs at the beginning of a clause or after "you can", and fixed phrases."""
    words = {
        name: "|".join(alternatives)
        for name, alternatives in message_words().items()
        if name in ("verbs", "noun_verbs", "objects", "clauses", "actions")
    }
    verb = rf"(?:{words['verbs']})"
    noun = rf"(?:{words['noun_verbs']})"
    begun = rf"(?:{verb} (?!of\b|is\b|was\b|failed)\S|{noun} (?:{words['objects']}))"
    asked = (
        r"\b(?:you|users?|applications?|callers?)"
        r" (?:(?:can|could|may|might|should|must)(?: (?:need|have|want) to)?"
        r"|(?:need|have|want) to)"
    )
    return re.compile(
        rf"(?:{words['clauses']})[\"'`]?(?:please )?{begun}"
        rf"|{asked} (?:also |either |first |explicitly )?(?:{verb}|{noun})\b|{words['actions']}",
        re.IGNORECASE,
    )


@dataclass(frozen=True)
class Advice:
    """A sentence of a message: an action that it names, or a condition that it states."""

    text: str
    is_condition: bool


def origin_of(line: str) -> str:
    """What to do about an error in generated or installed source; empty for other source."""
    origins = message_words()["origins"]
    return next((o["text"] for o in origins if re.search(o["pattern"], line)), "")


def in_dialect(line: str, text: str) -> str:
    """A remedy with the tools of the platform that a line names instead of CUDA's."""
    for dialect in message_words()["dialects"]:
        if re.search(dialect["words"], line):
            for name, other in dialect["names"].items():
                text = text.replace(name, other)
            return text
    return text


UNKNOWN_TYPE = re.compile(r"(?:unknown type name|no (?:type|template|member) named) [^;]{1,80}")
_OTHER_TYPE = re.compile(rf"({UNKNOWN_TYPE.pattern}); did you mean [^?]{{1,80}}\?")
_PLATFORM = re.compile(
    r"\b(?:platform|backend|device type)s?\b(?: is|:|=)? ?[\"'`]?"
    r"(tpu|gpu|cpu|cuda|rocm|hip|metal|mps|xpu)\b",
    re.IGNORECASE,
)
_FOR_PLATFORM = re.compile(
    r"\b(?:on|for|with) (?:an? |the )?(TPU|GPU|CPU|CUDA|ROCm|HIP|Metal|MPS|XPU)s?\b", re.IGNORECASE
)
_GPUS = {"gpu": ("cuda", "rocm", "hip", "metal", "mps", "xpu")}


def _of_platform(sentences: Sequence[str]) -> list[str]:
    """The sentences without those for a platform other than the one that the message names."""
    named = _PLATFORM.search(" ".join(sentences))
    if named is None:
        return [*sentences]
    platform = named[1].lower()
    alike = {platform, *_GPUS.get(platform, ()), *(k for k, v in _GPUS.items() if platform in v)}
    others = ((s, {m.lower() for m in _FOR_PLATFORM.findall(s)}) for s in sentences)
    return [sentence for sentence, of in others if not of or of & alike]


def advice_in(message: Sequence[str]) -> Advice | None:
    """The first action that a message names, else the first condition that it states."""
    sentences = [s for s in _sentences(message) if not _words("elsewhere").search(s)]
    sentences = _of_platform(sentences)
    for is_condition, pattern in ((False, _actions()), (True, _words("conditions"))):
        for sentence in sentences:
            if pattern.search(sentence):
                return Advice(_shortened(sentence), is_condition)
    return None


_HINT = re.compile(
    r"\s*(?:hint|help|tip|suggest(?:ion|ed fix)|possible (?:fix|solution)|try)\s?: "
    r"(?P<text>\S.{12,})",
    re.IGNORECASE,
)
HINT_WITHIN = 16  # lines below a message, with the listing between


def hint_below(lines: Sequence[str], number: int) -> Advice | None:
    """The hint that a tool prints below the message of line `number`, after a listing."""
    below = (_HINT.match(without_prefix(line)) for line in lines[number : number + HINT_WITHIN])
    text = next((found["text"] for found in below if found), "")
    return Advice(_shortened(text), False) if text else None


def message_at(lines: Sequence[str], number: int) -> list[str]:
    """The lines of the message that line `number` (from 1) begins: its text without excerpts of
    source and without lines of other messages."""
    message = [without_prefix(lines[number - 1])[:MAX_LINE]]
    after = [without_prefix(line)[:MAX_LINE] for line in lines[number : number + 2 * MAX_LINES]]
    if LISTED.search(message[0]):  # of the listing below it only what follows the caret is a text
        after = after[next((n for n, line in enumerate(after) if _CARET.match(line)), 0) :]
    for i, line in enumerate(after):
        following = after[i + 1] if i + 1 < len(after) else ""
        if len(message) == MAX_LINES:
            break
        if not line.strip():
            if not _words("resumed").match(following):
                break
            continue
        if (
            _CARET.match(line)
            or is_excerpt(line)
            or _CARET.match(following)
            or _words("code").search(line)
        ):
            continue
        if _words("other").search(line) and not _NOTE.search(line):
            break
        message.append(line)
    return message


def _sentences(message: Sequence[str], least: int = 8) -> Iterator[str]:
    """The sentences, without place and label; a wrapped line continues the one before."""
    text = ""
    for line in message:
        wrapped = text and not _ITEM.match(line) and not _NOTE.search(line)
        wrapped = wrapped and not re.search(r"[.:!?]\s*$", text) and not _FIELD.match(line)
        wrapped = wrapped and not _ADVISES.match(line)
        text += (" " if wrapped else "\n") + _bare(line)
    # The suggestion for a type that the language lacks is a type of another meaning.
    text = _OTHER_TYPE.sub(r"\1", without_boilerplate(text))
    for sentence in _SENTENCE.split(text):
        sentence = " ".join(_LINK.sub("", sentence or "").split()).strip(" |,-")
        if len(sentence) >= least and not sentence.endswith(":"):
            yield sentence


def _bare(line: str) -> str:
    line = _ITEM.sub("", _LOCATION.sub("", line, count=1), count=1)
    return _labels().sub("", line, count=1).strip()


@lru_cache(maxsize=1)
def _labels() -> re.Pattern[str]:
    """The labels in front of a line."""
    label = rf"(?:E\s+)?(?:[\w.-]{{1,60}}: )?(?:{_words('labels').pattern})\s*"
    return re.compile(rf"\A(?:{label}){{0,3}}", re.IGNORECASE)


def _shortened(sentence: str) -> str:
    sentence = sentence.rstrip(" .:,;")
    for quote in "'\"`":
        if sentence.count(quote) % 2:
            sentence = sentence.strip(quote).rstrip(" .:,;")
    if len(sentence) <= MAX_SENTENCE:
        return sentence
    start = _actions().search(sentence) or _words("conditions").search(sentence)
    first = max(0, start.start() - 40) if start is not None and start.end() > MAX_SENTENCE else 0
    cut = sentence[first : first + MAX_SENTENCE].rsplit(" ", 1)[0]
    return f"{'... ' if first else ''}{cut} ..."


# -- what a message is about


def meaning_of(message: Sequence[str]) -> str:
    """What to do about a message of a usual form ("X is not supported by Y", "expected X, got Y"),
    with its names; the allowed values before the rest. Empty for other messages."""
    sentences = [s for s in _sentences(message, 3) if not _words("elsewhere").search(s)]
    return choice_in(message) or next(filter(None, map(_filled_form, sentences)), "")


def _filled_form(sentence: str) -> str:
    for form in _forms():
        found = form[0].search(sentence)
        if found is not None:
            names = {k: _name_in(v) for k, v in found.groupdict("").items()}
            return " ".join(form[1].format(**names).split())
    return ""


@lru_cache(maxsize=1)
def _forms() -> tuple[tuple[re.Pattern[str], str], ...]:
    rows = message_words()["forms"]
    return tuple((re.compile(row["pattern"], re.IGNORECASE), row["text"]) for row in rows)


def _name_in(text: str) -> str:
    text = re.sub(r"[\"'`]+\)?[\"'`]* failed.*", "", text).strip(" .,;:'\"`()")
    text = re.sub(r"^(?:The|A|An)\b", lambda article: article[0].lower(), text)
    return text if len(text) <= MAX_FILLED else f"{text[:MAX_FILLED].rsplit(' ', 1)[0]} ..."


def choice_in(message: Sequence[str]) -> str:
    """The values that a message allows, and how the given one is brought to one of them."""
    sentences = (s for s in _sentences(message, 3) if not _words("elsewhere").search(s))
    text = " ".join(sentences)
    found = _words("choices").search(text)
    if found is None:
        return ""
    listed = next(group for group in found.groups() if group)
    values = [
        v.strip(" '\"`[](){}") for v in re.split(r",| and | or |\||(?<=['\"])\s+(?=['\"])", listed)
    ]
    values = [v for v in values if v and len(v) <= MAX_NAME]
    if not values:
        return ""
    given = _words("given").search(text[: found.start()] + " " + text[found.end() :])
    value = next((g for g in given.groups() if g), "") if given is not None else ""
    if value in values:
        return ""
    names = ", ".join(values[:MAX_CHOICES]) + (", ..." if len(values) > MAX_CHOICES else "")
    numbers = [float(v) for v in values if re.fullmatch(r"\d+(?:\.\d+)?", v)]
    if re.fullmatch(r"\d+", value) and len(numbers) == len(values):
        above = min((n for n in numbers if n > float(value)), default=None)
        if above is not None:
            return (
                f"Allowed: {names}; given: {value}. Pad it to {above:g} and mask the surplus, or"
                f" take another implementation (backend) that has {value}."
            )
        return (
            f"Allowed: {names}; given: {value}, more than each of them. Split it, or take another"
            " implementation (backend)."
        )
    of = f" instead of {value}" if value else ""
    return f"Allowed: {names}. Use one of them{of}, or an implementation that has more."


CAUSE_LINES = 40  # lines below an error in which its cause is named


def cause_below(lines: Sequence[str], number: int) -> str:
    """The cause that a note, a `what():` or another line below line `number` names; or empty."""
    for line in lines[number : number + CAUSE_LINES]:
        found = _words("causes").search(line[:MAX_LINE])
        if found is not None:
            return next(group for group in found.groups() if group).strip()
    return ""


_REPORTED = re.compile(
    r"\b(?:error|fatal)\b(?: \w{0,8}\d+)?\s?: ?(?P<text>.{8,200})", re.IGNORECASE
)


def first_report(lines: Sequence[str], number: int) -> str:
    """The text of the first line above line `number` that is labelled as an error; or empty."""
    above = (_REPORTED.search(line[:MAX_LINE]) for line in lines[: number - 1][:MAX_LOG_LINES])
    found = next(filter(None, above), None)
    return found["text"].strip() if found else ""


@lru_cache(maxsize=1)
def _rule() -> re.Pattern[str]:
    part = "|".join(message_words()["rule_parts"])
    rest = "|".join(message_words()["rules"])
    return re.compile(
        rf"(?P<what>(?:[\w.#]{{1,30}} ){{0,3}}\b(?:{part})(?: (?:#?\d+|of \w+|{part}|size|type))*)"
        rf" (?P<rest>{rest})(?:[;:]|\.(?:\s|$)|,? (?:but )?got|[\"'`]|$)",
        re.IGNORECASE,
    )


def broken_rule(lines: Sequence[str], number: int) -> tuple[int, str, str] | None:
    """The first line up to line `number` that states a rule about a part of the source: its number,
    the rule, and the part. None if no line does."""
    for at, line in enumerate(lines[:number][:MAX_LOG_LINES], 1):
        found = _rule().search(line[:MAX_LINE])
        if found is not None and not is_advisory(line):
            return at, found[0].strip("\"'`;.:, "), found["what"]
    return None


_SETTING = re.compile(
    r"\b(?i:set|setting|export|define|defining|try|with)\b[^=\n]{0,60}?"
    r"((?:\b[A-Z][A-Z0-9]*_[A-Z0-9_]+=[\w./]+[ ,]*)+)"
)
_OF_TRACES = re.compile(r"BACKTRACE|TRACEBACK|STACK_?TRACE")


def settings_in(message: Sequence[str]) -> str:
    """The environment variables that a message proposes, which show its cause."""
    proposed = " ".join(match[1] for match in _SETTING.finditer(" ".join(message)))
    names = dict.fromkeys(re.findall(r"[A-Z][A-Z0-9_]+=[\w./]+", proposed))
    kept = [name for name in names if not _OF_TRACES.search(name)]
    return f"Run again with {' '.join(kept[:MAX_CHOICES])}." if kept else ""


def provider_of(symbol: str) -> str:
    """What provides a symbol that does not resolve; empty for a symbol of the program."""
    for provider in message_words()["providers"]:
        if re.fullmatch(provider["symbols"], symbol):
            library = re.match(r"cublasLt|[a-z]+(?:JitLink)?", symbol)
            return str(provider["text"]).format(symbol=symbol, library=library and library[0])
    return ""


_PASS = re.compile(
    r"Running pass ['\"](?P<pass>.{3,60}?)['\"] on function ['\"]@?(?P<name>[^'\"]{1,200})"
)


def pass_in(lines: Sequence[str]) -> str:
    """The pass in which a compiler crashed and its function, from the dump of its stack."""
    found = next(filter(None, (_PASS.search(line[:MAX_LINE]) for line in reversed(lines))), None)
    if found is None:
        return ""
    return f"It stopped in the pass {found['pass']} on the function {_name_in(found['name'])}."


_CAPABILITY = re.compile(
    r"\bcompute capability\b[^\d\n]{0,30}(\d{1,2})\.(\d)"
    r"|\b(?:capability|arch|CC)[ :=(]{1,3}(\d{1,2})[.,] ?(\d)"
    r"|\b(?:sm|compute)_(\d{1,2})(\d)[af]?\b",
    re.IGNORECASE,
)
_GFX = re.compile(r"\bgfx(?:9|1[0-9])[0-9a-f]{1,3}\b")
_VERSIONS = re.compile(
    r"\b(Driver(?: Version)?|CUDA(?: Version)?|nvcc|ROCm|HIP|release)[ :=]{1,3}(\d{1,3}\.\d[\d.]*)",
    re.IGNORECASE,
)


def devices_in(lines: Sequence[str]) -> str:
    """The architectures of GPUs that a log names with the options that compile for them, and the
    versions of driver and toolkit."""
    text = "\n".join(line[:MAX_LINE] for line in lines[:MAX_LOG_LINES])
    digits = ((g for g in m.groups() if g) for m in _CAPABILITY.finditer(text))
    capabilities = dict.fromkeys(".".join(pair) for pair in digits)
    gfx = dict.fromkeys(_GFX.findall(text))
    said = []
    if len(capabilities) == 1:
        (dotted,) = capabilities
        if int(dotted.split(".")[0]) < OLDEST_CAPABILITY:
            said.append(
                f"No current toolkit or framework has code for {dotted}: take the last release that"
                " had it, the CPU, or another GPU."
            )
        bare = dotted.replace(".", "")
        said.append(
            f"The log names compute capability {dotted}: -gencode"
            f" arch=compute_{bare},code=sm_{bare} (CMAKE_CUDA_ARCHITECTURES={bare},"
            f" TORCH_CUDA_ARCH_LIST={dotted})."
        )
    elif capabilities:
        said.append(
            f"The log names compute capabilities {', '.join([*capabilities][:MAX_CHOICES])}."
        )
    if len(gfx) == 1:
        (name,) = gfx
        said.append(
            f"The log names {name}: --offload-arch={name} (GPU_TARGETS={name},"
            f" PYTORCH_ROCM_ARCH={name})."
        )
    elif gfx:
        said.append(f"The log names {', '.join([*gfx][:MAX_CHOICES])}.")
    versions = dict.fromkeys(f"{m[1]} {m[2].rstrip('.')}" for m in _VERSIONS.finditer(text))
    if versions:
        said.append(f"Versions in the log: {', '.join([*versions][:4])}.")
    return " ".join(said)


_WITH = re.compile(r"\[with ([^\]]{3,1200})\]")
_ELEMENT = re.compile(
    r"\b(?:__)?(?:nv_)?(?:half|bfloat(?:16)?|float(?:16|32|64)?|double|(?:u?int)(?:8|16|32|64)_t"
    r"|fp8_e\dm\d|half_t|bfloat16_t|float_e\dm\d_t)\b"
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w+")


def arguments_in(lines: Sequence[str], number: int) -> str:
    """The template arguments near line `number` whose names its message has, with their values."""
    message = lines[number - 1]
    near = lines[max(0, number - 1 - MAX_LINES) : number + MAX_LINES]
    trace = " ".join(line for line in near if "in instantiation of" in line)
    if len(types := dict.fromkeys(_ELEMENT.findall(trace))) > 1:
        return (
            f"The element types in the trace are {', '.join(types)}: where the rule is about types,"
            " give both operands the same one, or a pair that the library lists."
        )
    for line in lines[number : number + MAX_LINES]:
        found = _WITH.search(line[: 4 * MAX_LINE])
        if found is None:
            continue
        pairs = [p.strip().split("=", 1) for p in re.split(r"[,;] (?=\w+=)", found[1])]
        values = {p[0].strip(): p[1].strip() for p in pairs if len(p) == 2 and len(p[1]) < MAX_NAME}
        words = _IDENTIFIER.findall(message)
        chosen = [n for n in values if any(w.startswith(n) or n.startswith(w) for w in words)]
        if names := chosen or [*values][:MAX_CHOICES]:
            return f"In the trace: {', '.join(f'{n} = {values[n]}' for n in names)}."
    return ""


_DIMENSIONS = re.compile(
    r"\b(?P<of>grid|num_?blocks|block|threads)(?:[_ ]?(?:size|dims?|shape))?"
    r"[\s:=]{0,4}(?:dim3)?[\[({<]{0,2} ?(?P<sizes>\d+(?: ?[,x\u00d7] ?\d+){0,2})\b",
    re.IGNORECASE,
)
_TRIPLE = re.compile(r"<<<\s*\(?(?P<grid>\d+(?:, ?\d+){2})\)?")
_AXES = "xyz"
# The largest grid of CUDA and the largest blockDim of Ascend C, by dimension.
_GRIDS = {"CUDA": (2**31 - 1, 65_535, 65_535), "CANN": (65_535,)}
_THREADS = (1_024, 1_024, 64)


def launch_in(lines: Sequence[str], number: int) -> str:
    """What to change about a launch near line `number` that was refused, where a dimension that the
    lines name exceeds its limit; empty without one."""
    near = [line[:MAX_LINE] for line in lines[max(0, number - 5) : number + 4]]
    text = "\n".join(near)
    if re.search(r"\bAsc|\baclrt|\bCANN\b|\bACL_|\brtKernel", text):
        tool = "CANN"
    elif re.search(r"(?i:cuda)|\bcu[A-Z]\w+|\bCU_\w+", text):
        tool = "CUDA"
    else:
        return ""
    found = [(m["of"].lower(), m["sizes"]) for m in _DIMENSIONS.finditer(text)]
    found += [("grid", m["grid"]) for m in _TRIPLE.finditer(text)]
    for of, listed in found:
        sizes = [int(size) for size in re.findall(r"\d+", listed)]
        blocks = of.startswith(("grid", "num")) or (tool == "CANN" and of.startswith("block"))
        limits = _GRIDS[tool] if blocks else _THREADS if tool == "CUDA" else ()
        for axis, (size, limit) in zip(_AXES, zip(sizes, limits, strict=False), strict=False):
            if size > limit:
                return _over_launch(tool, axis, size, limit, blocks)
        if limits is _THREADS and len(sizes) > 1 and prod(sizes) > _THREADS[0]:
            return _over_launch(tool, " * ".join(_AXES[: len(sizes)]), prod(sizes), 1_024, False)
    return ""


def _over_launch(tool: str, axis: str, size: int, limit: int, blocks: bool) -> str:
    if not blocks:
        return (
            f"The block has {size:,} threads in {axis}, and {tool} allows {limit:,} (1,024 in all):"
            " launch fewer threads per block and give each more elements."
        )
    if tool == "CUDA":
        return (
            f"The grid has {size:,} blocks in {axis}, and {tool} allows {limit:,} there (65,535 in"
            " y and z, 2,147,483,647 in x): put this dimension into x, flatten the grid and compute"
            " the indices, or let each block loop over several tiles."
        )
    return (
        f"The launch has {size:,} blocks, and {tool} allows {limit:,}: launch as many as there are"
        " cores and let each loop over several tiles."
    )


# -- codes of interfaces


@lru_cache(maxsize=1)
def _apis() -> tuple[tuple[re.Pattern[str], re.Pattern[str], Mapping[str, str]], ...]:
    """(lines with a code, lines that have its name, names) of each interface."""
    apis = tomllib.loads((DATA / "api_codes.toml").read_text(encoding="utf-8"))["apis"]
    return tuple(
        (
            re.compile("|".join(_unnamed(apis_line) for apis_line in api["lines"]), re.IGNORECASE),
            re.compile(api["not_names"]),
            api["names"],
        )
        for api in apis
    )


def _unnamed(pattern: str) -> str:
    """A pattern whose group `code` has no name, for one alternation."""
    return pattern.replace("(?P<code>", "(")


def _hex(code: str) -> str:
    """A hexadecimal code with capital digits."""
    return "0x" + code[2:].upper()


LEAST_BITS = 0x7000_0000  # from which on a decimal code is one that its header writes in hex
_OF_MAKE = re.compile(r"\s*(?:g?make|ninja)(?:\[\d+\])?: ")


def name_of_code(line: str) -> str:
    """The name of an error of which a line has only the number; empty without one."""
    if _OF_MAKE.match(line):
        return ""  # the number is the exit status of a step, whatever the paths are named
    for numbered, named, names in _apis():
        found = numbered.search(line)
        if found is not None and not named.search(line):
            code = next(group for group in found.groups() if group)
            if code.isdigit() and int(code) >= LEAST_BITS:
                code = hex(int(code))
            if name := names.get(code) or names.get(code.lower()) or names.get(_hex(code)):
                return str(name)
    return ""


# -- amounts over a limit

AROUND = 120  # characters around two amounts in which the resource is named
MAX_PAIRS = 16  # of amounts in a line
MOST = 1e16

_NUMBER = r"(?:0x[0-9a-f]+|\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)"
_UNIT = r"(?:[KMGT]i?B\b|[KMGT]\b|(?:kilo|mega|giga|[KMG])?bytes?\b|B\b)"
_AMOUNT = re.compile(
    rf"(?<![\w.#/@%:-])(?P<number>{_NUMBER})\s?(?P<unit>{_UNIT})?(?!\.?\d|[\w%])"
    r"|[\[(](?P<vector>\d+(?:, ?\d+){1,3})[\])]|(?<=\w)\[\d+\]",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(r"\b(?:cannot|can ?not|must not|may not|should not) exceed ", re.IGNORECASE)


_BY = re.compile(r"\bby\s*$", re.IGNORECASE)  # "exceeded by 3 kB" has the excess, not the limit


@lru_cache(maxsize=1)
def _cues() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Words for the required and the available amount, each with an adjacent number."""
    needed, there = ("|".join(message_words()[name]) for name in ("needed", "there"))
    behind = rf"(?={_NUMBER} ?{_UNIT}? "
    return (
        re.compile(
            rf"\b(?:{needed})\b[^\d\[]{{0,30}}?(?={_NUMBER}|\[)"
            rf"|{behind}(?:required|requested|needed))",
            re.IGNORECASE,
        ),
        re.compile(
            rf"\b(?:{there})[\s:=(]{{1,4}}(?:is |of |at most |only )?(?=0x|\d|\[)"
            rf"|\b{behind}(?:max\b|allowed|available|free))",
            re.IGNORECASE,
        ),
    )


@dataclass(frozen=True)
class Resource:
    """A kind of amount that has a limit: the words that name it near an amount, the noun with its
    unit that a title uses, the remedy, and the level of a line with both amounts."""

    id: str
    words: str
    signal: str
    unit: str
    noun: str
    remedy: str
    level: str = "cause"


@dataclass(frozen=True)
class Excess:
    """A resource over its limit; `needed` is None if the line has only the limit."""

    resource: Resource
    needed: float | None
    limit: float

    @property
    def title(self) -> str:
        """The amounts in words."""
        if self.needed is None:
            return f"More {self.resource.noun} than the {self.limit:,.0f} that are allowed"
        return f"{self.needed:,.0f} {self.resource.noun}, {self.limit:,.0f} are allowed"


@lru_cache(maxsize=1)
def load_resources() -> tuple[Resource, ...]:
    """The resources, the more specific first."""
    return tuple(Resource(**row) for row in message_words()["resources"])


# Names and numbers side by side, as compilers print their statistics.
_STATISTICS = re.compile(r"(?:\b[A-Za-z][A-Za-z ]{1,24}: ?\d{1,12}\b[ ,;]{0,4}){4}")


def excess_in(line: str) -> Excess | None:
    """The amount of a known resource that exceeds its limit in this line."""
    if _STATISTICS.search(line):
        return None
    amounts = [a for a in _AMOUNT.finditer(line) if a["number"] or a["vector"]]
    pairs = [
        (needed, limit, resource)
        for needed, limit in islice(_pairs(line, amounts), MAX_PAIRS)
        if (resource := _resource_near(line, needed.start(), limit.end())) is not None
    ]
    for needed, limit, resource in pairs:
        values = _values(needed, limit, resource, line)
        if values is not None:
            return Excess(resource, *values)
    return None if pairs else _limit_alone(line, amounts)


def _pairs(
    line: str, amounts: Sequence[re.Match[str]]
) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Candidates of the needed amount and its limit, the likelier first."""
    for cue in _words("comparisons").finditer(line):
        before = [a for a in amounts if a.end() <= cue.start() and cue.start() - a.end() < AROUND]
        after = [a for a in amounts if a.start() >= cue.end() and a.start() - cue.end() < AROUND]
        if before and after and not _BY.search(line[cue.end() : after[0].start()]):
            yield before[-1], after[0]
    needed, there = _cues()
    most = {place for cue in there.finditer(line) for place in cue.span()}
    wanted = {cue.end() for cue in needed.finditer(line)}
    limits = [a for a in amounts if a.start() in most]
    for amount in (a for a in amounts if a.start() in wanted):
        yield from ((amount, limit) for limit in limits if limit.start() > amount.start())


def _values(
    needed: re.Match[str], limit: re.Match[str], resource: Resource, line: str
) -> tuple[float, float] | None:
    """Both amounts in the unit of the resource, if the first exceeds the second."""
    wanted, most = _numbers(needed, resource, limit), _numbers(limit, resource, needed)
    if not wanted or not most:
        return None
    total = _AMOUNT.search(line, limit.end()) if len(most) > 1 else None
    of_total = _numbers(total, resource, total) if total is not None else []
    if len(wanted) == len(most):
        pairs = list(zip(wanted, most, strict=True))
    elif len(wanted) == 1 and of_total:
        pairs = []
    else:
        pairs = [(max(wanted), most[-1]), (prod(wanted), most[-1])]
    pairs += [(prod(wanted), of_total[0])] if of_total else []
    return next(((n, m) for n, m in pairs if 0 < m < n <= MOST), None)


def _numbers(amount: re.Match[str], resource: Resource, other: re.Match[str]) -> list[float]:
    if amount["vector"]:
        return [float(n) for n in amount["vector"].split(",")]
    unit = amount["unit"] or ""
    # "33.56M vs 32.00M" and "269 of 67 MB": a letter counts bytes, and one unit may serve both.
    unit = unit or (other["unit"] or "" if other.start() - amount.end() < 6 else "")
    if resource.unit == "bytes" and len(unit) == 1 and unit.upper() != "B":
        unit += "iB"
    value = parse_quantity(f"{amount['number']} {unit}", "B" if resource.unit == "bytes" else "1")
    return [] if value is None else [value]


def _resource_near(line: str, start: int, end: int) -> Resource | None:
    """The first resource named around the amounts."""
    window = line[max(0, start - AROUND) : end + AROUND]
    found = (r for r in load_resources() if re.search(r.words, window, re.IGNORECASE))
    return next(found, None)


def _limit_alone(line: str, amounts: Sequence[re.Match[str]]) -> Excess | None:
    """The limit of a line that says it is exceeded and does not have the amount."""
    if not _words("comparisons").search(line):
        return None
    starts = {place for cue in _cues()[1].finditer(line) for place in cue.span()}
    starts |= {cue.end() for cue in _FORBIDDEN.finditer(line)}
    for amount in amounts:
        if amount.start() in starts and amount["number"]:
            resource = _resource_near(line, amount.start(), amount.end())
            if resource is not None and (numbers := _numbers(amount, resource, amount)):
                return Excess(resource, None, numbers[0])
    return None
