"""A code sample of a manual read without knowing its language: its entry, tensors and their sizes,
named constants, arrays of constant size, and which literal is which.

Only what many kernel languages share is used: an argument list with sizes in brackets, constants
that are assigned an integer once, arrays with bracketed sizes, one loop on a line. Others are
refused with the reason, and so are those with more parts than a person writes into a manual: the
work is bounded. The names of literals are guesses that the compiler and the correctness check of a
candidate decide.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kb.errors import InvalidPredicate
from kb.predicates import compile_expression
from kb.problem_terms import ROLES

OUTPUT_WORDS = frozenset({"out", "output", "result", "dst"})
PAD = "pad"
PLACEHOLDER = "@{"

MAX_TOKENS = 3_000
MAX_SIZES = 64  # of tensors
MAX_CONSTANTS = 32
MAX_ARRAYS = 32

# Possessive, so that no text takes more than one pass.
_DEFINED = re.compile(
    r"\b(?P<name>[A-Za-z_]\w*+)"
    r"(?:[ \t]*+(?:(?::[ \t]*+[\w.]++[ \t]*+)?:?=(?!=)|,)|[ \t]++equ\b|[ \t])[ \t]*+"
    r"(?P<value>[0-9]++)(?![\w.])[ \t]*+(?:;|\n|$)"
)
_SIZE_MARKS = frozenset("+-*/%()")
_CHANGES = frozenset({"=", ":=", "+=", "-=", "*=", "/=", "++", "--"})


class NotLiftable(Exception):
    """Why a sample cannot become a recipe; the message says it in words."""


@dataclass(frozen=True)
class SampleConstant:
    """A number that the sample names, or one with a generated name. `uses` are its literals."""

    name: str
    value: int
    role: str
    uses: tuple[Token, ...]


@dataclass(frozen=True)
class Array:
    """A declaration of constant size. `kind` is the first word of the statement, `dims` are
    expressions over constants and sizes (these as `@{name}`), `pad` is the constant that pads the
    last dimension, or empty."""

    name: str
    kind: str
    dims: tuple[str, ...]
    pad: str = ""

    @property
    def pitch(self) -> str:
        """Elements from one row to the next."""
        return f"({self.dims[-1]} + {self.pad})" if self.pad else f"({self.dims[-1]})"

    @property
    def elements(self) -> str:
        """How many elements it holds, as an expression."""
        return " * ".join([*(f"({dim})" for dim in self.dims[:-1]), self.pitch])


@dataclass(frozen=True)
class CodeSample:
    """literals: (place, length, name of the size or constant). sizes: of the sample, by name;
    tensors name theirs in `dims`. steps: (size, constant) in one line, where the constant divides
    the size."""

    text: str
    entry: str
    tensors: tuple[Tensor, ...]
    dims: tuple[tuple[str, ...], ...]
    sizes: dict[str, int]
    constants: tuple[SampleConstant, ...]
    arrays: tuple[Array, ...]
    literals: tuple[tuple[int, int, str], ...]
    steps: tuple[tuple[str, str], ...]

    @property
    def template(self) -> str:
        """With placeholders for sizes and constants."""
        text = self.text
        for start, length, name in sorted(self.literals, reverse=True):
            text = f"{text[:start]}@{{{name}}}{text[start + length :]}"
        return text


def read_sample(text: str) -> CodeSample:
    """Read one sample. Raises NotLiftable with the reason."""
    return _SampleReader(text).sample()


def role_of(name: str) -> str:
    """The role of a constant of this name in moves; `block` by default."""
    plain = name.lower()
    if plain in ROLES:
        return plain
    parts = set(plain.split("_"))
    return next((role for role in sorted(ROLES) if role in parts), "block")


NO_SIZES = (
    "no recipe: no argument list in it states sizes (such as `A[64][64]`), so other sizes cannot be"
    " tried. In a language without argument lists there is nothing to add: prompts show a whole"
    " kernel as it is"
)


class _SampleReader:
    """One pass after the other over the tokens of one sample."""

    def __init__(self, text: str) -> None:
        self.text = text
        if PLACEHOLDER in text:
            raise NotLiftable(f"it contains {PLACEHOLDER}, which stands for sizes in templates")
        self.tokens = tokens_of(text)
        _at_most(MAX_TOKENS, len(self.tokens), "words and marks")
        self.entry, self.first, self.end = self._argument_list()
        self.tensors = self._tensors(self.tokens[self.first : self.end])
        self.names = {tensor.name for tensor in self.tensors}
        # Constants may precede the kernel.
        self.body = [*self.tokens[: self.first], *self.tokens[self.end + 1 :]]

    def sample(self) -> CodeSample:
        named = self._named_constants()
        places = {token.start for constant in named for token in constant.uses}
        arrays = self._arrays({constant.name for constant in named})
        unnamed = self._unnamed(arrays, places)
        constants = [*named, *unnamed]
        _at_most(MAX_CONSTANTS, len(constants), "constants")
        pads = [c.name for c in constants if c.role == PAD]
        places |= {token.start for constant in unnamed for token in constant.uses}
        sizes = Sizes(self.tensors, self.body, {c.name for c in constants})
        dims, bound, steps = sizes.bound([t for t in self.body if t.start not in places])
        name = _twice([*(c.name for c in constants), *sizes.values])
        if name:
            raise NotLiftable(f"two sizes or constants of it would be called {name[:60]}")
        literals = [(t.start, len(t.text), c.name) for c in constants for t in c.uses]
        names = {token.start: constant.name for constant in unnamed for token in constant.uses}
        names |= {start: f"@{{{size}}}" for start, _, size in bound}
        finished = [_array(array, names, pads) for array in arrays]
        values = {c.name: c.value for c in constants}
        return CodeSample(
            self.text,
            self.entry,
            tuple(self.tensors),
            dims,
            sizes.values,
            tuple(constants),
            tuple(finished),
            tuple([*literals, *bound]),
            tuple((size, name) for size, name in steps if sizes.values[size] % values[name] == 0),
        )

    # -- the argument list

    def _argument_list(self) -> tuple[str, int, int]:
        """The entry's name and the tokens between its parentheses: the first list with sizes."""
        for place, token in enumerate(self.tokens[:-1]):
            if token.kind != "name" or self.tokens[place + 1].text != "(":
                continue
            end = self._closing(place + 1)
            if end is None:
                break
            inside = self.tokens[place + 2 : end]
            if any(t.kind == "int" for t in inside) and any(t.text in "[<" for t in inside):
                return token.text, place + 2, end
        raise NotLiftable(NO_SIZES)

    def _closing(self, opening: int) -> int | None:
        depth = 0
        for place in range(opening, len(self.tokens)):
            depth += {"(": 1, ")": -1}.get(self.tokens[place].text, 0)
            if depth == 0:
                return place
        return None

    def _tensors(self, inside: Sequence[Token]) -> list[Tensor]:
        arguments = [_argument(part) for part in split(inside)]
        _at_most(
            MAX_SIZES, sum(len(literals) for _, _, literals in arguments), "sizes of arguments"
        )
        if any(not literals for _, _, literals in arguments):
            raise NotLiftable("an argument of its kernel states no size")
        any_output = any(output for _, output, _ in arguments)
        last = len(arguments) - 1
        tensors = [
            Tensor(name, "output" if (out if any_output else n == last) else "input", literals)
            for n, (name, out, literals) in enumerate(arguments)
        ]
        name = _twice([tensor.name for tensor in tensors])
        if name:
            raise NotLiftable(f"two arguments of its kernel are called {name[:60]}")
        if not any(tensor.role == "input" for tensor in tensors):
            raise NotLiftable("its kernel has no input")
        return tensors

    # -- constants and arrays

    def _named_constants(self) -> list[SampleConstant]:
        constants = {}
        starts = {token.start: token for token in self.body if token.kind == "int"}
        for match in _DEFINED.finditer(self.text):
            token = starts.get(match.start("value"))
            name = match["name"]
            if token is None or name in self.names or not _usable(name):
                continue
            role = role_of(name)
            if (
                self._changed(name) <= 1
                and self._count(name) > 1
                and (int(token.text) > 0 or role == PAD)
            ):
                constants[name] = SampleConstant(name, int(token.text), role, (token,))
        return list(constants.values())

    def _changed(self, name: str) -> int:
        """How often it is assigned to."""
        pairs = zip(self.body, self.body[1:], strict=False)
        return sum(a.text == name and b.text in _CHANGES for a, b in pairs)

    def _count(self, name: str) -> int:
        return sum(token.text == name for token in self.body)

    def _arrays(self, constants: set[str]) -> list[_Declared]:
        """Statements that are the first to use a name, with sizes made of numbers and constants."""
        seen: set[str] = set()
        declarations = []
        for statement in statements(self.body):
            declared = _declaration(statement, self.names | constants | seen, constants)
            seen |= {token.text for token in statement if token.kind == "name"}
            if declared is not None:
                declarations.append(declared)
        _at_most(MAX_ARRAYS, len(declarations), "arrays")
        return declarations

    def _unnamed(self, arrays: Sequence[_Declared], named: set[int]) -> list[SampleConstant]:
        """Literals in sizes of arrays that are no size of a tensor; equal ones are one constant."""
        tensor_sizes = {size for tensor in self.tensors for size in tensor.sizes}
        values = {
            int(token.text)
            for array in arrays
            for dim in array.dims
            for token in dim
            if token.kind == "int" and token.start not in named
        }
        unnamed = []
        for value in sorted(values - tensor_sizes - {0, 1}):
            uses = [
                token
                for token in self.body
                if token.kind == "int" and int(token.text) == value and token.start not in named
            ]
            unnamed.append(SampleConstant(f"size_{value}", value, "block", tuple(uses)))
        return unnamed


