"""Whole kernels among the code blocks of a manual, which a model imitates first.

A block counts when it has an entry (a kernel, a function, a directive, a label), a body that uses
several of the document's names or reads and writes memory, and an end. Commands, configuration and
output do not count. Knows no language: entries have the forms that many languages share.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingestion.passages import ParsedSection
from ingestion.symbols.definitions import FOREIGN_FENCES, HOSTS, word_set
from ingestion.symbols.headers import computes, is_header
from ingestion.symbols.names import tokens_in
from kb.catalog.knowledge.samples import KernelSample
from kb.catalog.knowledge.symbols import Card
from kb.problem_terms import canonical_op, problem_terms

MAX_KERNEL = 20_000  # characters
MAX_KERNELS = 50  # of a manual
MAX_TEXT = 200_000  # characters of all its kernels
MAX_SHAPES = 16
_LINES = 4  # of code, without comments: a fragment has fewer
_SYMBOLS = 3  # different ones that the body of a kernel uses
_CALLS = (
    3  # different ones in a body under the keyword `kernel`, in a manual without a list of names
)

_NO_LANGUAGE = word_set("text none plain plaintext default code txt pseudocode pseudo")

_DECORATED = re.compile(r"^[ \t]*@[\w.]{0,40}(?:jit|kernel|autotune|heuristics|compile)\b", re.M)
_PYTHON = re.compile(r"^[ \t]*(?:async )?def[ \t]+(\w++)[ \t]*\(", re.M)
_OTHER_LANGUAGE = re.compile(
    r"^[ \t]*(?:@|import |from )(?:triton|numba|cutlass|jax|taichi|warp)\b", re.M
)
_TAKES = re.compile(r"\bdef[ \t]+\w+[ \t]*\([ \t\n]*[^)\s]")
_MARKED_ENTRY = re.compile(
    r"(?:__global__|\b__kernel\b|\[\[kernel\]\]|\bextern \"C\"|\bkernel_entry\b|__aicore__)", re.M
)
_KERNEL_MARK = re.compile(r"__global__|\b__kernel\b|\[\[kernel\]\]|__aicore__")
_FUNCTION = re.compile(
    r"^[ \t]*(?:[A-Za-z_][\w:<>,*&.@\[\]\"() -]{0,160}?[\s*&])?[@%]?(\w++)[ \t]*"
    r"(?:<[^<>\n]{0,80}>)?\([^;{}]{0,1500}\)[^;(){}\n]{0,200}\{",
    re.M,
)
_DIRECTIVE = re.compile(
    r"^[ \t]*\.(?:visible[ \t]+\.)?(?:kernel|entry|func|global|globl|amdhsa_kernel|text|type)\b"
    r"[ \t]*+@?([A-Za-z_][\w.$]*+)?",
    re.M | re.I,
)
_NAMED_ENTRY = re.compile(
    r"^[ \t]*(?:kernel|routine|proc|procedure|program|func|function|fn|entry|subroutine|task)[ \t]+"
    r"([A-Za-z_]\w*+)",
    re.M | re.I,
)
_DECLARED = re.compile(r"[ \t]*kernel[ \t]+[A-Za-z_]\w*+[ \t]*\(?\Z", re.I)
_CALL = re.compile(r"\b[A-Za-z_]\w*+(?:\.\w++)*+(?=[ \t]*\()")
_LABEL = re.compile(r"^([A-Za-z_.][\w.$]*+):[ \t]*(?:[#;/].*)?$", re.M)
_CONTROL = word_set("if for while switch else do return catch")
_END = re.compile(
    r"\}\s*;?\s*\Z|\b(?:ret|return|end|endkernel|s_endpgm|exit|halt|stop|done)\b", re.I
)
# The name of an access, or an assigned element.
_MEMORY = re.compile(
    r"(?:\b|_|\.)(?:load|store|ld|st|dma|dma_copy|copy|read|write|fetch|gather|scatter|put|get)"
    r"\w{0,12}(?=[ \t]*[\w(%.\[])|\w\[[^\]\n]{1,120}\][ \t]*[-+*/|&]?=(?!=)",
    re.I,
)
_ELIDED = re.compile(
    r"^[ \t]*(?:(?://|#)[ \t]*)?\.\.\.[ \t]*$|^[ \t]*(?:async )?def \w+\(\.\.\.\)", re.M
)
_COMMAND = re.compile(
    r"^\s*(?:[$>%] |>>> |(?:sudo|pip3?|apt|cmake|make|git|cd|export|docker|python3?|conda) )", re.M
)
_GENERATOR = re.compile(r"^[ \t]*(?:async def|yield\b|await\b)|[=(][ \t]*(?:yield|await)\b", re.M)
# Comments of examples with rejected code.
_REFUSED = re.compile(
    r"(?://|/\*|#)[ \t]*(?:ill-formed|invalid|illegal|undefined behaviou?r|not allowed|error)\b",
    re.I,
)
_SCALARS = re.compile(
    r"\s*(?:void|(?:(?:const|unsigned|signed|struct)[ \t]+)*[A-Za-z_]\w*[ \t]+\w+"
    r"(?:[ \t]*,[ \t]*(?:(?:const|unsigned|signed|struct)[ \t]+)*[A-Za-z_]\w*[ \t]+\w+)*)?\s*"
)
_COMMENT = re.compile(r"^\s*(?://|#(?!\w)|/\*|\*|;)")
_SHAPE = re.compile(r"\b[A-Za-z_]\w{0,40}(?:\[[\w \t+*/,.:-]{1,32}\]){1,4}")


OWN_LINES, OWN_SYMBOLS = 12, 6  # of a whole kernel whose entry is not recognised
NO_ENTRY = (
    "no entry is seen in it, and it is short. Begin it with a label (`name:`) or a directive such"
    f" as `.entry name`, or show all of it: {OWN_LINES} lines with {OWN_SYMBOLS} different names"
)


def kernels_of(
    sections: Sequence[ParsedSection],
    cards: Sequence[Card],
    languages: Collection[str] = (),
    own: Collection[str] = (),
    hosts: Collection[str] = HOSTS,
) -> list[KernelSample]:
    """The whole kernels of one document in reading order. `languages` are those that it is about,
    `own` those of its chips alone, whose names another manual may define, `hosts` labels of code
    that can be in a language of the document's own."""
    names = {card.name: card for card in cards}
    by_last = _by_last_part(names)
    stated = languages or own
    only = next(iter(stated)) if len(stated) == 1 else ""
    chip_languages = {language.lower() for language in languages}
    chips = {language.lower() for language in own}
    kernels: list[KernelSample] = []
    seen: set[str] = set()
    text = 0
    for number, section in enumerate(sections):
        for code, fence in _blocks(section):
            if len(code) > MAX_KERNEL or code in seen:
                continue
            if _declares(code, fence, names):
                continue
            symbols = _symbols(code, names, by_last)
            entry = entry_of(code)
            if entry is None or not _is_whole(code, entry, symbols):
                # A language of the chip's own may mark its entry in an unknown way.
                known = fence in chip_languages | chips and _is_long(code, symbols)
                if not known and not (fence in chips and _is_varied(code, entry)):
                    continue
                entry = entry or KernelEntry("", (), True)
            if len(kernels) == MAX_KERNELS or text + len(code) > MAX_TEXT:
                return kernels
            seen.add(code)
            text += len(code)
            is_own = not fence or (fence in hosts and _is_own(code, entry, symbols))
            kernels.append(
                KernelSample(
                    operator=operator_of(entry.name, section.path),
                    title=section.title,
                    language=only if only and is_own else fence,
                    shapes=entry.shapes,
                    section=number,
                    code=code,
                    symbols=symbols,
                )
            )
    return kernels


