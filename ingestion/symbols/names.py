"""Names of a language, by the marks of the source and by their shape.

Documents mark code with ticks or not at all (HTML and PDF lose the marks), so functions here get
the context: a column of instructions may contain `add`, a heading may not.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ingestion.symbols.definitions import MAX_NAME, MAX_SIGNATURE, cut, word_set

_LINK = re.compile(r"(?<![\w\]])\[([^\[\]\n]{2,200})\](?:\([^()\s]{0,500}\)|\[[^\[\]\n]{2,80}\])")
_REFERENCE = re.compile(
    r":(?:ref|doc|numref|term|download|math|eq|cite|envvar|option|program|abbr|file|command):"
    r"`([^`<\n]{1,200})(?:<[^<>`\n]{0,200}>)?`"
)
_ROLE = re.compile(r"(?::[A-Za-z][\w:+-]{0,40}:|\{[A-Za-z][\w:+-]{0,40}\})(?=`)")
_TARGET = re.compile(r"`([^`<\n]{1,200}?)\s?<[^<>`\s]{1,300}>`_{0,2}")
_TAG = re.compile(r"</?(?:code|tt|sup|sub|b|i|em|strong|br|p|span|a)\b[^<>]{0,200}>", re.I)
_ESCAPE = re.compile(r"\\([_*`<>|.\[\]{}()#+\-!~])")
CODE = re.compile(r"`{1,3}([^`]{1,600})`{1,3}")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])([^*\n]{1,200})\1(?![\w*])")
_ASIDE = re.compile(r"\([^()]{0,120}\)|\[[^\[\]]{0,20}\]|[†‡§¶*¹²³⁴]")
_AND = re.compile(r"\s*(?:[,;/|]|\band\b|\bor\b)\s*|\s+")
_TYPE_MARK = re.compile(r"[*&_<>:\[\]]|\d$")
_TYPE_WORDS = word_set(
    "void int float double char short long unsigned signed bool auto const static inline extern "
    "virtual constexpr template typename class struct enum def async function method property "
    "macro classmethod staticmethod abstract kernel half half2 public proc fn func"
)
_OPERATOR = re.compile(r"\s+[-+*/<>=&|?^!:]{1,3}\s|\s*[=]")
_COMPARED = re.compile(r"\)\s*(?:[<>!=]=|[\u2264\u2265\u2260]|[<>](?![<>]))[^()]*\Z")
_PHRASE = re.compile(r"(?:\b[a-z]{2,}\s+){2}[a-z]{2,}")
_JOINING = word_set(
    "and or the instruction instructions intrinsic function functions directive keyword qualifier "
    "operator op register type macro api method statement attribute optional etc new deprecated"
)

NAME = re.compile(
    r"[.%@$!#]?(?:[A-Za-z_]\w*+)(?:(?:\.|::|->)[A-Za-z_0-9]\w*+)*+(?:\.\*|\*)?", re.ASCII
)
_HYPHENED = re.compile(r"[A-Za-z_]\w*+(?:-\w++){1,3}", re.ASCII)
_ERROR = re.compile(
    r"[A-Za-z]{1,12}(?:[_-]?[A-Z]{1,6})?[_-]?(?:0x[0-9A-Fa-f]{1,8}|\d{2,6})|0x[0-9A-Fa-f]{1,8}",
    re.ASCII,
)
_TYPED = re.compile(r"(?:[iu]|f|fp|bf|tf|int|uint|float|bfloat|s|b)\d{1,3}\w{0,8}|\w{2,30}_t")
_CAMEL = re.compile(r"[a-z][a-z0-9]*[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*")
# A module of two letters is no folder of logs: `tl.log`, `np.log`, `ttl.math.log`.
_FILE = re.compile(
    r"(?!(?:[a-z]{2}|[a-z]\w*\.[a-z]\w*)\.log$).*\.(?:md|rst|txt|py|pyi|c|cc|cpp|cxx|h|hpp|cu|cuh|hip|ipynb|json|ya?ml|toml|ini|cfg|conf|sh"
    r"|so|a|o|exe|dll|log|csv|html?|pdf|png|svg|zip|gz|tar|whl|deb|rpm|bin|pt|onnx|js|css|com|org"
    r"|io|net|db|neff|ntff|proto|cmake)",
    re.I,
)
_CALL = re.compile(r"[\w.:]+\(")
_PARAMETER = re.compile(r"\[\w+(?:, ?\w+)*\](?=\.[A-Za-z_])")  # `Net[T].send` is `Net.send`
# `tmul.h td, ts1` is an instruction, its suffix a type; `math.h` is a file.
_SUFFIXED = re.compile(r"[A-Za-z_]\w*+(?:\.\w++)*\.[a-zA-Z]", re.ASCII)
# `add[.sc,.sci]{/,.h,.b} rd, rs1`: a mnemonic with parts of which one is written, and operands.
_INSTRUCTION = re.compile(
    r"(?P<name>[A-Za-z_](?:[\w.]|[\[{<](?:/|[._]\w{1,12})(?:\s?[,|]\s?[._]\w{1,12}){0,8}[\]}>])"
    r"{1,80})(?P<operands>(?:\s+[^\s=].*)?)",
    re.ASCII,
)
_PARTS = re.compile(r"([\[{<])([^\]}>]+)[\]}>]")
MAX_FORMS = 24  # of one instruction
_VERSION = re.compile(r"v?\d+(?:[._]\w+)*", re.I)

# Words that are alone in cells and headings and are not names.
EMPTY_WORDS = word_set(
    "n/a na none yes no total other others all any new old todo tbd note notes see same default "
    "unused reserved various misc example examples true false null void index overview summary "
    "introduction description usage syntax encoding parameters arguments returns return operands "
    "and or the a an of to in is are for with on be it by as from not this that these those when "
    "if then else where which while over than at most least only unknown auto "
    "pip conda apt sudo git python python3 cd export"
)


@dataclass(frozen=True)
class Mention:
    """A name with its syntax, which is empty for a bare name. `marked`: the source marks it as
    code."""

    name: str
    signature: str
    marked: bool


def without_links(text: str) -> str:
    """Links, roles and tags replaced by the words that a reader sees; ticks stay."""
    if "`" in text or "[" in text:
        text = _ROLE.sub("", _REFERENCE.sub(r"\1", _LINK.sub(r"\1", text)))
    if "<" in text:
        text = _TAG.sub("", _TARGET.sub(r"`\1`", text))
    if "&" in text:
        text = html.unescape(text)
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


def without_ticks(text: str) -> str:
    """The words without marks of links, code and emphasis, for names and signatures."""
    text = CODE.sub(r"\1", without_links(text))
    return _EMPHASIS.sub(r"\2", text) if "**" in text else text


def is_name(text: str) -> bool:
    """Whether a text is one name as in code, not a file, a version or a number."""
    if not 1 < len(text) <= MAX_NAME:
        return False
    whole = NAME.fullmatch(text) or _ERROR.fullmatch(text) or _HYPHENED.fullmatch(text)
    return bool(whole) and not _FILE.fullmatch(text) and not _VERSION.fullmatch(text)


def is_error_code(name: str) -> bool:
    """E1042, NXC4640, ERR-17, TF-0x31, 0x21: letters and a number."""
    return bool(_ERROR.fullmatch(name))


def is_type_name(name: str) -> bool:
    """float16, i32, size_t."""
    return bool(_TYPED.fullmatch(name.rpartition(".")[2]))


def looks_coded(name: str) -> bool:
    """Whether it has an underscore, a dot, a prefix or inner capitals, as no word of prose has."""
    bare = name.rstrip("*")
    if name[0] in ".%@$!#" or "::" in name or "->" in name:
        return True
    if "." in bare.strip("."):
        return all(part and part[0].islower() for part in bare.split(".")[:1]) or "_" in bare
    return "_" in bare or bool(_CAMEL.fullmatch(bare))


def has_prefix(name: str) -> bool:
    """Whether it is dotted, scoped, dunder or begins with a mark, unlike words and variables."""
    return name[0] in ".%@$!#" or "::" in name or name[:2] == "__" or "." in name.strip(".")


def is_hyphened(name: str) -> bool:
    """`row-major`, `neuron-profile`: a word or a program in prose, perhaps a name in a table."""
    return "-" in name and "->" not in name and not is_error_code(name)


def is_word(name: str) -> bool:
    """Whether it is a plain word, in lower case or capitalised, which is a name only in certain
    places."""
    return name.isalpha() and (name.islower() or name.istitle())


def are_types(words: Sequence[str]) -> bool:
    """Whether the words before a name can be its type and qualifiers, not the beginning of a
    sentence."""
    rest = [w for w in words if w not in _TYPE_WORDS and not _TYPE_MARK.search(w)]
    return len(words) <= 8 and len(rest) <= 1 and all(NAME.match(w) for w in rest)


def mention_of(span: str, *, marked: bool, mnemonics: bool = False) -> Mention | None:
    """The name at the beginning of a piece of code, or that it calls: `vadd`, `vadd vd, vs1`,
    `void f(int x)`. `mnemonics`: it is an instruction, also if it looks like a file."""
    if mnemonics and _SUFFIXED.fullmatch(span.strip()):
        return Mention(span.strip(), "", marked)
    mention = _mention(span, marked)
    return None if mention and not marked and mention.name.lower() in EMPTY_WORDS else mention


def _mention(span: str, marked: bool) -> Mention | None:
    text = " ".join(span.split()).strip().rstrip(";,").rstrip()
    if text.endswith("()"):
        text = text[:-2]
    if is_name(text):
        return Mention(text, "", marked)
    left, equals, right = text.partition(" = ")
    if equals and "(" not in left:
        return _assigned(left, right, text, marked)
    if " = " in right and left.count("(") == left.count(")"):  # no defaults of arguments
        return None
    before, bracket, _ = text.partition("(")
    if "," in before and "<" not in before:
        bracket = ""  # of an address, as in `tld td, (rs1)`
    words = before.replace("*", " * ").replace("&", " & ").split()
    if bracket and not are_types(words[:-1]):
        return None
    if before.endswith(" ") and not marked and len(words) == 1:
        return Mention(words[0], "", marked) if is_name(words[0]) else None  # an aside
    name = (words[-1] if bracket and words else text.split(" ")[0]).rstrip(":")
    name = _PARAMETER.sub("", name).partition("<")[0].partition("[")[0].partition("{")[0]
    suffixed = _SUFFIXED.fullmatch(name) and _has_operands(text)
    condition = bracket and _COMPARED.search(text)  # abs(x) <= 31
    if not (is_name(name) or suffixed) or _OPERATOR.match(text, len(name)) or condition:
        return None
    if not bracket and (is_type_name(name) or name in _TYPE_WORDS) and " " in text:
        return None  # the declaration of a variable
    return Mention(name, cut(text, MAX_SIGNATURE), marked)


def _assigned(left: str, right: str, text: str, marked: bool) -> Mention | None:
    """The name in `x = name(...)`; that of a type in `lib.Index = lib.Size | Tuple[lib.Size]`."""
    if " = " in right:
        return None
    if is_name(left) and "." in left and not _CALL.match(right):
        return Mention(left, cut(text, MAX_SIGNATURE), marked)
    mention = _mention(right, marked)
    return replace(mention, signature=cut(text, MAX_SIGNATURE)) if mention else None


def mentions_in(
    cell: str, *, trusted: bool, loose: bool = False, mnemonics: bool = False
) -> list[Mention]:
    """The names of a cell; none if it is prose. `trusted`: by its column header, words without
    marks are names; `loose`: words may follow marked names; `mnemonics`: names are those of
    instructions."""
    text = without_links(cell).strip()
    if "`" in text:
        return _marked(text, loose, mnemonics)
    text = _EMPHASIS.sub(r"\2", text).strip()
    if mnemonics and (forms := _forms_of(text)):
        return forms
    whole = mention_of(text, marked=False, mnemonics=mnemonics)
    if whole and (not whole.signature or f"{whole.name}(" in text):
        return [whole] if trusted or looks_coded(whole.name) or whole.signature else []
    parts = [part for part in _AND.split(_ASIDE.sub(" ", text)) if part]
    # Words in a row are a phrase; words between commas may be a list of names.
    listed = len(parts) == 1 or "," in text or not any(is_word(part) for part in parts)
    if listed and 0 < len(parts) <= 24 and all(_is_unmarked(part) for part in parts):
        return [Mention(part, "", False) for part in parts]
    return [whole] if whole and trusted and _has_operands(whole.signature) else []


def _forms_of(text: str) -> list[Mention]:
    """Each form of an instruction that a cell has with its operands, or of its mnemonic; none of
    any other text. Parts in square brackets, or alone in braces, may be left out."""
    match = _INSTRUCTION.fullmatch(text)
    if match is None:
        return []
    name, operands = match["name"], match["operands"].strip()
    parts = [*_PARTS.finditer(name)]
    if (operands and not _has_operands(text)) or not (operands or parts):
        return []
    if is_type_name(name) or name in _TYPE_WORDS or _CALL.match(operands):
        return []  # a declaration
    # `vadd vsub, vmul`: a list of instructions
    if any(word.startswith(name[:2]) for word in re.findall(r"[A-Za-z_][\w.]*", operands)):
        return []
    names, end = [""], 0
    for part in parts:
        choices = [choice.strip(" /") for choice in re.split(r"[,|]", part[2])]
        if part[1] == "[" or (part[1] == "{" and len(choices) == 1):
            choices.insert(0, "")
        before = name[end : part.start()]
        names = [f"{start}{before}{choice}" for start in names for choice in choices]
        end = part.end()
    names = [f"{start}{name[end:]}" for start in names]
    if len(names) > MAX_FORMS or not all(NAME.fullmatch(form) for form in names):
        return []
    return [Mention(form, cut(f"{form} {operands}", MAX_SIGNATURE), False) for form in names]


def _is_unmarked(text: str) -> bool:
    return is_name(text) and text.lower() not in EMPTY_WORDS


def _has_operands(signature: str) -> bool:
    """`MNEM dst, src1, imm` rather than a phrase of words."""
    rest = signature.partition(" ")[2]
    return (
        bool(rest)
        and not _PHRASE.search(rest)
        and ("," in rest or rest[0] in "%$<[{#@" or any(c.isdigit() for c in rest))
    )


def _marked(text: str, loose: bool, mnemonics: bool) -> list[Mention]:
    mentions: list[Mention] = []
    end = 0
    for span in CODE.finditer(text):
        if not _joins(text[end : span.start()]):
            break
        mention = mention_of(span[1], marked=True, mnemonics=mnemonics)
        if mention is None:
            break
        mentions.append(mention)
        end = span.end()
    return mentions if loose or _joins(text[end:]) else []


def _joins(between: str) -> bool:
    """Whether the text between or after names only joins them or names their kind."""
    words = re.findall(r"[A-Za-z]{2,}|\d+", _ASIDE.sub("", between[:300]))
    return all(word.lower() in _JOINING for word in words)


def tokens_in(code: str) -> Iterator[str]:
    """The names in code, in order; a dotted name is one."""
    for match in NAME.finditer(code):
        yield match[0].rstrip("*").rstrip(".")
