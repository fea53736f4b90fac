"""`kernlore hardware accept`: whether a chip's manuals suffice to write kernels, and whether their
claims hold on its toolchain.

Without a model: whole kernels are compiled, examples, names, operands, latencies and ranges tried,
tables and references checked for gaps. The mark is the share of claims that were decided and right,
from 0 to 100; what could not be tried does not count, and without a decision there is no mark.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from ingestion.elements import ParsedDocument
from ingestion.formats import parse
from ingestion.passages import split_sections
from kb import clock
from kb.catalog.knowledge import samples, symbols
from kb.catalog.knowledge.symbols import RefusedName, Symbol
from kb.errors import InvalidRequest, KernloreError
from kb.hardware.spec import ToolchainSpec
from kb.plain import Doc
from optimizer.evaluation.acceptance.records import (
    FAULTS,
    Acceptance,
    Covered,
    Finding,
    ManualAcceptance,
    Outcome,
    SectionMark,
    store,
)
from optimizer.evaluation.acceptance.tool import (
    NONSENSE,
    Host,
    ProbedTool,
    Tried,
    cost_of_run,
    host_of,
    kind_of,
)
from optimizer.evaluation.evaluate import choose_target
from optimizer.evaluation.targets import command_toolchains
from optimizer.evaluation.toolchains.registry import usable_toolchain
from retrieval.coverage import HOST_WORDS
from retrieval.documents import original_file
from retrieval.knowledge_base import KnowledgeBase
from retrieval.search.names import unknown_names

# -- claims, by trial
#
# A claim is called wrong only where the toolchain contradicts it in a form that a control
# confirms: a nonsense name gives the same message as the name, or a method of measuring agrees
# with most claims of its kind. Everything else is `unchecked`, with the reason.

CALLED = ("instruction", "function")
NAMED = (*CALLED, "directive")
FEW, MANY = 4, 12  # copies of a statement in a measurement
LEAST_AGREED, LEAST_SHARE = 3, 0.6  # claims that validate a method of measuring
MET_SHARE = 0.9  # known names of those with one condition
LEAST_LISTED = 3  # names that a table shares with the sections after it
MOST_REGISTERS = 64
MOST_COUNTED = 20  # names whose operands are counted where each needs compilations for itself
MOST_OPERANDS = 8  # of such a trial
MOST_LEARNED = 24  # names that show which messages count operands
MOST_NAMES = 4000  # tried with the tool; of more, every second, third, ...
MOST_ALONE = 150  # of them where each needs a compilation for itself
LEAST_NAME = 3  # characters of a name that a text quotes; shorter ones are operands
MOST_QUOTED = 200  # words in code marks that are tried as names
_NAME = re.compile(r"[.@%$#]?[A-Za-z_][\w.]*")
_DIGITS = re.compile(r"\d+")
_QUOTED = re.compile(r"`+([^\s`]*[A-Za-z_][\w.]*)(?:\(\))?`+")
_ONLY_IF = re.compile(r"only (?:if|for|with|on|from|when)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n")
_AVAILABLE = re.compile(  # the condition of the names of a section
    r"\b(?:available|defined|provided|supported)\b.*\b(?:when|if|only (?:for|with|on|in))\b",
    re.IGNORECASE | re.DOTALL,
)
_WHOLE_SECTION = re.compile(r"\bthis (?:chapter|section)\b|\bheader\b", re.IGNORECASE)
_FEATURE = re.compile(r"\b[A-Z_][A-Z0-9_]{3,}\w*")
_CONDITION = re.compile(f"`({_FEATURE.pattern})")
_HEADER = re.compile(
    r"^[ \t]*(#[ \t]*include[ \t]*[<\"][\w./-]+[>\"]|import [\w.]+(?: as \w+)?"
    r"|from [\w.]+ import [\w*, ]+)[ \t]*$",
    re.MULTILINE,
)
_DECLARED = re.compile(  # a function with its type, and optional parts of its name in brackets
    r"^[ \t`>|]*(?P<type>[A-Za-z_]\w*)(?:[ *]+[A-Za-z_]\w*){0,5}[ *]+"
    r"(?P<name>[A-Za-z_]\w*(?:\[\w*\]\w*)*)\(",
    re.MULTILINE,
)
_OPTIONAL = re.compile(r"[A-Za-z_]\w*(?:\[\w*\]\w*)+(?=\s*\()")  # a name with such parts
_CALLED = re.compile(r"(?<![\w.@%$#])([A-Za-z_]\w*)\(")


@dataclass(frozen=True)
class ManualSection:
    """A section of a document: its text, and the first cells of the rows of each table."""

    document: str
    path: tuple[str, ...]
    text: str
    tables: tuple[tuple[str, ...], ...] = ()

    @property
    def place(self) -> str:
        """Its headings in one line."""
        return " > ".join(self.path)


@dataclass
class ManualTrial:
    """What the checks share: the tool, hosts, cards, statements that were accepted by name, and
    `known` names."""

    tool: ProbedTool
    hosts: Sequence[Host]
    cards: Sequence[Symbol]
    sections: Sequence[ManualSection]
    accepted: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    known: set[str] = field(default_factory=set)
    codes: set[str] = field(default_factory=set)

    def insert(self, witness: Witness, statement: str) -> Tried:
        """Compile the witness's host with a statement at its place, or where a copy of the line
        does not compile, in place of it."""
        source = witness.host.insert(witness.place, [statement])
        if witness.in_place:
            source = witness.host.replace(witness.place, statement)
        tried = self.tool.compile(source, statement)
        self.codes |= set(tried.codes)
        return tried

    def insert_all(self, witness: Witness, statements: Sequence[str]) -> dict[str, Tried]:
        """`insert` for each statement, many in one compilation where the line can be copied."""
        if witness.in_place:
            return {statement: self.insert(witness, statement) for statement in statements}
        tried = self.tool.insert_all(witness.host, witness.place, statements)
        self.codes |= {code for one in tried.values() for code in one.codes}
        return tried

    def unknown(
        self, witness: Witness, names: Mapping[str, str], tried: Mapping[str, Tried]
    ) -> dict[str, Tried]:
        """Those of the statements, given with the name in each, whose message is that for an
        invalid name, also without the others beside them."""
        alike = [s for s, name in names.items() if witness.refuses(s, name, tried[s])]
        again = self.insert_all(witness, alike)
        return {s: t for s, t in again.items() if witness.refuses(s, names[s], t)}


@dataclass(frozen=True)
class Witness:
    """A line of a host whose name the tool knows: `unknown` is the kind of the message for an
    invalid name instead, `counted` those for one operand less or more. `named`: the message for an
    invalid name has it, so it is no other error of syntax. `in_place`: a copy of the line does not
    compile; `copied` is one all the same if its message for an invalid name differs."""

    host: Host
    place: int
    statement: str
    name: str
    unknown: str
    counted: frozenset[str]
    plain_ok: bool = False
    in_place: bool = False
    named: bool = False
    copied: Witness | None = None

    def refuses(self, statement: str, name: str, tried: Tried) -> bool:
        """Whether the message, that about the name if the tool gives such, is that for an invalid
        name."""
        message = tried.about(name) if self.named else tried.message
        return bool(message) and not tried.ok and kind_of(message, statement) == self.unknown

    @property
    def for_names(self) -> Witness:
        """The one that shows invalid names with fewer compilations."""
        return self.copied if self.copied is not None else self

    @property
    def worth(self) -> tuple[bool, bool, bool]:
        """A larger one shows invalid names more clearly."""
        return self.named, not self.in_place, bool(self.counted)


def finding(
    check: str, outcome: Outcome, card: Symbol, message: str, evidence: str = ""
) -> Finding:
    """A finding about a card, at the section that defines it."""
    place = " > ".join(card.path)
    return Finding(check, outcome, card.name, card.document_title, place, message, evidence)


# -- statements


def examples_of(card: Symbol) -> list[str]:
    """Single lines of a card's examples that use its name, without marks and comments."""
    texts = [card.example]
    texts += [text.split(":", 1)[1] for text in card.further if text.lower().startswith("example:")]
    lines = [line for text in texts for line in text.replace("`", "").splitlines()]
    plain = [re.split(r"\s+(?://|#|;;)\s?", line.strip())[0].strip() for line in lines]
    return list(dict.fromkeys(line for line in plain if _uses(line, card.name)))