def _declares(code: str, fence: str, names: Collection[str]) -> bool:
    """Whether a block is a header of declarations, accessors and helpers, without a kernel."""
    return is_header(code, fence) and not (_KERNEL_MARK.search(code) or computes(code, names))


def _is_own(code: str, entry: KernelEntry, symbols: Sequence[str]) -> bool:
    """Whether a kernel is in the language of the document, not in one that its host embeds too."""
    return (entry.marked or len(symbols) >= _SYMBOLS) and not _OTHER_LANGUAGE.search(code)


def fragments_of(
    sections: Sequence[ParsedSection],
    cards: Sequence[Card],
    kernels: Sequence[KernelSample],
    languages: Collection[str] = (),
) -> list[tuple[int, str]]:
    """The blocks with a language that begin as only a kernel does, or are in one of `languages`,
    without those of `kernels`: by section index, with the reason."""
    own = {language.lower() for language in languages}
    names = {card.name: card for card in cards}
    by_last, whole = _by_last_part(names), {kernel.code for kernel in kernels}
    fragments = []
    for number, section in enumerate(sections):
        for code, fence in _blocks(section):
            if not fence or code in whole or _declares(code, fence, names):
                continue
            entry, lack = entry_of(code), ""
            if entry is not None and entry.marked:
                lack = _lacks(code, entry, _symbols(code, names, by_last))
            elif entry is None and fence in own and len(_lines(code)) >= _LINES:
                lack = NO_ENTRY
            if lack:
                name = entry.name if entry is not None else ""
                fragments.append((number, f"{name or 'a block'} is no whole kernel: {lack}"))
    return fragments


