"""The lines of a log that contain its message, and the normalised form of such lines.

Does not know signatures. A log is any text up to many megabytes: it is searched as lower-case
bytes, since finding a literal that way takes about two milliseconds in five megabytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

MAX_LINE = 2_000
# Keep the first and last 50 kB of longer lines.
LONGEST_LINE = 100_000
WINDOW = 300
# Lines with a keyword that are read: this many from the start and from the end.
MAX_HITS = 200
MAX_QUERY_LINE = 400

# Cached normalised lines; cached logs, each of at most so many characters. A request reads its log
# several times, and logs of one tool have lines in common.
LINES, LOGS, LONG_LOG = 4_000, 16, 50_000
KEYWORDS = 10_000  # keywords of all signatures with cached words

# Distance in lines in which the frame of an exception's message is searched for.
FRAME_LINES = 40

_FRAME = re.compile(r"\s*File \"")
_TEST_FRAME = re.compile(r"\S{1,400}\.py:\d{1,7}: \w")

# The first of these words with a colon is the label of a diagnostic.
_DIAGNOSTIC = re.compile(
    r"\b(?:(?P<failure>error|fatal|critical|panic)|(?P<advisory>\w{0,40}warning|note|remark))"
    r"(?: #[\w-]{1,20}| \([^)]{1,40}\)|\[[^\]]{1,40}\]| [A-Z]{1,4}\d{1,5})?\s{0,6}\]?:"
    r"|^\[?\s{0,4}WARN(?:ING)?\b|^(?:\[rank\d{1,4}\]:)?[WVI]\d{4} |^\[[WI] \d\d/",
    re.IGNORECASE,
)
# A line of a log that informs: its level, after a time or a logger's name at most. Linux reports
# stalls as INFO.
INFORMS = re.compile(
    r"[\d\s\[\]:.,/TZ+-]{0,40}(?:INFO|DEBUG|TRACE)\b(?!: (?:task|rcu))"
    r"|[^\"]{0,80}(?: - (?:INFO|DEBUG) - |:(?:INFO|DEBUG)\]:?\s|\blevel=(?:info|debug)\b)"
)
_DEBUGS = re.compile(r"[\d\s\[\]:.,/TZ+-]{0,40}(?:DEBUG|TRACE)\b")
# The level in brackets, as in "[TRT] [W]", and a tuner that goes on without a configuration.
_LEVEL = re.compile(
    r"[\d :.-]{12,40}: (?:(?P<failed>[EF])|[WI]) \S+:\d+\]"
    r"|[^\"']{0,100}?\[(?:(?P<failure>E|F|ERROR|FATAL|CRITICAL)"
    r"|[WIVDT]|WARN(?:ING)?|INFO|DEBUG|VERBOSE)\]"
)
_SANITIZER = "Sanitizer: "
_COMPUTE_SANITIZER = "========= "
_SKIPPED = re.compile(
    r"ignoring this (?:choice|config)|skipping (?:this |the )?(?:choice|config|tactic)"
    r"|^\W{0,4}(?:0|zero|none)(?:/\d{1,12}|(?: out)? of(?: the)?(?: \d{1,12})?)? ?"
    r"(?:values?|elements?|outputs?|results?|entries|tensors?|rows?)? "
    r"(?:is|are|were|ha[sv]e?|mismatch|differ|contain)",
    re.I,
)
_PREFIX = re.compile(
    r"^(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?\s{1,4})?(?:\[?rank\s?\d{1,4}\]?:\s?"
    r"|\(\w{1,40}(?: \w{1,20}=\d{1,6}){0,3} pid=\d{1,9}\)\s"
    r"|ERROR \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]{1,80}\]\s?"
    r"|E\d{4} \S{1,24} \d{1,9} [^\s\]]{1,200}\]\s(?:\[[\d/_]{1,12}\]\s)?|E {2,12}){0,3}"
)
_NUMBER_ALONE = re.compile(
    r"\s*(?:err(?:or|no)?|status|ret(?:urned)?|code|result)(?: ?code)?\s{0,3}[=:]\s{0,3}-?\d{1,4}$",
    re.IGNORECASE,
)
# Source quoted by a compiler, a traceback or a report, and settings: the message is on another
# line. A source line has no message: it is a directive, a definition, a comment, a call that is
# a whole statement, one string, or the assignment of a call.
_EXCERPT = re.compile(
    r"\s*(?:\d{1,7}\s*\|\s|(?:>\s+)?(?:raise|except)\s|with (?:pytest|self)\.|warnings\.warn\("
    r"|#\s{0,4}(?:include|define|error|ifn?def|if|elif|endif|pragma|warning)\b(?! directive)"
    r"|//|/\*|(?:async )?def \w+\(|class \w+[(:]|from [\w.]+ import\b|@[\w.]+(?:\(|$)"
    r"|(?:\} )?(?:else )?if \(.{1,400}[{};]$"
    r"|(?:[\w:.<>*&\[\]]{1,80} {0,2}=\s{0,2})?[\w:.>-]{1,80}\(.{0,1500}\)\s?;$"
    r"|[frbu]{0,2}(?:\"[^\"]{0,400}\"|'[^']{0,400}')[,)\]]{1,3}$|[fr]\"[^\"]{0,400}\"$"
    r"|[A-Za-z_][\w.]{0,80} {0,2}= {0,2}[A-Za-z_][\w.]{0,80}\((?:.{0,400}\))?,?$"
    r"|(?:export |ENV |set )?[A-Z][A-Z0-9_]{2,60}=\S*$)"
)

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_SHAPE = bytes.maketrans(b"23456789", b"11111111")


def without_prefix(line: str) -> str:
    """A line without the prefix of a launcher, a build service or a test report."""
    return _PREFIX.sub("", line, count=1)


def _ends(raw: bytes) -> bytes:
    if len(raw) <= LONGEST_LINE:
        return raw
    return raw[: LONGEST_LINE // 2] + b" ... " + raw[-LONGEST_LINE // 2 :]


def is_advisory(line: str) -> bool:
    """Whether a line labels itself as information, a warning, a note or a remark."""
    if _SKIPPED.search(line, 0, MAX_LINE) or _DEBUGS.match(line):
        return True
    if _SANITIZER in line or line.lstrip().startswith(_COMPUTE_SANITIZER):
        return False  # their findings may be labelled as warnings
    if (level := _LEVEL.match(line)) is not None:
        return level["failure"] is None and level["failed"] is None
    label = _DIAGNOSTIC.search(line[:MAX_LINE])
    informs = INFORMS.match(without_prefix(line)) is not None
    return informs if label is None else label["failure"] is None


def is_excerpt(line: str) -> bool:
    """Whether a line only quotes the source that a message is about."""
    return _EXCERPT.match(line) is not None


# A newline in an escaped string; formats of printf and paths of Windows have none.
_ESCAPED = re.compile(r"\\{1,8}n(?![\"'\\])")
_NEWLINE = re.compile(r"(?:\\{1,8}r)?\\{1,8}n")
_NO_STRING = re.compile(r"%[-\d.l]{0,5}[sdufx]\b|std::c(?:err|out)\b|[\"'];\s*$")
_WINDOWS = re.compile(r"\b[A-Za-z]:\\{1,4}\w")


def _unescaped(line: str) -> list[str]:
    """The lines of a text that a log has as one escaped string (Rust's Debug, JSON, Python's repr);
    the line itself if it has none."""
    of_path = _WINDOWS.search(line) and '\\"' not in line
    if of_path or not _ESCAPED.search(line) or _NO_STRING.search(line) or is_excerpt(line):
        return [line]
    parts = _NEWLINE.split(line)
    return [re.sub(r"\\{1,8}([\"'])", r"\1", re.sub(r"\\{1,8}t", "  ", p)) for p in parts]


@dataclass(frozen=True)
class Line:
    """One line of a log; `number` counts from 1."""

    number: int
    text: str


class LogIndex:
    """A log prepared for many literal searches. Lines that differ only in digits count once. Zero
    is distinguished from other digits: "0 bytes spill stores" is another message than "8 bytes"."""

    def __init__(self, log: str) -> None:
        if "\x1b" in log:
            log = _ANSI.sub("", log)
        # GCC quotes names by the locale; patterns have plain quotes.
        log = log.translate(_QUOTES)
        self._printed: list[int] = []
        if "\\n" in log:
            pieces = [_unescaped(line) for line in log.split("\n")]
            self._printed = [n for n, own in enumerate(pieces, 1) for _ in own]
            log = "\n".join(text for own in pieces for text in own)
        self._log = log
        self._all: list[str] | None = None  # split on demand
        raw = [_ends(line) for line in log.encode("utf-8", "replace").split(b"\n")]
        shapes = b"\n".join(raw).lower().translate(_SHAPE).split(b"\n")
        first: dict[bytes, int] = {}
        for number, shape in enumerate(shapes):
            first.setdefault(shape, number)
        self._numbers = list(first.values())
        self._raw = [raw[number] for number in self._numbers]
        self._lower = b"\n".join(self._raw).lower()
        # Words repeat in logs, so this much shorter text refutes most keywords.
        self._words = b"\n".join(set(self._lower.translate(_SHAPE).split()))

    def __len__(self) -> int:
        return len(self._raw)

    def lines(self, keywords: Iterable[str]) -> Iterator[tuple[Line, frozenset[str]]]:
        """The lines with a keyword (lower case), in order, each with the keywords it contains."""
        keywords_at: dict[int, set[str]] = {}
        where: dict[int, list[int]] = {}
        for keyword in sorted(set(keywords)):
            if any(word not in self._words for word in _shapes_in(keyword)):
                continue
            for start, at in self._hits(keyword.encode()):
                keywords_at.setdefault(start, set()).add(keyword)
                where.setdefault(start, []).append(at - start)
        number = seen = 0
        for start in sorted(keywords_at):
            number += self._lower.count(b"\n", seen, start)
            seen = start
            text = self._cut(number, where[start])
            yield Line(self._numbers[number] + 1, text), frozenset(keywords_at[start])

    def printed_at(self, number: int) -> int:
        """The line of the log that line `number` is, or is a part of if it was escaped."""
        return self._printed[number - 1] if self._printed else number

    def tail(self, count: int) -> Iterator[Line]:
        """The last non-empty lines, in order."""
        full = [i for i, raw in enumerate(self._raw) if raw.strip()]
        for i in full[-count:]:
            yield Line(self._numbers[i] + 1, self._cut(i, []))

    def with_number_below(self, line: Line) -> str:
        """A line and the number of its error that is alone on the next line ("Error = -54")."""
        below = self.after(line)
        alone = below is not None and _NUMBER_ALONE.match(below.text.rstrip())
        return f"{line.text.rstrip(' .:')} {alone[0].strip()}" if alone else ""

    def after(self, line: Line) -> Line | None:
        """The line after one of this index, None after the last."""
        i = bisect_right(self._numbers, line.number - 1)
        return Line(self._numbers[i] + 1, self._cut(i, [])) if i < len(self._raw) else None

    @property
    def all_lines(self) -> list[str]:
        """Every line as printed, without colours."""
        if self._all is None:
            self._all = self._log.split("\n")
        return self._all

    def frame_of(self, number: int) -> str:
        """The line with the Python frame that raised the exception of line `number`; empty if none
        is near. In a traceback it precedes the message, in a test report of pytest it follows."""
        above = self.all_lines[max(0, number - 1 - FRAME_LINES) : number - 1]
        for text in reversed(above):
            text = without_prefix(text)
            if _FRAME.match(text):
                return text[:MAX_LINE]
            if text.startswith("Traceback"):
                break
        below = self.all_lines[number : number + FRAME_LINES]
        return next((text[:MAX_LINE] for text in below if _TEST_FRAME.match(text)), "")

    def is_quoted_source(self, number: int) -> bool:
        """Whether line `number` is the source below a frame of a traceback, or an assertion in a
        listing: one that failed is followed by its exception, in pytest's marked by `>`."""
        above = self.all_lines[number - 2] if number > 1 else ""
        text, *below = self.all_lines[number - 1 : number + 3]
        if text.lstrip().startswith("assert "):
            failed = any("Error" in line for line in below)
            return not failed or any(line.startswith(">") for line in below)
        above, text = without_prefix(above), without_prefix(text)
        deeper = len(text) - len(text.lstrip()) > len(above) - len(above.lstrip())
        return deeper and _FRAME.match(above) is not None and not text.lstrip().startswith("@ ")

    def _cut(self, index: int, places: list[int]) -> str:
        """The start of a long line and the text around the keywords. Mangled names of thousands of
        characters separate the tool's name from its message."""
        raw = self._raw[index]
        if len(raw) > MAX_LINE:
            head, end = raw[:WINDOW], WINDOW
            for place in sorted(places):
                start = max(end, place - WINDOW)
                gap = b" ... " if start > end else b""
                end = max(end, place + WINDOW)
                head += gap + raw[start:end]
            raw = head[:MAX_LINE]
        return raw.decode("utf-8", "replace").rstrip()

    def _hits(self, keyword: bytes) -> Iterator[tuple[int, int]]:
        """Start of line and position of the first and last lines with a keyword."""
        forward: set[int] = set()
        position = 0
        while len(forward) < MAX_HITS and (at := self._lower.find(keyword, position)) >= 0:
            start = self._lower.rfind(b"\n", 0, at) + 1
            forward.add(start)
            yield start, at
            end = self._lower.find(b"\n", at)
            if end < 0:
                return
            position = end + 1
        limit, backward = len(self._lower), 0
        while backward < MAX_HITS and (at := self._lower.rfind(keyword, position, limit)) >= 0:
            start = self._lower.rfind(b"\n", 0, at) + 1
            if start not in forward:
                yield start, at
            limit, backward = start, backward + 1