def _uses(line: str, name: str) -> bool:
    return name in line and bool(re.search(rf"(?<![\w.@%$#]){re.escape(name)}(?![\w.])", line))


def renamed(statement: str, name: str, other: str) -> str:
    return re.sub(rf"(?<![\w.@%$#]){re.escape(name)}(?![\w.])", lambda _: other, statement, count=1)


def mark_of(name: str) -> str:
    """The characters before the first letter of a name, such as "." of a directive."""
    match = re.match(r"[^\w]*", name)
    return match[0] if match else ""


def operands_of(statement: str, name: str) -> list[str] | None:
    """The operands after a name, by commas outside brackets; None for another form."""
    match = re.search(rf"(?<![\w.@%$#]){re.escape(name)}(?![\w.])\s*(.*)", statement)
    if match is None:
        return None
    rest = match[1].strip().rstrip(";").strip()
    if rest.startswith("("):
        closing = _closing(rest)
        if closing == len(rest) - 1 or (closing > 0 and statement[match.start(1) - 1] != " "):
            rest = rest[1:closing]
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(rest):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append(rest[start:at].strip())
            start = at + 1
    parts.append(rest[start:].strip())
    return [part for part in parts if part]


def _closing(text: str) -> int:
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return at
    return -1


def _with_operands(statement: str, name: str, operands: Sequence[str]) -> str | None:
    before = operands_of(statement, name)
    if not before:
        return None
    start = end = statement.index(before[0], statement.index(name) + len(name))
    for operand in before:
        end = statement.index(operand, end) + len(operand)
    return statement[:start] + ", ".join(operands) + statement[end:]


# -- names and operands


def witnesses_of(trial: ManualTrial) -> dict[str, Witness]:
    """By mark, a witness; those of the empty mark are instructions or functions. A host that calls
    no function with a card calls others."""
    known = {card.name: card for card in trial.cards if card.kind != "error"}
    names = [n for n, card in known.items() if mark_of(n) or card.kind in CALLED]
    found: dict[str, Witness] = {}
    for host in trial.hosts:
        for place, line in enumerate(host.lines):
            statement = re.split(r"\s+//", line.strip())[0].strip()
            used = [n for n in names if _uses(statement, n)]
            for name in dict.fromkeys([*used, *_CALLED.findall(statement)]):
                mark = mark_of(name)
                before = found.get(mark)
                if before is not None and all(before.worth):
                    continue
                in_place = not mark and place not in host.places
                if in_place and before is not None and before.named:
                    continue
                witness = _witness(trial, host, place, statement, name, in_place)
                # A line whose name has no card is of use only where messages have the name.
                if witness is None or not (witness.named or name in used):
                    continue
                if before is None or witness.worth > before.worth:
                    found[mark] = witness
    return found


def _witness(
    trial: ManualTrial, host: Host, place: int, statement: str, name: str, in_place: bool
) -> Witness | None:
    bare = Witness(host, place, statement, name, "", frozenset(), in_place=in_place)
    plain = trial.insert(bare, statement)
    invalid = renamed(statement, name, mark_of(name) + NONSENSE)
    unknown = trial.insert(bare, invalid)
    named = unknown.about(NONSENSE)
    kind = kind_of(named, invalid) if named else unknown.kind
    if unknown.ok or kind == (plain.kind if not named else kind_of(plain.about(name), statement)):
        return None
    counted = set()
    operands = operands_of(statement, name) or []
    if operands:
        for changed in (operands[:-1], [*operands, operands[-1]]):
            other = _with_operands(statement, name, changed) if changed else None
            tried = trial.insert(bare, other) if other is not None else None
            if tried is not None and not tried.ok:
                counted.add(tried.kind)
    # A message about other operands, too, does not count them.
    for operand in {*operands[:1], *operands[-1:]} if counted else ():
        other = _with_operands(statement, name, [operand] * len(operands))
        counted -= {trial.insert(bare, other).kind} if other is not None else set()
    counted -= {kind, unknown.kind, plain.kind}
    copied = _witness(trial, host, place, statement, name, False) if in_place else None
    return replace(
        bare,
        copied=copied if copied is not None and copied.named else None,
        unknown=kind,
        counted=frozenset(counted),
        plain_ok=plain.ok,
        named=bool(named),
    )