@dataclass(frozen=True)
class _Declared:
    """An array as tokens. rest: those after its sizes."""

    name: str
    kind: str
    dims: tuple[tuple[Token, ...], ...]
    rest: tuple[Token, ...]


def _array(declared: _Declared, names: Mapping[int, str], pads: Sequence[str]) -> Array:
    """names: of the literals that are no plain numbers, by place."""
    pad = next((t.text for t in declared.rest if t.text in pads), "")
    for dim in declared.dims:
        _check_size(declared.name, dim)
    dims = tuple(
        " ".join(names.get(token.start, token.text) for token in dim) for dim in declared.dims
    )
    return Array(declared.name, declared.kind, dims, pad)


def _check_size(array: str, dim: Sequence[Token]) -> None:
    """Raises NotLiftable unless it is arithmetic of numbers and constants, as a limit needs."""
    text = " ".join(token.text for token in dim)
    message = f"the size [{text[:60]}] of its array {array[:60]} is no arithmetic"
    if not all(t.kind in ("int", "odd", "name") or t.text in _SIZE_MARKS for t in dim):
        raise NotLiftable(message)
    try:
        compile_expression(text)
        compile_expression(f"({text}) * 1")
    except InvalidPredicate as problem:
        raise NotLiftable(message) from problem


def _at_most(limit: int, count: int, what: str) -> None:
    if count > limit:
        raise NotLiftable(f"it has {count} {what}, of which at most {limit} are read")