@lru_cache(maxsize=KEYWORDS)
def _shapes_in(keyword: str) -> tuple[bytes, ...]:
    """The words of a keyword with digits replaced as in `LogIndex`. Keywords come from the
    signatures."""
    return tuple(keyword.encode().translate(_SHAPE).split())


_QUOTES = {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'}
_NORMALISE = (
    (re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]"), ""),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?"), ""),
    (
        re.compile(
            r"\"[^\"]{1,400}\"|'[^']{1,400}'|`[^`']{1,400}[`']|\u2018[^\u2019]{1,400}\u2019"
        ),
        "<name>",
    ),
    (re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\w.+~-]{0,80}[/\\][^\s:,;()\"']{1,400}"), "<path>"),
    (re.compile(r"\b[\w+-]{1,80}\.(?:py|cu|cuh|cpp|cc|c|h|hpp|hip|s|ptx|mlir)\b"), "<path>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]{1,32}\b"), "<hex>"),
    (
        re.compile(
            r"(?<![\w<])(?<![A-Z]{2}-)[+-]?\d[\d,]{0,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,4})?(?![\w>])"
        ),
        "<n>",
    ),
    (re.compile(r"\b_Z\w{3,}"), "<name>"),
    (re.compile(r"(?:<path>)(?::<n>|\(<n>\)){1,3}"), "<path>"),
    (re.compile(r"\s{2,}"), " "),
)