def check_names(trial: ManualTrial, witnesses: Mapping[str, Witness]) -> Iterator[Finding]:
    """Whether the tool knows each name, and compiles its example."""
    by_name: dict[str, list[Symbol]] = defaultdict(list)
    for card in trial.cards:
        by_name[card.name].append(card)
    named = [same for same in by_name.values() if any(c.kind in NAMED for c in same)]
    within = {w for card in trial.cards for w in _NAME.findall(card.signature) if w != card.name}
    alone = any(witness.for_names.in_place for witness in witnesses.values())
    step = max(1, -(-len(named) // (MOST_ALONE if alone else MOST_NAMES)))
    stated: dict[str, list[tuple[Symbol, list[str]]]] = defaultdict(list)  # by mark
    for number, same in enumerate(named):
        card = next(c for c in same if c.kind in NAMED)
        mark = mark_of(card.name)
        calls = mark in witnesses and f"{witnesses[mark].name}(" in witnesses[mark].statement
        examples = [example for each in same for example in examples_of(each)]
        examples = [e for e in examples if not calls or f"{card.name}(" in e]
        if number % step:
            yield finding("name", "unchecked", card, f"one name of {step} is tried")
        elif card.name in within:
            yield finding("name", "unchecked", card, "a part of the signatures of other names")
        elif mark not in witnesses:
            yield finding("name", "unchecked", card, "no kernel here has a line to try it in")
        elif calls and not examples and _is_statement(card):
            message = "an instruction; the kernels here call functions"
            yield finding("name", "unchecked", card, message)
        else:
            stated[mark].append((card, examples))
    for mark, claims in stated.items():
        shown = [claim for claim in claims if claim[1]]
        yield from _check_names(trial, witnesses[mark], shown)
        bare = [claim for claim in claims if not claim[1]]
        yield from _check_names(trial, witnesses[mark].for_names, bare)


def _is_statement(card: Symbol) -> bool:
    """Whether its signature has operands without a call, or its kind is that of such names."""
    spaced = re.search(rf"{re.escape(card.name)}[ \t]+[^(\s]", card.signature) is not None
    return spaced or (card.kind == "instruction" and "(" not in card.signature)


def _check_names(
    trial: ManualTrial, witness: Witness, claims: Sequence[tuple[Symbol, Sequence[str]]]
) -> Iterator[Finding]:
    """Names that are tried in one line, each in its examples or in place of the line's name."""
    tries = {
        card.name: examples or [renamed(witness.statement, witness.name, card.name)]
        for card, examples in claims
    }
    tried = trial.insert_all(witness, [s for statements in tries.values() for s in statements])
    names = {s: name for name, statements in tries.items() for s in statements}
    unknown = trial.unknown(witness, names, tried)
    failed = {s: card for card, examples in claims for s in examples if not tried[s].ok}
    controls = {s: renamed(s, c.name, mark_of(c.name) + NONSENSE) for s, c in failed.items()}
    nonsense = trial.insert_all(witness, [*controls.values()])
    refusals = {card.name: [s for s in tries[card.name] if s in unknown] for card, _ in claims}
    met = _met_conditions({card: not refusals[card.name] for card, _ in claims})
    known = {card.name for card, _ in claims if not refusals[card.name]}
    undecided = {s for s, control in controls.items() if nonsense[control].kind == tried[s].kind}
    for card, examples in claims:
        if refused := refusals[card.name]:
            first = unknown[refused[0]]
            message = f"the tool does not know it: {first.about(card.name) or first.message}"
            parts = re.compile(rf"(?<![a-zA-Z0-9]){re.escape(card.name)}(?![a-zA-Z0-9])")
            if not card.signature and sum(map(bool, map(parts.search, known))) >= LEAST_AGREED:
                message = "no name of its own: names that the tool knows have it as a part"
                yield finding("name", "unchecked", card, message, refused[0])
                continue
            if condition := _condition_of(trial, witness, card, met):
                message = f"the tool does not know it; the manual has it {condition}"
                yield finding("name", "unchecked", card, message, refused[0])
                continue
            yield finding("name", "contradicted", card, message, refused[0])
            continue
        if examples and undecided.issuperset(examples):
            message = f"its example compiles with no name here: {tried[examples[0]].message}"
            yield finding("name", "unchecked", card, message, examples[0])
            continue
        trial.known.add(card.name)
        yield finding("name", "right", card, "the tool knows it")
        for statement in examples:
            one = tried[statement]
            if one.ok:
                trial.accepted[card.name].append(statement)
                yield finding("example", "right", card, "compiles", statement)
            elif one.kind in witness.counted:
                message = f"wrong number of operands for the tool: {one.message}"
                yield finding("example", "contradicted", card, message, statement)
            else:
                message = f"needs more than this line: {one.message}"
                yield finding("example", "unchecked", card, message, statement)


def _stated_condition(card: Symbol) -> str:
    return next((text for text in card.limits if _ONLY_IF.match(text)), "")


def _met_conditions(known: Mapping[Symbol, bool]) -> set[str]:
    """Conditions of cards that hold on the tool: it knows nearly all names that have them."""
    names: dict[str, list[bool]] = defaultdict(list)
    for card, is_known in known.items():
        names[_stated_condition(card)].append(is_known)
    return {
        condition
        for condition, of in names.items()
        if condition and sum(of) >= max(LEAST_AGREED, MET_SHARE * len(of))
    }


def _condition_of(trial: ManualTrial, witness: Witness, card: Symbol, met: Collection[str]) -> str:
    """The condition under which a manual has a name, in its card or in a sentence about a section
    around it; there it has to name something that the tool does not know."""
    if (stated := _stated_condition(card)) and stated not in met:
        names = _FEATURE.findall(stated)
        if not names or re.search(r"[<>]", stated) or _is_unmet(trial, witness, names):
            return stated
    for section in trial.sections:
        depth = len(section.path)
        if section.document != card.document_title or section.path != card.path[:depth]:
            continue
        for sentence in filter(_AVAILABLE.search, _SENTENCE.split(section.text)):
            if depth < len(card.path) and not _WHOLE_SECTION.search(sentence):
                continue
            if _is_unmet(trial, witness, _CONDITION.findall(sentence)):
                return f"under a condition: {' '.join(sentence.split())}"
    return ""


def _is_unmet(trial: ManualTrial, witness: Witness, names: Sequence[str]) -> bool:
    """Whether the tool does not know one of the names of a condition."""
    tries = {renamed(witness.statement, witness.name, name): name for name in names}
    return bool(tries and trial.unknown(witness, tries, trial.insert_all(witness, [*tries])))


def check_undefined(trial: ManualTrial, witnesses: Mapping[str, Witness]) -> Iterator[Finding]:
    """Names that kernels or sections use, that the tool knows and no document defines."""
    defined = {card.name for card in trial.cards} | {*_declared(trial.sections)}
    used: dict[str, tuple[str, str]] = {}
    for host in trial.hosts:
        for unknown in unknown_names("\n".join(host.lines), trial.cards):
            if unknown.name not in HOST_WORDS:
                used.setdefault(unknown.name, ("", host.title))
    for section in trial.sections:
        for name in _QUOTED.findall(section.text)[:MOST_QUOTED]:
            if len(name) >= LEAST_NAME and _NAME.fullmatch(name) and name not in HOST_WORDS:
                used.setdefault(name, (section.document, section.place))
    for mark, witness in witnesses.items():
        names = [n for n in used if n not in defined and mark_of(n) == mark and witness.plain_ok]
        tries = _in_line(trial, witness, names)
        tried = trial.insert_all(witness, [*tries.values()])
        for name, statement in tries.items():
            if tried[statement].ok or tried[statement].kind in witness.counted:
                document, place = used[name]
                message = "the tool knows it, it is used here, and no document defines it"
                yield Finding("name", "missing", name, document, place, message, statement)


def _in_line(trial: ManualTrial, witness: Witness, names: Sequence[str]) -> dict[str, str]:
    """By name, the witness's line with it; of a line that needs a compilation for each, only some
    names, those that its copy does not refuse first."""
    tries = {n: renamed(witness.statement, witness.name, n) for n in names}
    if (copied := witness.copied) is not None:
        quick = trial.insert_all(copied, [*tries.values()])
        tries = {n: s for n, s in tries.items() if not copied.refuses(s, n, quick[s])}
    return dict([*tries.items()][:MOST_ALONE]) if witness.in_place else tries


def _declared(sections: Sequence[ManualSection]) -> Iterator[str]:
    """Names of functions with a type, also of those without a card."""
    for section in sections:
        for match in _DECLARED.finditer(section.text):
            if match["type"] not in ("return", "else", "case", "goto"):
                yield from _variants(match["name"])


def check_operands(trial: ManualTrial, witnesses: Mapping[str, Witness]) -> Iterator[Finding]:
    """The number of operands in signatures, against statements that compile, else against messages
    that count operands."""
    uses = _operands_by_name(trial)
    stated = {
        card: count
        for card in trial.cards
        if card.kind in CALLED and (count := _stated_count(card)) is not None
    }
    for mark in dict.fromkeys(mark_of(card.name) for card in stated):
        own = {card: count for card, count in stated.items() if mark_of(card.name) == mark}
        untried = {c: n for c, n in own.items() if not uses.get(c.name) and c.name in trial.known}
        witness = witnesses[mark].for_names if mark in witnesses else None
        if witness is not None and untried and not witness.counted:
            witness = _call_alone(trial, witness)
        if witness is None:
            untried = {}
        elif witness.in_place:
            untried = dict([*untried.items()][:MOST_COUNTED])
        counted = _counted_operands(trial, witness, untried) if witness and untried else {}
        for card, count in own.items():
            if used := uses.get(card.name):
                yield _used_operands(card, count, used)
            elif card in counted:
                yield counted[card]
            else:
                message = "the tool does not know the name, or it was not tried"
                yield finding("operands", "unchecked", card, message)


def _call_alone(trial: ManualTrial, witness: Witness) -> Witness:
    """A witness that is only the call, with numbers: the other words of the line may have another
    error there, which hides the one about operands."""
    operands = operands_of(witness.statement, witness.name)
    if not operands or f"{witness.name}(" not in witness.statement:
        return witness
    call = f"{witness.name}({', '.join('1' for _ in operands)})"
    call += ";" if witness.statement.endswith(";") else ""
    alone = _witness(trial, witness.host, witness.place, call, witness.name, False)
    return alone if alone is not None and alone.counted else witness


def _operands_by_name(trial: ManualTrial) -> dict[str, dict[int, str]]:
    """By name, the numbers of operands in lines that compile, each with a line."""
    uses: dict[str, dict[int, str]] = defaultdict(dict)
    lines = [line.strip() for host in trial.hosts for line in host.lines]
    lines += [statement for accepted in trial.accepted.values() for statement in accepted]
    names = {card.name for card in trial.cards if card.kind in CALLED}
    odd = {name for name in names if not _NAME.fullmatch(name)}
    for line in lines:
        for name in {*names.intersection(_NAME.findall(line)), *odd}:
            operands = operands_of(re.split(r"\s+//", line)[0], name) if name in line else None
            if operands is not None and _uses(line, name):
                uses[name].setdefault(len(operands), line)
    return uses


def _stated_count(card: Symbol) -> int | None:
    """Operands in the signature, None where some are optional or it does not show the name."""
    signature = _OPTIONAL.sub(lambda match: _of_variants(match[0], card.name), card.signature)
    if not _uses(signature, card.name) or re.search(r"\[|\.\.\.|…|\{|=", signature):
        return None
    operands = operands_of(signature, card.name)
    if operands is None or operands == ["void"]:
        return None if operands is None else 0
    return len(operands)


def _of_variants(written: str, name: str) -> str:
    """The name, if it matches the text with or without its parts in brackets."""
    return name if name in _variants(written) else written


def _variants(written: str) -> tuple[str, str]:
    return re.sub(r"[\[\]]", "", written), re.sub(r"\[\w*\]", "", written)


def _used_operands(card: Symbol, stated: int, used: Mapping[int, str]) -> Finding:
    if stated in used:
        return finding("operands", "right", card, f"{stated} operands", used[stated])
    count, line = next(iter(used.items()))
    message = f"the signature `{card.signature}` has {stated} operands, the tool takes {count}"
    return finding("operands", "contradicted", card, message, line)


def _counted_operands(
    trial: ManualTrial, witness: Witness, stated: Mapping[Symbol, int]
) -> dict[Symbol, Finding]:
    """Each name with the stated number of operands, which the tool must not refuse for their
    number, and with one more, which it must."""
    counted = witness.counted | _counting_kinds(trial, witness, [card.name for card in stated])
    tries = {
        card: [_of_length(witness, card.name, n) for n in (count, count + 1)]
        for card, count in stated.items()
    }
    tried = trial.insert_all(witness, [s for both in tries.values() for s in both])
    refused = [card for card in stated if tried[tries[card][0]].kind in counted]
    lengths = {
        c: [_of_length(witness, c.name, n) for n in range(MOST_OPERANDS + 1)] for c in refused
    }
    again = trial.insert_all(witness, [s for listed in lengths.values() for s in listed])
    found: dict[Symbol, Finding] = {}
    for card, count in stated.items():
        as_stated, longer = (tried[s] for s in tries[card])
        kinds = [again[s].kind for s in lengths.get(card, ())]
        fits = [n for n, kind in enumerate(kinds) if kind not in (*counted, witness.unknown)]
        if len(fits) == 1:
            message = f"the signature has {count} operands, the tool counts {fits[0]}"
            found[card] = finding("operands", "contradicted", card, message, as_stated.message)
        elif not kinds and longer.kind in counted and as_stated.kind != witness.unknown:
            found[card] = finding("operands", "right", card, f"{count} operands", longer.message)
        else:
            message = "the tool's messages do not count its operands"
            found[card] = finding("operands", "unchecked", card, message, as_stated.message)
    return found


def _counting_kinds(trial: ManualTrial, witness: Witness, names: Sequence[str]) -> frozenset[str]:
    """Kinds of messages that count operands: with one more, a number in it is larger by one."""
    some = names[:: max(1, len(names) // MOST_LEARNED)][:MOST_LEARNED]
    if witness.in_place:
        return frozenset()
    tries = {name: [_of_length(witness, name, n) for n in (1, 2, 3, 4)] for name in some}
    tried = trial.insert_all(witness, [s for listed in tries.values() for s in listed])
    seen: Counter[str] = Counter()
    for listed in tries.values():
        pairs = pairwise(listed)
        seen.update(
            {
                tried[more].kind
                for n, (less, more) in enumerate(pairs, start=1)
                if tried[less].kind == tried[more].kind != witness.unknown
                and _grows(tried[less].message, tried[more].message, n)
            }
        )
    return frozenset(kind for kind, names_with in seen.items() if names_with >= LEAST_AGREED)


def _grows(first: str, second: str, number: int) -> bool:
    """Whether the texts differ, apart from their places, in one number: this, and the next one."""
    texts = [
        re.split(r"(\d+)", re.sub(r"^\S+:\d+(?::\d+)?:", "", text)) for text in (first, second)
    ]
    if len(texts[0]) != len(texts[1]):
        return False
    changed = [pair for pair in zip(*texts, strict=True) if pair[0] != pair[1]]
    return changed == [(str(number), str(number + 1))]


def _of_length(witness: Witness, name: str, count: int) -> str:
    """The witness's line with this name and so many operands."""
    operands = operands_of(witness.statement, witness.name) or [""]
    wanted = [operands[min(n, len(operands) - 1)] for n in range(count)]
    changed = _with_operands(witness.statement, witness.name, wanted)
    return renamed(changed or witness.statement, witness.name, name)


# -- latencies

_REGISTER = re.compile(r"[^\s,()\[\];:+*-]*[A-Za-z_.]\d+(?![\w.])")
_LATENCY = re.compile(r"(?:result|latency|available|ready)[^\d;]{0,40}?(\d+)", re.IGNORECASE)
_ISSUE = re.compile(r"(\d+)[^\d;]{0,12}to (?:issue|start)", re.IGNORECASE)
_TIMED = re.compile(r"cycle|latency|result", re.IGNORECASE)


@dataclass(frozen=True)
class TimedClaim:
    """Cycles that a card states, and those that a method measured."""

    card: Symbol
    method: str
    stated: int
    measured: float
    statement: str


def check_latencies(trial: ManualTrial) -> Iterator[Finding]:
    """Latencies and issue cycles of cards, measured by chains of copies in a host that runs."""
    host = next((host for host in trial.hosts if host.signature is not None), None)
    accepted = [card for card in trial.cards if trial.accepted.get(card.name)]
    claims = {card.name: (card, *_stated_cycles(accepted, card.name)) for card in accepted}
    timed = {n: c for n, c in claims.items() if c[1] or c[2]}
    if host is None or not timed:
        return
    bench = _Chains.at_cheapest_place(trial, host)
    if bench is None:
        return
    measured = [*_measured(bench, timed)]
    agreed: dict[str, list[bool]] = defaultdict(list)
    for claim in measured:
        agreed[claim.method].append(claim.stated == claim.measured)
    for claim in measured:
        votes = agreed[claim.method]
        valid = sum(votes) >= LEAST_AGREED and sum(votes) >= LEAST_SHARE * len(votes)
        figure = f"{claim.measured:g} cycles measured by {claim.method}, {claim.stated} stated"
        outcome: Outcome = "right" if claim.stated == claim.measured else "wrong"
        if not valid:
            outcome = "unchecked"
            figure += "; the method fits too few claims to decide"
        yield finding("latency", outcome, claim.card, figure, claim.statement)


def _stated_cycles(cards: Sequence[Symbol], name: str) -> tuple[set[int], set[int]]:
    """Latencies and issue cycles that the cards of a name state."""
    texts = [t for card in cards if card.name == name for t in card.further if _TIMED.search(t)]
    latencies = {int(n) for text in texts for n in _LATENCY.findall(text)}
    return latencies, {int(n) for text in texts for n in _ISSUE.findall(text)}


def _measured(
    bench: _Chains, timed: Mapping[str, tuple[Symbol, set[int], set[int]]]
) -> Iterator[TimedClaim]:
    chained: dict[str, str] = {}  # pattern -> a statement whose chain has the stated latency
    alone = []
    for card, latencies, issue in timed.values():
        for statement in bench.trial.accepted[card.name][:1]:
            bound = bench.bound(statement)
            slope = bench.slope([bound]) if bound is not None else None
            if bound is None or slope is None:
                continue
            patterns = [_pattern(token) for token in _REGISTER.findall(bound)]
            if max(Counter(patterns).values(), default=0) > 1 or _accumulates(card):
                for stated in latencies:
                    yield TimedClaim(card, "a chain of copies", stated, slope, bound)
                if slope in latencies and len({*patterns}) == 1:
                    chained.setdefault(patterns[0], bound)
                continue
            alone.append((card, latencies, bound, patterns))
            for stated in issue:
                yield TimedClaim(card, "independent copies", stated, slope, bound)
    for card, latencies, bound, patterns in alone:
        consumer = next((chained[p] for p in patterns if p in chained), None)
        pair = bench.slope([bound, consumer]) if consumer is not None else None
        for stated in latencies if pair is not None and latencies else ():
            yield TimedClaim(card, "pairs with a consumer", stated, (pair or 0) - 1, bound)


def _accumulates(card: Symbol) -> bool:
    return any("read and written" in meaning for _, meaning in card.operands)


def _pattern(token: str) -> str:
    return re.sub(r"\d+$", "N", token)


@dataclass
class _Chains:
    """Measures repeated statements in a host, on registers that the host does not use."""

    trial: ManualTrial
    host: Host
    place: int
    fresh: dict[str, str] = field(default_factory=dict)  # pattern -> register
    prepare: list[str] = field(default_factory=list)

    @classmethod
    def at_cheapest_place(cls, trial: ManualTrial, host: Host) -> _Chains | None:
        """At the place where copies of the line cost least: outside loops."""
        assert host.signature is not None
        base = cost_of_run(trial.tool.run("\n".join(host.lines) + "\n", host.signature))
        if base is None:
            return None
        costs = []
        for place in host.places:
            source = host.insert(place, [host.statement(place)] * 2)
            cost = cost_of_run(trial.tool.run(source, host.signature))
            if cost is not None and cost > base:
                costs.append((cost - base, -place))
        if not costs:
            return None
        bench = cls(trial, host, -min(costs)[1])
        bench._prepare()
        return bench

    def _prepare(self) -> None:
        """Set a register of each kind by an accepted statement that needs no other unset kind."""
        for _ in range(3):
            for statements in self.trial.accepted.values():
                for statement in statements:
                    self._set_by(statement)

    def _set_by(self, statement: str) -> None:
        patterns = [_pattern(token) for token in _REGISTER.findall(statement)]
        unset = [pattern for pattern in patterns if pattern not in self.fresh]
        if len(unset) != 1:
            return
        token = self._unused(unset[0])
        if token is None:
            return
        self.fresh[unset[0]] = token
        bound = self.bound(statement)
        if bound is None or self._cost([bound]) is None:
            del self.fresh[unset[0]]
        else:
            self.prepare.append(bound)

    def _unused(self, pattern: str) -> str | None:
        text = "\n".join(self.host.lines)
        used = {token for token in _REGISTER.findall(text)}
        for number in range(MOST_REGISTERS):
            token = pattern[:-1] + str(number)
            if token not in used:
                return token
        return None

    def bound(self, statement: str) -> str | None:
        """The statement on the fresh registers, None where a kind of them is not set."""
        tokens = _REGISTER.findall(statement)
        if any(_pattern(token) not in self.fresh for token in tokens):
            return None
        return _REGISTER.sub(lambda match: self.fresh[_pattern(match[0])], statement)

    def _cost(self, statements: Sequence[str]) -> float | None:
        assert self.host.signature is not None
        source = self.host.insert(self.place, [*self.prepare, *statements])
        return cost_of_run(self.trial.tool.run(source, self.host.signature))

    def slope(self, statements: Sequence[str]) -> float | None:
        """Cycles of one more copy of the statements; None where a run fails."""
        few, many = self._cost([*statements] * FEW), self._cost([*statements] * MANY)
        # Copies that cost nothing are not reached, as after a return.
        return None if few is None or many is None or many <= few else (many - few) / (MANY - FEW)


# -- ranges of registers

_RANGE = re.compile(
    r"`*(?P<prefix>[^\s\d`|(,*]*[A-Za-z_.])0`*\*?\s*(?:to|through|-|\u2013|\.\.\.?)\s*`*"
    r"(?P=prefix)(?P<last>\d+)"
)


def check_ranges(trial: ManualTrial) -> Iterator[Finding]:
    """The last register of a range compiles in a statement, and the next one does not."""
    statements = [(h, p, h.statement(p)) for h in trial.hosts for p in h.places]
    witness = next(((h, p) for h, p, _ in statements), None)
    if witness is None:
        return
    host, place = witness
    tries = [statement for accepted in trial.accepted.values() for statement in accepted]
    done: set[tuple[str, str, str]] = set()
    for section in trial.sections:
        for match in _RANGE.finditer(section.text):
            prefix, last = match["prefix"], int(match["last"])
            if (key := (prefix, match["last"], section.place)) in done or last < 1:
                continue
            done.add(key)
            outcome, message, evidence = _range_outcome(trial, host, place, tries, prefix, last)
            subject = f"{prefix}0 to {prefix}{last}"
            yield Finding(
                "range", outcome, subject, section.document, section.place, message, evidence
            )


def _range_outcome(
    trial: ManualTrial, host: Host, place: int, tries: Sequence[str], prefix: str, last: int
) -> tuple[Outcome, str, str]:
    token = re.compile(rf"(?<![\w.]){re.escape(prefix)}\d+(?![\w.])")
    statement = next((text for text in tries if token.search(text)), None)
    if statement is None:
        return "unchecked", "no statement that compiles names such a register", ""
    highest = token.sub(f"{prefix}{last}", statement, count=1)
    above = token.sub(f"{prefix}{last + 1}", statement, count=1)
    inside = trial.tool.compile(host.insert(place, [highest]), highest)
    outside = trial.tool.compile(host.insert(place, [above]), above)
    trial.codes |= {*inside.codes, *outside.codes}
    if not inside.ok:
        return "contradicted", f"the tool refuses {prefix}{last}: {inside.message}", highest
    if outside.ok:
        return "contradicted", f"the tool also takes {prefix}{last + 1}", above
    return "right", f"{prefix}{last} compiles, {prefix}{last + 1} does not", highest


# -- completeness


def check_tables(trial: ManualTrial) -> Iterator[Finding]:
    """A table that lists names which sections below it define, and lacks some of them."""
    own = defaultdict(list)
    for card in trial.cards:
        own[card.document_title].append(card)
    for section in trial.sections:
        below = {
            card.name
            for card in own[section.document]
            if card.path[: len(section.path)] == section.path and len(card.path) > len(section.path)
        }
        for first_cells in section.tables:
            listed = {name for name in below if any(_uses(cell, name) for cell in first_cells)}
            lacking = sorted(below - listed)
            if len(listed) < LEAST_LISTED or len(listed) < len(below) / 2:
                continue
            message = (
                f"a table lists {len(listed)} of {len(below)} names that sections below define"
            )
            if lacking:
                message += f" and lacks {', '.join(lacking[:12])}"
            outcome: Outcome = "missing" if lacking else "right"
            yield Finding(
                "table",
                outcome,
                ", ".join(lacking[:12]) or f"{len(listed)} names",
                section.document,
                section.place,
                message,
            )


def check_references(trial: ManualTrial, stated: Sequence[str]) -> Iterator[Finding]:
    """Error codes that sections, hardware.toml (`stated`) or the tool name and nothing defines."""
    defined = {card.name for card in trial.cards if card.kind == "error"}
    shapes = {_DIGITS.sub("0", code) for code in defined}
    if not shapes:
        return
    code = re.compile(r"(?<![\w-])[A-Z][A-Za-z]*[-_]?[A-Z]*\d{2,6}(?![\w-])")
    seen: set[str] = set()
    for section in trial.sections:
        for name in code.findall(section.text):
            if _DIGITS.sub("0", name) in shapes and name not in seen:
                seen.add(name)
                known = name in defined
                yield Finding(
                    "error code",
                    "right" if known else "missing",
                    name,
                    section.document,
                    section.place,
                    "defined" if known else "referenced here and nowhere defined",
                )
    texts = (*((s, "in an error signature of hardware.toml") for s in stated),)
    texts += tuple((name, "in a message of the tool") for name in sorted(trial.codes))
    for text, where in texts:
        for name in code.findall(text):
            if _DIGITS.sub("0", name) in shapes and name not in {*seen, *defined}:
                seen.add(name)
                yield Finding("error code", "missing", name, "", "", f"{where}, nowhere defined")


# -- the test

MAX_HOSTS = 4


def accept_manuals(
    base: KnowledgeBase,
    hardware_id: str,
    language: Annotated[str, Doc("Only this language of the chip.")] = "",
) -> Acceptance:
    """Test a chip's manuals on its own toolchain: samples, examples, names, operands, latencies,
    ranges, tables and references, with a mark by section and for the whole set."""
    hardware = base.registry.resolve(hardware_id)
    lineage = base.registry.lineage(hardware)
    chains = command_toolchains(base.registry.all(), lineage)
    wanted = {name: chain for name, chain in chains.items() if language in ("", name)}
    if not wanted:
        raise InvalidRequest(
            f"{hardware} has no command toolchain" + (f" for {language}" if language else ""),
            hint="Manuals are tested on the chip's own tools: add [toolchains.LANGUAGE] with"
            " compile and run to its hardware.toml.",
        )
    results = tuple(_of_language(base, hardware, name, wanted[name]) for name in sorted(wanted))
    marks = [r.mark for r in results if r.mark is not None]
    result = Acceptance(hardware, min(marks, default=None), clock.now(), results)
    store(base, result)
    return result


def _of_language(
    base: KnowledgeBase, hardware: str, language: str, template: ToolchainSpec
) -> ManualAcceptance:
    chosen = choose_target(base, hardware, language)
    chain = usable_toolchain(language, chosen.target, chosen.builtin)  # raises where tools lack
    lineage = base.registry.lineage(hardware)
    manuals = [
        document
        for place in lineage
        for document in base.documents.find(hardware=place, category="hardware")
    ]
    with base.catalog.read() as connection:
        cards = symbols.listed(connection, lineage, access_scope=base.access)
        kernels = samples.listed(connection, lineage, base.access)
    cards = [card for card in cards if card.language in ("", language)]
    with tempfile.TemporaryDirectory(prefix="kernlore-accept-") as folder:
        tool = ProbedTool(language, template, chosen.target, Path(folder))
        findings, hosts = _kernels(tool, template, kernels, language)
        sections = _sections(base, manuals)
        hosts = [_with_headers(tool, host, sections) for host in hosts]
        trial = ManualTrial(tool, hosts, cards, sections)
        signatures = [s.pattern for place in lineage for s in base.registry.all()[place].signatures]
        findings += _claims(trial, signatures)
        compiled = tool.compiled
    at = dict.fromkeys((finding.subject for finding in findings), TESTED)
    _remember(base, hardware, language, chain.version(), findings, at)
    counts = _counts(findings)
    decided = counts["right"] + sum(counts[fault] for fault in FAULTS)
    return ManualAcceptance(
        hardware=hardware,
        language=language,
        tool=chain.version(),
        mark=round(100 * counts["right"] / decided, 1) if decided else None,
        counts=counts,
        findings=tuple(findings),
        sections=tuple(_by_section(findings)),
        coverage=(*_coverage(cards), _decided(findings)),
        documents=tuple(
            f"{d.title}, version {d.version.number}" for d in manuals if d.version is not None
        ),
        kernels=tuple(host.title for host in hosts),
        compilations=compiled,
    )


def refused_by_tool(
    base: KnowledgeBase, hardware: str, language: str, seen: Mapping[str, str]
) -> list[RefusedName]:
    """Those of the names in `seen`, each with the place where a log reports it as unknown, that
    have a card and that the toolchain does not know in the chip's own kernels either: a kernel may
    lack a header. Remembered for the chip; a name that the tool knows now is forgotten."""
    lineage = base.registry.lineage(hardware)
    template = command_toolchains(base.registry.all(), lineage)[language]
    chosen = choose_target(base, hardware, language)
    chain = usable_toolchain(language, chosen.target, chosen.builtin)
    with base.catalog.read() as connection:
        cards = symbols.listed(connection, lineage, names=seen, access_scope=base.access)
        kernels = samples.listed(connection, lineage, base.access)
    cards = [c for c in cards if c.language in ("", language) and c.kind in NAMED]
    if not cards:
        return []
    with tempfile.TemporaryDirectory(prefix="kernlore-refused-") as folder:
        tool = ProbedTool(language, template, chosen.target, Path(folder))
        _, hosts = _kernels(tool, template, kernels, language)
        trial = ManualTrial(tool, hosts, cards, ())
        findings = [*check_names(trial, witnesses_of(trial))]
    return _remember(base, hardware, language, chain.version(), findings, seen)


TESTED = "acceptance test"


def _remember(
    base: KnowledgeBase,
    hardware: str,
    language: str,
    version: str,
    findings: Sequence[Finding],
    seen: Mapping[str, str],
) -> list[RefusedName]:
    """Store the results of trials of names; they replace earlier results for the same names."""
    decided = [f for f in findings if f.check == "name" and f.outcome in ("right", "contradicted")]
    refused = [
        RefusedName(f.subject, language, f.document, f.section, f.message, version, seen[f.subject])
        for f in decided
        if f.outcome == "contradicted"
    ]
    known = {f.subject for f in decided}
    with base.catalog.write() as connection:
        before = [
            row
            for row in symbols.refused_names(connection, hardware)
            if row.language != language or (row.tool == version and row.name not in known)
        ]
        symbols.put_refused(connection, hardware, [*before, *refused])
    return refused


def _kernels(
    tool: ProbedTool, template: ToolchainSpec, kernels: Sequence[samples.Sample], language: str
) -> tuple[list[Finding], list[Host]]:
    """Compile every whole kernel; those that compile are hosts, the ones that run first."""
    findings: list[Finding] = []
    hosts: list[Host] = []
    if template.sample.strip():
        host = host_of(tool, "the sample of hardware.toml", template.sample)
        hosts += [host] if host is not None else []
    for kernel in kernels:
        if kernel.language not in ("", language):
            continue
        host = host_of(tool, kernel.title, kernel.code)
        if host is None and _in_other_notation(kernel.code, template.sample):
            outcome: Outcome = "unchecked"
            message = "in another notation than the sample of hardware.toml"
        elif host is None:
            tried = tool.compile(kernel.code.strip("\n") + "\n")
            outcome = "wrong"
            message = f"does not compile: {tried.message}"
        else:
            hosts.append(host)
            outcome = "right"
            message = "compiles and runs" if host.signature is not None else "compiles"
        document = kernel.document_title or f"run {kernel.run_id}"
        findings.append(Finding("whole kernel", outcome, kernel.title, document, "", message))
    hosts.sort(key=lambda host: (host.signature is None, -len(host.places)))
    return findings, hosts[:MAX_HOSTS]


def _in_other_notation(code: str, sample: str) -> bool:
    """Whether a kernel has no blocks in braces where the sample has them, as assembly beside C."""
    plain = re.sub(r"^[ \t]*(?:#|//|;).*$", "", code, flags=re.MULTILINE)
    return "{" in sample and "{" not in plain


def _with_headers(tool: ProbedTool, host: Host, sections: Sequence[ManualSection]) -> Host:
    """The host with the headers and modules that the manuals name and that compile in it, so that a
    name which needs one of them is known."""
    lines = (line for section in sections for line in _HEADER.findall(section.text))
    named = [line for line in dict.fromkeys(lines) if line not in host.lines]
    place = max((n for n, line in enumerate(host.lines) if _HEADER.match(line)), default=-1)
    fits = [line for line, tried in tool.insert_all(host, place, named).items() if tried.ok]
    if not fits:
        return host
    found = host_of(tool, host.title, host.insert(place, fits))
    return found if found is not None else host


def _claims(trial: ManualTrial, signatures: Sequence[str]) -> list[Finding]:
    findings: list[Finding] = []
    if not trial.hosts:
        message = "no whole kernel compiles, so no statement can be tried"
        findings.append(Finding("whole kernel", "missing", "a kernel", "", "", message))
    witnesses = witnesses_of(trial) if trial.hosts else {}
    findings += check_names(trial, witnesses)
    findings += check_undefined(trial, witnesses)
    findings += check_operands(trial, witnesses)
    findings += check_latencies(trial)
    findings += check_ranges(trial)
    findings += check_tables(trial)
    findings += check_references(trial, signatures)
    return list(dict.fromkeys(findings))


def _sections(base: KnowledgeBase, manuals: Sequence[Any]) -> list[ManualSection]:
    """The sections of the current versions, read again from the originals for their tables."""
    sections: list[ManualSection] = []
    for manual in manuals:
        if manual.version is None:
            continue
        original = original_file(base, manual.id)
        try:
            parsed = parse(original.data, original.name)
        except KernloreError:
            continue  # its job already reports that it cannot be read
        sections += sections_of(manual.title, parsed)
    return sections


def sections_of(title: str, document: ParsedDocument) -> list[ManualSection]:
    """The sections of a document, with the first cells of the rows of their tables."""
    return [
        ManualSection(
            title,
            tuple(section.path),
            "\n".join(element.text for element in section.elements),
            tuple(
                tuple(row[0] for row in element.table.rows)
                for element in section.elements
                if element.table is not None
            ),
        )
        for section in split_sections(document.elements)
    ]


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(("right", *FAULTS, "unchecked"), 0)
    for finding in findings:
        counts[finding.outcome] += 1
    return counts


def _by_section(findings: Sequence[Finding]) -> Iterator[SectionMark]:
    grouped: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        grouped[finding.document, finding.section].append(finding)
    for (document, section), entries in grouped.items():
        counts = _counts(entries)
        faults = sum(counts[fault] for fault in FAULTS)
        yield SectionMark(document, section, counts["right"], faults, counts["unchecked"])


def _coverage(cards: Sequence[symbols.Symbol]) -> Iterator[Covered]:
    called = [card for card in cards if card.kind in ("instruction", "function", "directive")]
    names = {card.name for card in called}

    def having(part: str) -> int:
        return len({card.name for card in called if getattr(card, part)})

    yield Covered("names with a signature", having("signature"), len(names))
    yield Covered("names with operands", having("operands"), len(names))
    yield Covered("names with limits", having("limits"), len(names))
    errors = {card.name: card for card in cards if card.kind == "error"}
    explained = sum(bool(card.meaning) for card in errors.values())
    yield Covered("error codes with a meaning", explained, len(errors))


def _decided(findings: Sequence[Finding]) -> Covered:
    counted = [finding for finding in findings if finding.check == "operands"]
    decided = sum(finding.outcome != "unchecked" for finding in counted)
    return Covered("signatures whose operands the tool counted", decided, len(counted))