def _twice(names: Sequence[str]) -> str:
    """A name that occurs more than once, or empty."""
    return next((name for name, count in Counter(names).items() if count > 1), "")


def _usable(name: str) -> bool:
    """Whether predicates can name it."""
    try:
        names = compile_expression(name).names()
    except InvalidPredicate:
        return False
    return names.parameters == (name,)


def _argument(tokens: Sequence[Token]) -> tuple[str, bool, tuple[Token, ...]]:
    """Name, whether the name is that of an output, and sizes."""
    opening = next((n for n, t in enumerate(tokens) if t.text in "[<"), len(tokens))
    colon = next((n for n, t in enumerate(tokens) if t.text == ":"), opening)
    names = [t.text for t in tokens[: min(opening, colon)] if t.kind == "name"]
    if not names:
        raise NotLiftable("an argument of its kernel has no name")
    words = {name.lower() for name in names}
    literals = tuple(t for t in tokens[opening:] if t.kind == "int")
    return names[-1], bool(words & OUTPUT_WORDS), literals


def _declaration(
    statement: Sequence[Token], known: set[str], constants: set[str]
) -> _Declared | None:
    depth = sum((t.text == "[") - (t.text == "]") for t in statement)
    if depth > 0:
        line = " ".join(t.text for t in statement)
        raise NotLiftable(f"a bracket is never closed: {line[:60]}")
    for place, token in enumerate(statement[1:], 1):
        if token.kind != "name" or token.text in known:
            continue
        dims = subscripts(statement, place + 1)
        names = {t.text for dim in dims for t in dim if t.kind == "name"}
        if not dims or not names <= constants:
            continue
        end = max(n for n, t in enumerate(statement) if t.text == "]")
        return _Declared(
            token.text, statement[0].text, tuple(map(tuple, dims)), tuple(statement[end + 1 :])
        )
    return None