def _blocks(section: ParsedSection) -> Iterator[tuple[str, str]]:
    """Code blocks with their languages; one whose brackets stay open goes on in the next."""
    pending, language = "", ""
    for element in section.elements:
        if element.kind != "code":
            if element.kind == "title" or len(element.text) > 400:
                pending = ""
            continue
        fence = (element.language or "").lower()
        fence = "" if fence in _NO_LANGUAGE else fence
        if fence in FOREIGN_FENCES:
            continue
        code = f"{pending}\n{element.text}" if pending and fence == language else element.text
        if _is_open(code) and len(code) < MAX_KERNEL:
            pending, language = code, fence
            continue
        pending = ""
        yield code, fence
    if pending:
        yield pending, language


def _is_open(code: str) -> bool:
    return code.count("{") > code.count("}") and entry_of(code) is not None


@dataclass(frozen=True)
class KernelEntry:
    """Where a kernel begins. `marked` is a sign that nothing but a kernel has, `declared` that the
    keyword `kernel` precedes its name, `scalar` that it takes values of C types and no memory."""

    name: str
    shapes: tuple[str, ...]
    marked: bool
    declared: bool = False
    scalar: bool = False


def entry_of(code: str) -> KernelEntry | None:
    """The entry of a block of code, or None."""
    if len(code) > MAX_KERNEL:
        return None
    decorated = _DECORATED.search(code)
    marked = bool(decorated or _MARKED_ENTRY.search(code))
    if decorated and (head := _PYTHON.search(code, decorated.end())):
        return KernelEntry(head[1], _shapes(code, head.start()), True)
    for pattern in (_NAMED_ENTRY, _PYTHON, _FUNCTION, _DIRECTIVE, _LABEL):
        for match in pattern.finditer(code):
            name = match[1] or ""
            if name.lower() in _CONTROL:
                continue
            kernel = marked or "kernel" in match[0].lower() or pattern is _DIRECTIVE
            declared = pattern is _NAMED_ENTRY and bool(_DECLARED.match(match[0]))
            scalar = pattern is _FUNCTION and _takes_scalars(match[0], name)
            scalar |= pattern is _PYTHON and not _TAKES.search(code)
            return KernelEntry(name, _shapes(code, match.start()), kernel, declared, scalar)
    return KernelEntry("", (), True) if marked else None


def _takes_scalars(head: str, name: str) -> bool:
    parameters = head[head.index(name) + len(name) :].partition("(")[2].rpartition(")")[0]
    return _SCALARS.fullmatch(parameters) is not None


def _shapes(code: str, start: int) -> tuple[str, ...]:
    """Arguments with sizes, from the brackets of the entry's argument list."""
    opening = code.find("(", start)
    if opening < 0 or opening - start > 400:
        return ()
    depth = 0
    for place in range(opening, min(len(code), opening + 4_000)):
        depth += (code[place] == "(") - (code[place] == ")")
        if depth == 0:
            shapes = dict.fromkeys(_SHAPE.findall(code[opening:place]))
            return tuple(shapes)[:MAX_SHAPES]
    return ()


def _is_whole(code: str, entry: KernelEntry, symbols: Sequence[str]) -> bool:
    return not _lacks(code, entry, symbols)


def _lacks(code: str, entry: KernelEntry, symbols: Sequence[str]) -> str:
    """Why a block with an entry is not a whole kernel; empty for one that is."""
    lines = _lines(code)
    if len(lines) < _LINES or _COMMAND.match(code):
        return f"it has fewer than {_LINES} lines of code, or is a command"
    if _ELIDED.search(code):
        return "a part of it is left out (...)"
    if _GENERATOR.search(code) and not entry.marked:
        return "it is a functional model: a generator or a coroutine"
    if _REFUSED.search(code):
        return "its comments call parts of it invalid"
    if entry.scalar and not entry.marked:
        return "its entry takes no memory: only values, or nothing"
    if not (_PYTHON.search(code) or _END.search(code)):
        return "its end is not seen: a closing brace, or a word like ret or end"
    used = [name for name in symbols if name != entry.name]
    calls = set(_CALL.findall(code)) - {entry.name, *_CONTROL} if entry.declared else set()
    memory = bool(_MEMORY.search(code))
    enough = len(used) >= _SYMBOLS
    if entry.marked and (enough or memory or len(calls) >= _CALLS):
        return ""
    if not entry.marked and enough and (memory or len(used) > _SYMBOLS):
        return ""
    return (
        f"it uses fewer than {_SYMBOLS} names that the manual defines in a table or list, and"
        " nothing in it reads or writes memory by a usual name"
    )