def normalise_error(line: str) -> str:
    """The normalised form of a message: without paths, addresses, numbers, quoted names and time
    stamps. Codes such as NCC_EVRF051, VB-271 or sm_90 remain, since they identify the kind of
    error."""
    return _normalised(line[:MAX_LINE])


@lru_cache(maxsize=LINES)
def _normalised(text: str) -> str:
    for pattern, replacement in _NORMALISE:
        text = pattern.sub(replacement, text)
    return text.strip()


_CODE = re.compile(
    r"\b(?:NCC_[A-Z]{2,6}\d{0,4}|NRT_[A-Z_]{4,40}|(?:cuda|hip)Error[A-Z]\w{2,40}"
    r"|(?:CUDA|HIP|HSA_STATUS)_ERROR_[A-Z_]{3,40}|CL_[A-Z_]{6,40})"
)
_EXCEPTION = re.compile(
    r"^\s*(?:E\s+)?(?:[A-Za-z_]\w{0,60}\.){0,6}\w{0,60}(?:Error|Exception|Failure)\b"
)
_LABEL = re.compile(
    r"\b[Ee]rror\s{0,4}:|\b(?:ERROR|FATAL)\b|^\s*(?:[Ee]rror|fatal)\b|\bfatal\s{0,4}:"
)
_CARET = re.compile(r"^\s*\^[\s~]*$")
# Mangled names are useless for search and would fill the line.
_LONG_WORD = re.compile(r"\w{60,}")
_SCORES = (
    (_CODE, 5),
    (_EXCEPTION, 4),
    (_LABEL, 3),
    (
        re.compile(
            r"fault|illegal|abort|out of (?:memory|resource)|unsupported|undefined|nan\b", re.I
        ),
        2,
    ),
    (
        re.compile(
            r"fail|assert|cannot|unable|not support|mismatch|invalid|exceed|timed? ?out|spill", re.I
        ),
        2,
    ),
    (re.compile(r"^\s*(?:note|remark|warning)\b|: (?:note|remark|warning):", re.I), -1),
    (re.compile(r"^\s*File \"|^\s*Traceback|errors? generated|^make|Search for `"), -4),
)
_TRIGGERS = (
    *(
        "error",
        "exception",
        "failure",
        "fatal",
        "fault",
        "illegal",
        "abort",
        "out of ",
        "unsupported",
    ),
    *("undefined", "fail", "assert", "cannot", "unable", "not support", "mismatch", "invalid"),
    *("exceed", "timed out", "timeout", "spill", "ncc_", "nrt_", "nan", "signal", "^"),
)


