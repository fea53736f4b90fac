"""Remedies from the other lines of a log, and results that a program prints in its own words.

The class of an error has a general remedy; the text around the line often names the cause. In
order: sentences of the tool that tell the reader what to do, options that they name, and the
contexts of `data/contexts.toml` (a false alarm, a build without optimisation, a regression).
Results are runs that disagree and rates beyond any device.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kb.errors import InvalidKnowledge
from kb.predicates import Value
from retrieval.diagnose.linear_patterns import LinePattern, UnsafePattern, compile_linear
from retrieval.diagnose.log_lines import is_excerpt, without_boilerplate
from retrieval.diagnose.signals import DATA, load_signals
from retrieval.diagnose.signatures import BUILTIN, ErrorSignature, SignatureMatch

AROUND = 60  # lines on both sides of the leading one that are searched
NEAR = 8  # lines on both sides in which the tool's own advice is searched for
MAX_LINE = 1_000
MAX_SENTENCE = 200
MAX_CONTEXTS = 2

# Sentences that tell the reader what to do.
_DIRECTIVE = re.compile(
    r"(?:^|[.;:!,(] ?|\b(?:note|error|warning) ?: )"
    r"(?P<say>(?:please |you (?:can|may|might|should|need to|must) |or "
    r"|if (?:you|the device) .{3,80}, )?"
    r"(?:(?:please )?add|try|consider|use|set|pass|increase|reduce|lower|raise|enable|disable"
    r"|upgrade|downgrade|install|rebuild|recompile|specify|switch to|make sure|build with"
    r"|compile with|reducing|increasing|setting|adding)"
    r" (?:[a-z`'\"-]|[A-Z_]{3,}=|[A-Z]\w+\d).{3,})",
)
_MARKED = re.compile(
    r"\b(?:hint|help|suggestion|tip|workaround)\b ?[:=] ?(?P<say>\S.{6,})", re.IGNORECASE
)
_END = re.compile(r"[.!](?=\s|$)")
# Advice on how to see more of an error, and quoted program text.
_OF_DEBUGGING = re.compile(
    r"backtrace|stack ?trace|bug report|more information|more details|for details|https?://|verbose"
    r"|debug|LAUNCH_BLOCKING|SERIALIZE|_DSA|\blog\b|LOG_|traceback|file an? (?:issue|bug)|--help"
    r"|stack dump|include (?:the|this)|report (?:this|it)"
    r"|[{};]|==|\w\([\w, .=*]*\)|^set\w* (?:up|to|of)\b|^use of\b",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"(?:\(|\bsee |\boption |\bflag |\bvia |\bdefault of |\bcontrolled by |\blimit )[`'\"]?"
    r"(?P<option>--[a-z][\w-]{4,60}|[A-Z][A-Z0-9]{2,20}_[A-Z0-9_]{4,40}(?==))"
)


@dataclass(frozen=True)
class LogContext:
    """A remedy that applies where the log has an expression besides a line of these signals;
    `signals` is empty for any. Groups of the pattern fill `{name}` in the text.
    """

    pattern: str
    signals: frozenset[str]
    text: str

    def read(self, lines: Sequence[str], signal: str) -> str | None:
        """The text with the groups of the first line that matches."""
        if self.signals and signal not in self.signals:
            return None
        found = (groups for line in lines if (groups := self._compiled.search(line)) is not None)
        groups = next(found, None)
        if groups is None:
            return None
        names = {name: (text or "").strip() for name, text in groups.items()}
        return re.sub(r"\{(\w+)\}", lambda place: names.get(place[1], place[0]), self.text)

    @property
    def _compiled(self) -> LinePattern:
        return compile_linear(self.pattern)


@lru_cache(maxsize=1)
def load_contexts() -> tuple[LogContext, ...]:
    """The built-in contexts. Raises InvalidKnowledge for a broken one."""
    path = DATA / "contexts.toml"
    contexts: list[LogContext] = []
    for row in tomllib.loads(path.read_text(encoding="utf-8"))["contexts"]:
        unknown = {*row.get("signals", ())} - {*load_signals().ids}
        if row.keys() - {"pattern", "signals", "text"} or unknown:
            raise InvalidKnowledge(f"{path.name}: {row.get('pattern')!r} has unknown {unknown}")
        try:
            compile_linear(row["pattern"])
        except UnsafePattern as problem:
            raise InvalidKnowledge(f"{path.name}: {row['pattern']!r}: {problem}") from problem
        contexts.append(LogContext(row["pattern"], frozenset(row.get("signals", ())), row["text"]))
    return tuple(contexts)


def with_context(log: str, matches: Sequence[SignatureMatch]) -> list[SignatureMatch]:
    """The matches; the leading one has first what the lines around it say about its remedy."""
    if not matches:
        return []
    first = matches[0]
    start = max(0, first.line_number - 1 - AROUND)
    lines = [line[:MAX_LINE] for line in log.split("\n")[start : start + 2 * AROUND + 1]]
    found = (c.read(lines, first.signature.signal) for c in load_contexts())
    of_context = [text for text in dict.fromkeys(found) if text][:MAX_CONTEXTS]
    said = next(_said(lines, first.line), "")
    return [replace(first, context=" ".join([*of_context, said]).strip()), *matches[1:]]


def _said(lines: Sequence[str], leading: str) -> Iterator[str]:
    """What the tool says that the reader should do, of the leading line first."""
    at = next((i for i, line in enumerate(lines) if line.strip() == leading), 0)
    close = [line for line in lines[max(0, at - NEAR) : at + NEAR + 1] if not is_excerpt(line)]
    near = sorted(close, key=lambda line: line.strip() != leading)
    for line in near:
        line = without_boilerplate(line.strip())
        for pattern in (_MARKED, _DIRECTIVE):
            match = pattern.search(line)
            if match is not None and (sentence := _sentence(match["say"])):
                yield f'The tool says: "{sentence}".'
    for line in near:
        match = _OPTION.search(line)
        if match is not None:
            yield f"The message names {match['option']}: change it first if it sets the limit."


def _sentence(text: str) -> str:
    text = text.strip(" `'\"")
    if _OF_DEBUGGING.search(text):
        return ""
    ended = _END.search(text)
    sentence = text[: ended.start()] if ended else text
    sentence = sentence.strip().rstrip(",;:")
    return sentence if len(sentence) <= MAX_SENTENCE else f"{sentence[:MAX_SENTENCE]}..."


# -- results of a program

_RUN = re.compile(
    r"\s*\[?(?:run|execution|pass) ?#?\d{1,4}\]?"
    r"[:,\]) -]+(?P<rest>\S.{0,300})",
    re.IGNORECASE,
)
_TIMED = re.compile(
    r"time|\bms\b|\d ?(?:[mµun]?s|sec\w*|fps)\b|FLOP|B/s|latency|throughput|speed|loss|epoch|step"
    r"|seconds|it/s|memory|bandwidth|perf|seed|temperature",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
MIN_RUNS = 2
# Rates that no device reaches: dense products in 16 bits, and in 8 or 4 bits; TFLOPS.
MOST_TFLOPS, MOST_TFLOPS_NARROW = 2_600.0, 20_000.0
_NARROW = re.compile(r"fp8|int8|fp4|e4m3|e5m2|i8\b|int4|mxfp|nvfp|sparse", re.IGNORECASE)
_RATE = re.compile(
    r"(?P<value>\d[\d,]*(?:\.\d+)?(?:[eE]\+?\d{1,3})?)\s?(?P<unit>[TPG])(?:FLOP|OP)s?(?:/s|S)?\b",
    re.IGNORECASE,
)
_RATE_TABLE = re.compile(r"performance:?\s*$|TFLOPS?\b|TFLOP/s", re.IGNORECASE)
_SIZE = re.compile(
    r"^[A-Z]$|size|seq|ctx|len|dim|batch|head|byte|token|trans|elem|time|_?ms$|_?us$|gb/?s|gbps",
    re.IGNORECASE,
)
_INFINITE = re.compile(
    r"\binf(?:inity)? ?(?:[TGM]?FLOPS?|[TG]i?B/s|GOPS|x speed-?up)|speed-?up:? inf\b", re.IGNORECASE
)
_SCALES = {"T": 1.0, "P": 1e3, "G": 1e-3}


def results_in(log: str, facts: Mapping[str, Value | None]) -> list[SignatureMatch]:
    """Runs that disagree and rates beyond the device, or beyond any device for an unknown one."""
    lines = log[: 200 * MAX_LINE].split("\n")
    found = (_runs(lines), _rates(lines, facts))
    return [match for match in found if match is not None]


def _runs(lines: Sequence[str]) -> SignatureMatch | None:
    """Lines "Run 1: name = value" that are equal but for the value, with different values."""
    shapes: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(lines, 1):
        match = _RUN.match(line[:MAX_LINE])
        if match is None or _TIMED.search(match["rest"]):
            continue
        value = _NUMBER.search(match["rest"])
        if value is not None:
            shape = match["rest"][: value.start()]
            shapes.setdefault(shape, []).append((number, value[0]))
    for runs in shapes.values():
        values = list(dict.fromkeys(value for _, value in runs))
        if len(runs) >= MIN_RUNS and len(values) >= MIN_RUNS:
            title = f"{len(runs)} runs give {len(values)} results: {', '.join(values[:4])}"
            remedy = (
                "Look for atomics in floating point, which add in another order in each run, then a"
                " missing barrier and uninitialised memory; reduce in a fixed order."
            )
            at = runs[0][0]
            return _result("results-differ-by-run", "nondeterminism", title, remedy, at, lines)
    return None


def _rates(lines: Sequence[str], facts: Mapping[str, Value | None]) -> SignatureMatch | None:
    peaks = [float(v) for n, v in facts.items() if "peak" in n and isinstance(v, (int, float))]
    narrow = any(_NARROW.search(line[:MAX_LINE]) for line in lines[:400])
    most = MOST_TFLOPS_NARROW if narrow else MOST_TFLOPS
    if peaks:
        most = min(most, 2 * max(peaks) / 1e12)  # twice: a peak may be stated without sparsity
    heads: list[str] = []
    for number, line in enumerate(lines, 1):
        line = line[:MAX_LINE]
        if number > 1 and _RATE_TABLE.search(lines[number - 2][:MAX_LINE]):
            heads = line.split()
        rate = max((*_stated(line), *_of_row(line.split(), heads)), default=0.0)
        if rate > most or _INFINITE.search(line):
            shown = f"{rate:,.0f} TFLOPS" if rate > most else "An infinite rate"
            title = f"{shown}: more than {most:,.0f} TFLOPS, which the device cannot reach"
            remedy = (
                "The time is wrong, not the kernel: the clock stops before the kernel ends, or the"
                " kernel did not run. Synchronise before both readings or use events of the device,"
                " check the launch for an error and the result, and the count of operations."
            )
            where = "rate-beyond-device"
            return _result(where, "measurement_error", title, remedy, number, lines)
    return None


def _stated(line: str) -> Iterator[float]:
    for match in _RATE.finditer(line):
        yield float(match["value"].replace(",", "")) * _SCALES[match["unit"].upper()]


def _of_row(cells: Sequence[str], heads: Sequence[str]) -> Iterator[float]:
    """The rates in a row of a benchmark's table, whose first cell is the number of the row."""
    if not heads or len(cells) != len(heads) + 1 or not cells[0].isdigit():
        return
    for head, cell in zip(heads, cells[1:], strict=True):
        if not _SIZE.search(head) and "." in cell and _NUMBER.fullmatch(cell):
            yield float(cell)


def _result(
    name: str, signal: str, title: str, remedy: str, number: int, lines: Sequence[str]
) -> SignatureMatch:
    signature = ErrorSignature(
        id=name,
        toolchain="results",
        pattern="",
        signal=signal,
        title=title,
        remedy=remedy,
        origin=BUILTIN,
        failure_class="run_time_fault",
    )
    return SignatureMatch(signature, number, lines[number - 1].strip()[:MAX_LINE], {})