# -- tokens of the few kinds that many languages share

OPENING, CLOSING = "([{<", ")]}>"

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|^[ \t]*#[ \t][^\n]*", re.DOTALL | re.MULTILINE)
# Digits and letters of ASCII only: others are no numbers and no names to a compiler. A number of
# more digits is no size, and one that begins with 0 is octal in some languages.
_TOKEN = re.compile(
    r"(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+\.(?!\.)|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<int>(?:0|[1-9][0-9]{0,14})(?!\w))|(?P<odd>[0-9]\w*)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<mark>:=|==|[-+*/]=|\+\+|--|\S)"
)


@dataclass(frozen=True)
class Token:
    """`kind` is float, int, odd, name or mark; `line` counts from 0."""

    kind: str
    text: str
    start: int
    line: int


def tokens_of(text: str) -> list[Token]:
    """The tokens of a sample without its comments; `start` counts characters of the text."""
    blank = _COMMENT.sub(lambda tokens: re.sub(r"[^\n]", " ", tokens[0]), text)
    tokens = []
    line = place = 0
    for match in _TOKEN.finditer(blank):
        line += blank.count("\n", place, match.start())
        place = match.start()
        tokens.append(Token(str(match.lastgroup), match[0], place, line))
    return tokens


def split(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Split at commas outside of brackets."""
    depth, part = 0, list[Token]()
    for token in tokens:
        depth += (token.text in OPENING) - (token.text in CLOSING)
        if token.text == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part


def statements(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Split at semicolons, braces and ends of lines that are in no square bracket."""
    part: list[Token] = []
    open_ = 0
    for token in tokens:
        ends = token.text in ";{}"
        if part and (ends or (open_ == 0 and token.line != part[-1].line)):
            yield part
            part, open_ = [], 0
        if not ends:
            part.append(token)
            open_ = max(0, open_ + (token.text == "[") - (token.text == "]"))
    if part:
        yield part


def subscripts(tokens: Sequence[Token], place: int) -> list[list[Token]]:
    """`[a][b]` or `[a, b]` behind a name, without the brackets; not one that is never closed."""
    indices: list[list[Token]] = []
    while place < len(tokens) and tokens[place].text == "[":
        end = _closing(tokens, place)
        if end is None:
            break
        indices += list(split(tokens[place + 1 : end]))
        place = end + 1
    return indices


def _closing(tokens: Sequence[Token], opening: int) -> int | None:
    depth = 0
    for place in range(opening, len(tokens)):
        depth += (tokens[place].text == "[") - (tokens[place].text == "]")
        if depth == 0:
            return place
    return None


@dataclass(frozen=True)
class Tensor:
    """An argument of the entry. `literals` are its sizes in the argument list."""

    name: str
    role: str
    literals: tuple[Token, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return tuple(int(token.text) for token in self.literals)


class Sizes:
    """Maps a literal to the size of a tensor: dimensions that one variable runs over are the same;
    indistinguishable sizes are one size."""

    def __init__(
        self, tensors: Sequence[Tensor], body: Sequence[Token], constants: set[str]
    ) -> None:
        self.tensors = tensors
        self.constants = constants
        self._same: dict[tuple[int, int], tuple[int, int]] = {}
        self._value = {
            (n, axis): size
            for n, tensor in enumerate(tensors)
            for axis, size in enumerate(tensor.sizes)
        }
        self._runs: dict[str, tuple[int, int]] = {}
        self._body = body
        self._follow_indices()

    @property
    def values(self) -> dict[str, int]:
        """The sizes of the sample by name, such as `a_0`."""
        return {self._name(place): value for place, value in self._value.items()}

    def _name(self, place: tuple[int, int]) -> str:
        tensor, axis = self._root(place)
        return f"{self.tensors[tensor].name}_{axis}"

    def _root(self, place: tuple[int, int]) -> tuple[int, int]:
        while place in self._same:
            place = self._same[place]
        return place

    def _join(self, place: tuple[int, int], other: tuple[int, int]) -> None:
        first, second = sorted((self._root(place), self._root(other)))
        if first != second and self._value[first] == self._value[second]:
            self._same[second] = first

    def _follow_indices(self) -> None:
        numbers = {tensor.name: n for n, tensor in enumerate(self.tensors)}
        for place, token in enumerate(self._body):
            if token.text not in numbers:
                continue
            tensor = numbers[token.text]
            for axis, index in enumerate(subscripts(self._body, place + 1)):
                if (tensor, axis) not in self._value:
                    break
                for name in index:
                    if name.kind == "name" and name.text not in self.constants:
                        self._join(self._runs.setdefault(name.text, (tensor, axis)), (tensor, axis))

    def bound(
        self, body: Sequence[Token]
    ) -> tuple[tuple[tuple[str, ...], ...], list[tuple[int, int, str]], list[tuple[str, str]]]:
        """The dims of every tensor, the literals that are sizes, and what steps through them."""
        known = set(self._value.values())
        literals = [t for t in body if t.kind == "int" and int(t.text) in known - {0, 1}]
        places = [(token, self._dimension_of(token)) for token in literals]
        for token, place in places:
            if place is None:
                self._join_all(int(token.text))
        steps = []
        sized = []
        for token, place in places:
            size = self._name(place or self._any(int(token.text)))
            sized.append((token.start, len(token.text), size))
            steps += [
                (size, other.text)
                for other in self._line(token)
                if place is not None and other.text in self.constants
            ]
        dims = tuple(
            tuple(self._name((n, axis)) for axis in range(len(tensor.sizes)))
            for n, tensor in enumerate(self.tensors)
        )
        for n, tensor in enumerate(self.tensors):
            for axis, token in enumerate(tensor.literals):
                sized.append((token.start, len(token.text), self._name((n, axis))))
        return dims, sized, list(dict.fromkeys(steps))

    def _line(self, token: Token) -> list[Token]:
        return [other for other in self._body if other.line == token.line]

    def _dimension_of(self, literal: Token) -> tuple[int, int] | None:
        """The dimension that the one variable of its line runs over."""
        value = int(literal.text)
        places = {
            self._root(self._runs[token.text])
            for token in self._line(literal)
            if token.text in self._runs
        }
        fitting = [place for place in places if self._value[place] == value]
        return fitting[0] if len(fitting) == 1 else None

    def _any(self, value: int) -> tuple[int, int]:
        return next(self._root(place) for place, size in self._value.items() if size == value)

    def _join_all(self, value: int) -> None:
        first, *rest = [place for place, size in self._value.items() if size == value]
        for place in rest:
            self._join(first, place)