def query_lines(log: str, limit: int = 12) -> list[str]:
    """The lines of a log that contain its message, best first; without any, the last lines."""
    return list(_query_lines(log, limit) if len(log) <= LONG_LOG else _read_lines(log, limit))


@lru_cache(maxsize=LOGS)
def _query_lines(log: str, limit: int) -> list[str]:
    return _read_lines(log, limit)


def _read_lines(log: str, limit: int) -> list[str]:
    index = LogIndex(log)
    if len(index) == 1:
        return [_short(log)] if log.strip() else []
    best: dict[str, tuple[int, int, str]] = {}
    for line, score in _scored(index):
        shape = normalise_error(line.text)
        if shape not in best or -score < best[shape][0]:
            best[shape] = (-score, line.number, _short(line.text))
    # A traceback ends with its message, so of lines with equal rank the last precedes.
    last = max((number for _, number, _ in best.values()), default=0)
    ranked = sorted(best.values(), key=lambda row: (row[0] - (row[1] == last), row[1]))
    if not ranked:
        return [_short(line.text) for line in index.tail(min(limit, 3))]
    return [text for _, _, text in ranked[:limit]]


def _scored(index: LogIndex) -> Iterator[tuple[Line, int]]:
    for line, keywords in index.lines(_TRIGGERS):
        score = sum(points for pattern, points in _SCORES if pattern.search(line.text))
        if score > 0:
            yield line, score
        # Compilers that print a caret on a separate line print the message on the next line.
        if "^" in keywords and _CARET.match(line.text):
            message = index.after(line)
            if message and message.text.strip():
                yield message, 4