def _lines(code: str) -> list[str]:
    """The lines that are neither blank nor a comment."""
    return [line for line in code.split("\n") if line.strip() and not _COMMENT.match(line)]


def _is_long(code: str, symbols: Sequence[str]) -> bool:
    """Whether a block in the chip's own language is as long and as varied as a whole kernel."""
    lines = _lines(code)
    if _ELIDED.search(code) or _COMMAND.match(code):
        return False
    # The names that it uses may be defined in another document.
    leading = {line.split()[0] for line in lines}
    varied = len(symbols) >= OWN_SYMBOLS or len(leading) >= OWN_SYMBOLS
    return len(lines) >= OWN_LINES and varied


def _is_varied(code: str, entry: KernelEntry | None) -> bool:
    """Whether a block in the chip's own language has all of a whole kernel but names that this
    manual defines: several different ones begin its lines."""
    lines = _lines(code)
    if entry is None or not entry.marked or len(lines) < _LINES:
        return False
    if _ELIDED.search(code) or _COMMAND.match(code) or not _END.search(code):
        return False
    leading = {word for line in lines if not (word := line.split()[0]).startswith((".", "}"))}
    return len(leading - {f"{entry.name}:"}) > _SYMBOLS


def _by_last_part(names: Collection[str]) -> Mapping[str, str]:
    """Names by their last part (`load` of `triton.language.load`, which code calls `tl.load`), if
    that is long enough to be no chance."""
    return {
        last: name for name in names if (last := name.rpartition(".")[2]) != name and len(last) > 3
    }


def _symbols(code: str, names: Mapping[str, Card], by_last: Mapping[str, str]) -> tuple[str, ...]:
    used: dict[str, None] = {}
    for token in tokens_in(code):
        if token in names:
            used[token] = None
            continue
        head, dot, last = token.rpartition(".")
        if dot and last in by_last:
            used[by_last[last]] = None
        elif dot and head in names:
            used[head] = None
    return tuple(used)


# The computation of a kernel, by the words of its name and headings

_PHRASES: Mapping[str, str] = {
    "matrix multiplication": "matmul",
    "matrix multiply": "matmul",
    "matrix product": "matmul",
    "matrix matrix": "matmul",
    "batched matmul": "bmm",
    "batch matmul": "bmm",
    "dot product": "reduction",
    "vector add": "elementwise",
    "vector addition": "elementwise",
    "tensor add": "elementwise",
    "tensor addition": "elementwise",
    "matrix addition": "elementwise",
    "element wise": "elementwise",
    "layer normalization": "layernorm",
    "rms normalization": "rmsnorm",
    "batch normalization": "batchnorm",
    "group normalization": "groupnorm",
    "row sum": "reduction",
    "prefix sum": "scan",
    "cumulative sum": "scan",
    "average pooling": "pooling",
    "max pooling": "pooling",
    "flash attention": "attention",
    **dict.fromkeys(
        word_set("add vadd vecadd saxpy axpy relu gelu silu sigmoid tanh swiglu"), "elementwise"
    ),
}
# Also ordinary words: these count last, and the second line only in the name of a kernel.
_ORDINARY = word_set(
    "sum truncate sort scan embedding reduce gather scatter pool ragged loss add fm mm transpose"
)
_IN_NAMES = word_set("linear copy pad take mean max min binary unary activation single nested")


def operator_of(entry: str, path: Sequence[str]) -> str:
    """The canonical operator that an entry's name or its headings, innermost first, name."""
    texts = [entry, *reversed(path[-2:])]
    for ordinary in (False, True):
        for number, text in enumerate(texts):
            skipped = _IN_NAMES | (frozenset() if ordinary else _ORDINARY)
            operator = _operator_in(text, skipped if number or not ordinary else frozenset())
            if operator:
                return operator
    return ""


def _operator_in(text: str, skipped: frozenset[str]) -> str:
    spread = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text[:300]).lower()
    words = re.findall(r"[a-z]+[0-9]?[a-z]*", spread.replace("_", " ").replace("-", " "))
    terms = problem_terms()
    for size in (4, 3, 2, 1):
        for start in range(len(words) - size + 1):
            phrase = " ".join(words[start : start + size])
            if phrase in skipped:
                continue
            if phrase in _PHRASES:
                return _PHRASES[phrase]
            operator = canonical_op(phrase)
            if operator in terms.ops:
                return operator
    return ""