def _short(text: str) -> str:
    return " ".join(_LONG_WORD.sub("", text[:MAX_LINE]).split())[:MAX_QUERY_LINE]


# -- boilerplate: sentences that a framework prints below every error. They carry no information
# about the error at hand, and documents quote them with other errors.

# Collected from PyTorch 2.x (CUDA and ROCm), JAX 0.4 and later, torch.compile, GCC and Clang.
_BOILERPLATE = re.compile(
    r"(?:CUDA|HIP|XPU) kernel errors might be asynchronously reported at some other API call"
    r"(?:,? so the stacktrace below might be incorrect)?\.?"
    r"|For debugging consider passing [A-Z_]{4,40} ?= ?\d\.?"
    r"|Compile with [`'\"]?TORCH_USE_\w{2,8}_DSA[`'\"]? to enable device-side assertions\.?"
    r"|Device-side assertions? (?:tracking )?(?:was|were) not enabled by user\.?"
    r"|Search for [`'\"]\w{1,60}[`'\"] in https?://\S{1,200} for more information\.?"
    r"|For simplicity, JAX has removed its internal frames from the traceback of the following"
    r" exception\.(?: Set JAX_TRACEBACK_FILTERING=off to include these\.)?"
    r"|The stack trace below excludes JAX-internal frames\."
    r"|The preceding (?:stack trace )?is the (?:original exception that occurred, unmodified"
    r"|source of the JAX operation[^\n]{0,200})\."
    r"|(?:This|The above) exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:"
    r"|Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace[^\n]{0,300}"
    r"|Set TORCH_LOGS=[^\n]{1,200}"
    r"|For even more developer context, set TORCH_LOGS=[^\n]{1,80}"
    r"|You can suppress this exception and fall back to eager by setting:"
    r"|^ {0,8}import torch\._dynamo$|^ {0,8}torch\._dynamo\.config\.suppress_errors = True$"
    r"|Please submit a full bug report[^\n]{0,200}|^See <[^>\n]{1,200}> for instructions\."
    r"|^[^\n]{0,80}note: each undeclared identifier is reported only once[^\n]{0,80}"
    r"|^compilation terminated\.$|^\d{1,6} (?:warnings? and \d{1,6} )?errors? generated[^\n]{0,60}$"
    r"|^\d{1,6} errors? detected in the compilation of [^\n]{1,200}$"
    r"|^Traceback \(most recent call last\):$|^-{8,200}$",
    re.IGNORECASE | re.MULTILINE,
)
MAX_TEXT = (
    20_000  # characters; in longer texts the sentences weigh little, and the search takes time
)
_BLANK_LINES = re.compile(r"\n\s*\n")


# Frames of Python, and Triton's listing of the kernel up to the caret: lines of the program, not of
# the message below them.
_TRACED = re.compile(
    r'^ {2}File "[^"\n]{1,300}", line \d{1,7}, in [^\n]{1,200}\n(?: {4}[^\n]*\n)?', re.MULTILINE
)
LISTED = re.compile(r"\bat \d{1,5}:\d{1,5}:\s*$")
_LISTING = re.compile(
    r"(\bat \d{1,5}:\d{1,5}:)[ \t]*\n(?:[^\n]*\n){1,14}?[ \t]*\^[ \t]*$", re.MULTILINE
)


def without_program(text: str) -> str:
    """The text without lines of the program in tracebacks and listings; unchanged if hardly
    anything else remains or the text is long."""
    if len(text) > MAX_TEXT:
        return text
    left = _LISTING.sub(r"\1", _TRACED.sub("", text))
    return left if len(left.split()) > 4 else text


def without_boilerplate(text: str) -> str:
    """The text without these sentences; unchanged if nothing else remains or the text is long."""
    if len(text) > MAX_TEXT:
        return text
    left = _BOILERPLATE.sub("", text)
    if left == text or not left.strip():
        return text
    return _BLANK_LINES.sub("\n", left).strip()
