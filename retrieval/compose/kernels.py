"""Whole kernels in a context: the choice by operator, language and chip, and the most useful part
of a kernel that does not fit.

Kernels are the samples of documents, those that runs have found right, and the recipes of skills
with the defaults of their parameters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from kb.candidate_abi import DECLARATIONS, HEADER_NAME, c_declarations
from kb.catalog.knowledge.samples import Sample
from kb.catalog.skills.evidence import MeasuredSkill
from kb.catalog.skills.reading import RecipeText
from kb.prompt_tokens import count_tokens
from kb.scope import AccessScope, ScopeFilter
from kb.tokens import below_title
from retrieval.compose.excerpts import Repeats
from retrieval.compose.sections import Block, Room, data, fenced, plain
from retrieval.operators import FLOAT, OperatorTraits, load_operators, plain_words
from retrieval.snapshot.snapshot import Snapshot

MOST_KERNELS = 3  # of the operator in a context
MOST_KIN = 2  # kernels of related operators, if none of the operator itself exists
LEAST_KIN = 0.25  # relation below which a kernel does not help
LEAST_CUT = 240  # tokens of a part of a kernel, mostly its text
USABLE_STATES = ("active",)  # of skills with recipes
# How much a kernel for the chip's family, its vendor, any chip or another family counts.
OWN, PER_STEP, ANY_CHIP, OTHER_FAMILY = 1.0, 0.04, 0.8, 0.7
# By the check; of recipes, those with "runs" have helped in measured trials, those with "unproven"
# had no effect or no trial, and those with "slower" do harm.
STATUS = {
    "right": 1.0,
    "runs": 0.97,
    "compiles": 0.94,
    "untried": 0.9,
    "unproven": 0.85,
    "slower": 0.7,
    "refused": 0.0,
}
OF_A_RUN = 1.1  # a kernel that a run has found right on this chip
SAME_OPERANDS, WIDER, OTHERS = 1.0, 0.8, 0.75
REPEATED = 0.7  # for a kernel of the same kind and operands as one already chosen
_PARAMETER = re.compile(r"@\{(\w+)\}(f?)")  # with the suffix of a C literal
PYTHON_LANGUAGES = frozenset({"torch", "triton"})
_CHECKED = re.compile(r"^(?:Checked: |Nothing of it was checked)", re.M)


@dataclass(frozen=True)
class WholeKernel:
    """A kernel that a context may show. `about` describes it unless its section does, `evidence`
    describes the check, `fetch` how to get the whole text, `source` is the citation. `hardware` is
    empty for any chip; `note` is "" unless the kernel was written for another family."""

    id: str
    title: str
    traits: OperatorTraits
    language: str
    hardware: tuple[str, ...]
    shapes: tuple[str, ...]
    code: str
    status: str
    evidence: str
    source: str
    fetch: str
    section: str | None = None
    run_id: str | None = None
    note: str = ""
    about: str = ""


@dataclass(frozen=True)
class KernelRequest:
    """What kernels are chosen for. `facts` are keys of the chip's facts; `run` is the calling run,
    whose own kernels are left out; `weight` is that of a section or a skill for the caller's tools.
    """

    traits: OperatorTraits
    lineage: tuple[str, ...]
    languages: tuple[str, ...]
    facts: Collection[str]
    access: AccessScope
    run: str | None = None
    weight: Callable[[str | None, str], float] = lambda section, skill: 1.0

    @property
    def kind(self) -> str:
        """The most specific kind."""
        return self.traits.kinds[0]


# -- the choice


def chosen_kernels(snapshot: Snapshot, wanted: KernelRequest) -> list[WholeKernel]:
    """The kernels that help to write one for the request, the best first; a kernel that differs
    from those before it precedes one more of the same kind.

    Where kernels of the operator itself exist, those of related operators are left out, except the
    best one with the operand types of the request if no kernel of the operator has them; where the
    best is a sample, recipes that have not helped in trials are left out; and where one has run on
    the chip's family, those for other families are left out.
    """
    if not wanted.traits.kinds:
        return []
    usable = kernels_of(snapshot, wanted.lineage, wanted.languages, wanted.access)
    scored = [
        (score_of(kernel, wanted), kernel)
        for kernel in usable
        if kernel.run_id is None or kernel.run_id != wanted.run
    ]
    left = [(score, kernel) for score, kernel in scored if score > 0]
    left.sort(key=lambda entry: (-entry[0], len(entry[1].code), entry[1].id))
    chosen: list[WholeKernel] = []
    while left:
        shown = {kernel.traits for kernel in chosen}
        best = max(
            left, key=lambda entry: entry[0] * (REPEATED if entry[1].traits in shown else 1.0)
        )
        left.remove(best)
        chosen.append(best[1])
    return _without_fillers(chosen, wanted)


def is_of_kind(kernel: WholeKernel, wanted: KernelRequest) -> bool:
    """Whether a kernel computes the operator itself, not a related one."""
    return wanted.kind in kernel.traits.kinds


def named_in(
    snapshot: Snapshot, scope: ScopeFilter, kernel: WholeKernel, usable: Sequence[WholeKernel]
) -> list[WholeKernel]:
    """The kernels whose titles the description or code of a kernel has: one that makes its
    operands, or one that shows the change advised first."""
    text = " ".join(f"{_about(snapshot, scope, kernel)} {kernel.code}".split())
    return [other for other in usable if other.section and other.title in text]


def _without_fillers(kernels: Sequence[WholeKernel], wanted: KernelRequest) -> list[WholeKernel]:
    own = [kernel for kernel in kernels if is_of_kind(kernel, wanted)]
    kin = [kernel for kernel in kernels if not is_of_kind(kernel, wanted)]
    if not own:
        first_of_kind = {kernel.traits.kinds: kernel for kernel in reversed(kin)}
        return [kernel for kernel in kin if first_of_kind[kernel.traits.kinds] is kernel][:MOST_KIN]
    if own[0].section is not None:  # a sample is the best: recipes have to have helped
        own = [kernel for kernel in own if kernel.status not in ("unproven", "slower")]
    if any(_has_run_here(kernel, wanted) for kernel in own):
        own = [kernel for kernel in own if not kernel.note]
    operands = wanted.traits.operands
    if all(kernel.traits.operands != operands for kernel in own):
        own += [kernel for kernel in kin if kernel.traits.operands == operands][:1]
    return own[:MOST_KERNELS]


def _has_run_here(kernel: WholeKernel, wanted: KernelRequest) -> bool:
    has_run = kernel.status in ("right", "runs") and not kernel.note
    return has_run and not set(wanted.lineage).isdisjoint(kernel.hardware)


def score_of(kernel: WholeKernel, wanted: KernelRequest) -> float:
    """How useful a kernel is for a request, 0 if it does not help or cannot run on the chip."""
    operators = load_operators()
    relation = operators.relation(wanted.kind, kernel.traits.kinds)
    title = plain_words(kernel.title)
    lacking = any(
        fact not in wanted.facts and any(word in title for word in words)
        for words, fact in operators.needs
    )
    if relation < LEAST_KIN or lacking:
        return 0.0
    chip = _closeness(kernel.hardware, wanted.lineage) if not kernel.note else OTHER_FAMILY
    verified = OF_A_RUN if kernel.run_id and chip == OWN else 1.0
    alike = _alike(kernel.traits.operands, wanted.traits.operands)
    fit = wanted.weight(kernel.section, kernel.id)
    return relation * chip * alike * STATUS.get(kernel.status, 0.0) * verified * fit


def _closeness(hardware: Sequence[str], lineage: Sequence[str]) -> float:
    places = [lineage.index(chip) for chip in hardware if chip in lineage]
    return OWN - PER_STEP * min(places) if places else ANY_CHIP


def _alike(own: str, wanted: str) -> float:
    if own == wanted:
        return SAME_OPERANDS
    return WIDER if own == FLOAT else OTHERS


def kernels_of(
    snapshot: Snapshot,
    lineage: tuple[str, ...],
    languages: tuple[str, ...],
    access: AccessScope,
) -> list[WholeKernel]:
    """All kernels in these languages that run on a chip, cached."""

    def read() -> list[WholeKernel]:
        operators = load_operators()
        kernels = [_of_sample(s) for s in snapshot.kernels(lineage, access)]
        for other in operators.portable:
            if other.also.isdisjoint(lineage) or other.family in lineage:
                continue
            for sample in snapshot.kernels((other.family,), access):
                kernel = _of_sample(sample)
                fits = other.without is None or not other.without.search(kernel.code)
                if kernel.language in other.languages and fits:
                    kernels.append(
                        replace(kernel, note=f"Written for {other.family}: {other.why}.")
                    )
        kernels += _of_skills(snapshot, lineage, access)
        return [kernel for kernel in kernels if kernel.language in languages]

    return snapshot.keep("whole kernels", (lineage, languages, access), read)


def _of_sample(sample: Sample) -> WholeKernel:
    where = " > ".join(below_title(sample.path[-2:], sample.document_title or ""))
    title, version = sample.document_title, sample.version
    source = f"{title} (v{version})" + (f", {where}" if where else "")
    if not sample.document_id:
        source = f"run {sample.run_id}, {sample.title}"
    chip = sample.hardware[0] if sample.hardware else ""
    return WholeKernel(
        id=sample.id,
        title=sample.title,
        traits=load_operators().of_title(sample.operator, sample.title, sample.shapes),
        language=sample.language,
        hardware=sample.hardware,
        shapes=sample.shapes,
        code=sample.code.rstrip(),
        status=sample.status,
        evidence=sample.evidence or {"untried": ""}.get(sample.status, sample.status),
        source=source,
        fetch=f"`kernlore knowledge samples --hardware {chip}` or GET /hardware/{chip}/samples,"
        f" id {sample.id}",
        section=sample.section_id,
        run_id=sample.run_id,
    )


def _of_skills(
    snapshot: Snapshot, lineage: Sequence[str], access: AccessScope
) -> list[WholeKernel]:
    """The recipes of skills for a chip, as kernels with the defaults of their parameters."""
    return [
        _of_recipe(skill, skill.recipe)
        for skill in snapshot.knowledge.seen_skills(USABLE_STATES, access)
        if skill.recipe is not None
        and skill.recipe.template
        and (
            not skill.head.scopes.hardware
            or not set(lineage).isdisjoint(skill.head.scopes.hardware)
        )
    ]


def _of_recipe(skill: MeasuredSkill, recipe: RecipeText) -> WholeKernel:
    body, head = recipe.body, skill.head
    tensors: Sequence[Mapping[str, Any]] = body.get("tensors", ())
    shapes = [f"{t['name']}{''.join(f'[{dim}]' for dim in t.get('dims', ()))}" for t in tensors]
    dtypes = " or ".join(dict.fromkeys(d for t in tensors for d in t.get("dtypes", ())))
    ops = list(body.get("ops") or head.scopes.ops or ("",))
    title = head.name.partition("-")[2].replace("-", " ")
    limits = f", for {body['when']}" if body.get("when") else ""
    return WholeKernel(
        id=head.name,
        title=f"Recipe {head.name}",
        traits=load_operators().of_title(str(ops[0]), title),
        language=str(body.get("language", "")),
        hardware=head.scopes.hardware,
        shapes=tuple(shapes),
        code=with_defaults(body, recipe.template).strip(),
        status={"helps": "runs", "harms": "slower"}.get(skill.effect.state, "unproven"),
        evidence=f"searches start from it{limits}; {dtypes}; {skill.effect}",
        source=f"skill {head.name} (v{head.version}), recipe",
        fetch=f"`kernlore skills show {head.name}`",
        about=head.description,
    )


def with_defaults(body: Mapping[str, Any], template: str) -> str:
    """The template with the defaults of its parameters, and the declarations that a C source takes
    from the header of candidates. Constants of the problem, which a search takes from its
    reference, are defined in front with the default of PyTorch and the value to set."""
    python = body.get("language") in PYTHON_LANGUAGES
    values = {p["name"]: p.get("default", p["values"][0]) for p in body.get("parameters", ())}
    tensors: Sequence[Mapping[str, Any]] = body.get("tensors", ())
    values["host"] = c_declarations(
        (t["name"], t["role"], t["dtypes"][0], t.get("dims", ())) for t in tensors
    )
    traits: Mapping[str, str] = body.get("traits", {})
    used = dict.fromkeys(match[1] for match in _PARAMETER.finditer(template))
    constants = [_constant(name, traits[name], python) for name in used if name in traits]

    def put(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is None:  # a C suffix after a name would make another name of it
            return f"(float){match[1]}" if match[2] and not python else match[1] + match[2]
        text = str(value) if python or not isinstance(value, bool) else str(value).lower()
        return text + match[2]

    source = _PARAMETER.sub(put, template)
    return "".join(constants) + source.replace(f'#include "{HEADER_NAME}"\n', DECLARATIONS)


# Defaults of arguments of PyTorch's operators, by the name of the argument or of the constant, and
# 1 for a size.
ARGUMENTS: Mapping[str, bool | float] = MappingProxyType(
    {"is_causal": False, "transposed": False, "padding": 0, "output_padding": 0, "stride": 1}
    | {"dilation": 1, "groups": 1, "eps": 1e-5, "kernel_size": 1}
)


def _constant(name: str, path: str, python: bool) -> str:
    """The line that defines a constant of the problem, which is `path` in the reference: 1 for a
    number of the model, and NaN for an argument without a default."""
    argument = path.rpartition(".")[2].partition("[")[0]
    other = 1 if path.startswith("model.") else math.nan
    value = ARGUMENTS.get(argument, ARGUMENTS.get(name, other))
    note = f"set to {path} of the reference"
    if python:
        text = 'float("nan")' if math.isnan(value) else repr(value)
        return f"{name} = {text}  # {note}\n"
    if isinstance(value, float):
        text = '__builtin_nan("")' if math.isnan(value) else repr(value)
        return f"constexpr double {name} = {text};  // {note}\n"
    return f"constexpr int {name} = {int(value)};  // {note}\n"


# -- blocks


@dataclass
class KernelOffer:
    """Offers kernels to a context in the order of `kernels`, without those that nearly repeat one
    before; `shown` are the kernels offered, whose names a context explains. `missing` states that
    none computes the operator itself, or is "". `kept_back` is the best kernel that a strong reader
    is not shown: what it does and reaches in words, and how to get it."""

    snapshot: Snapshot
    scope: ScopeFilter
    kernels: Sequence[WholeKernel]
    shown: list[WholeKernel]
    missing: str = ""
    kept_back: WholeKernel | None = None

    def blocks(self, room: Room, largest: int, without: frozenset[str]) -> Iterator[Block]:
        """A missing kernel, the first kernel, cut if necessary, then whole ones that fit in the
        remaining room."""
        if self.missing:
            yield plain("sample", "missing-kernel", self.missing)
        if self.kept_back is not None and self.kept_back.section not in without:
            yield self._described(self.kept_back, room.tokens)
        repeats = Repeats()
        for kernel in self.kernels:
            if {kernel.id, kernel.section} & without or not repeats.is_new(kernel.code):
                continue
            whole = bool(self.shown)
            block = kernel_block(self.snapshot, self.scope, kernel, room.tokens, whole=whole)
            if block is not None:
                self.shown.append(kernel)
                yield block

    def _described(self, kernel: WholeKernel, room: int) -> Block:
        """A kernel without its code: as much of its description as fits."""
        head = f"{kernel.title} ({kernel.language}). Its source is not shown here; {kernel.fetch}."
        about = _about(self.snapshot, self.scope, kernel)
        texts = (
            "\n".join(filter(None, parts))
            for parts in ((head, kernel.evidence, about), (head, kernel.evidence), (head,))
        )
        blocks = [
            fenced("description", kernel.id, kernel.source, kernel.hardware, text) for text in texts
        ]
        return next((block for block in blocks if block.tokens < room), blocks[-1])


def kernel_block(
    snapshot: Snapshot, scope: ScopeFilter, kernel: WholeKernel, room: int, *, whole: bool
) -> Block | None:
    """A kernel with what it does, its arguments and checks, in `room` tokens; with `whole`, None
    unless all of it fits, otherwise the part of its code that is worth most."""
    key = (kernel.id, kernel.note, scope.access_scope)
    every = snapshot.keep(
        "kernel blocks", key, lambda: _block(kernel, kernel.code, _about(snapshot, scope, kernel))
    )
    if every.tokens <= room:
        return every
    if whole or room < LEAST_CUT:
        return None
    return snapshot.keep("kernel blocks", (*key, room), lambda: _cut_block(kernel, room))


def _about(snapshot: Snapshot, scope: ScopeFilter, kernel: WholeKernel) -> str:
    """The prose of the section of a kernel, without the sentence about its checks."""
    if kernel.section is None:
        return kernel.about
    own = replace(scope, hardware=None, categories=("hardware", "guidance"), languages=None)
    section = snapshot.sections([kernel.section], own).get(kernel.section)
    if section is None:
        return ""
    prose = [p.text for p in section.passages if p.kind == "text"]
    # The evidence of the kernel says the same; the sentence may begin within a passage.
    return _CHECKED.split("\n".join(prose), maxsplit=1)[0].rstrip()


def _block(kernel: WholeKernel, code: str, about: str = "", left_out: str = "") -> Block:
    facts = [f"arguments {', '.join(kernel.shapes)}"] if kernel.shapes else []
    facts += [kernel.evidence] if kernel.evidence else []
    # The evidence of a recipe says what was measured of it.
    if kernel.section is not None and kernel.status not in ("right", "runs"):
        facts.append("never run")
    head = f"{kernel.title}: {'; '.join(facts)}" if facts else kernel.title
    parts = [head, kernel.note, about, f"```{kernel.language}\n{code}\n```", left_out]
    text = "\n".join(filter(None, parts))
    block = fenced("sample", kernel.id, kernel.source, kernel.hardware, text)
    return replace(block, sections=(kernel.section,) if kernel.section else ())


def _cut_block(kernel: WholeKernel, room: int) -> Block | None:
    fixed = _block(
        replace(kernel, evidence=kernel.evidence[:200]), "", "", _left_out(kernel, ("",))
    )
    cut = cut_code(kernel.code, kernel.language, room - fixed.tokens - 24)
    if not cut.text:
        return None
    block = _block(
        replace(kernel, evidence=kernel.evidence[:200]),
        cut.text,
        "",
        _left_out(kernel, cut.without),
    )
    return block if block.tokens <= room else None


def _left_out(kernel: WholeKernel, names: Sequence[str]) -> str:
    listed = ", ".join(names[:12]) + (" and others" if len(names) > 12 else "")
    return f"Left out: {listed}. The whole kernel: {kernel.fetch}."


# -- cutting

_PYTHON_DEF = re.compile(r"^(?:async )?(?:def|class)\s+(\w+)")
_C_NAME = re.compile(r"(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)[^;{}]*\{|\b(?:struct|union)\s+(\w+)")
_LOOP = re.compile(r"^\s*(?:for|while|do)\b|\b(?:tl\.range|static_range|affine_range|fori_loop)\b")
_MATRIX = re.compile(
    r"wgmma|\bmma\w*\(|mma_sync|tcgen05|_mfma_|mfma\w*\(|tl\.dot|nc_matmul|jnp\.dot|simdgroup_mult"
    r"|_tile_dp|warpgroup_mma|multiply\w*\(|\bgemm\(|\bdot\w*\("
)
_ENTRY = re.compile(
    r"__global__|\[\[kernel\]\]|\bkernel void\b|@(?:\w+\.)*(?:jit|kernel)\b|\bdef \w*kernel\("
)
_NO_NAME = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*"
    r"|\b(?:__\w+__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)",
    re.M | re.S,
)
_LAUNCH = re.compile(r"<<<|cudaLaunchKernel|hipLaunchKernel|\]\(\s*$|\)\]\(|torch\.empty")
HASH_COMMENTS = frozenset({"python", "triton", "cute", "nki", "pallas", "flydsl", "torch"})
_WORD = re.compile(r"\w+")
REMARK = 10  # tokens of a remark about omissions
FRAME = 8  # lines of a function that are shown before and after its main loop at least


@dataclass(frozen=True)
class CodePart:
    """A function, type or run of other lines at the top level of a source."""

    name: str
    text: str
    order: int


@dataclass(frozen=True)
class CutCode:
    """A part of a source. `without` names the omitted parts; `main` tells whether every kernel
    entry and every function with a main loop is whole."""

    text: str
    without: tuple[str, ...]
    main: bool


def cut_code(code: str, language: str, room: int) -> CutCode:
    """At most `room` tokens of a source: first kernels with their loops, then constants and types,
    then the functions that these use most, then the rest, in the order of the source."""
    parts = parts_of(code, language)
    mark = "#" if language in HASH_COMMENTS else "//"
    ranked = _by_worth(parts)
    chosen: dict[int, str] = {}
    left, main = room - REMARK, True
    for part, essential in ranked:
        cost = count_tokens(part.text) + REMARK
        if cost <= left:
            chosen[part.order] = part.text
            left -= cost
        elif essential:
            main = False
            piece = _loop_of(part.text, mark, left)
            if piece:
                chosen[part.order] = piece
                left -= count_tokens(piece) + REMARK
    without = tuple(part.name for part in parts if part.order not in chosen and part.name)
    return CutCode(_joined(parts, chosen, mark) if chosen else "", without, main)


def main_parts(code: str, language: str) -> list[str]:
    """The kernels of a source and the functions with loops that they call, without blank lines
    around them."""
    ranked = _by_worth(parts_of(code, language))
    return [part.text.strip("\n") for part, essential in ranked if essential]


def parts_of(code: str, language: str) -> list[CodePart]:
    """The top level of a source in parts; together they are the source."""
    lines = code.splitlines()
    groups = _python_parts(lines) if language in HASH_COMMENTS else _c_parts(lines)
    return [CodePart(name, "\n".join(group), n) for n, (name, group) in enumerate(groups)]


def _python_parts(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    groups: list[tuple[str, list[str]]] = []
    waiting: list[str] = []  # decorators and comments before a definition
    for line in lines:
        named = _PYTHON_DEF.match(line)
        if named:
            groups.append((named[1], [*waiting, line]))
            waiting = []
        elif line.startswith(("@", "#")):
            waiting.append(line)
        elif line[:1].isspace() or not line or line.startswith((")", "]", "}")):
            (waiting if waiting and not line else groups[-1][1] if groups else waiting).append(line)
        elif groups and not groups[-1][0]:
            groups[-1][1].extend([*waiting, line])
            waiting = []
        else:
            groups.append(("", [*waiting, line]))
            waiting = []
    if waiting:
        groups.append(("", waiting))
    return groups


def _c_parts(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    groups: list[tuple[str, list[str]]] = []
    current: list[str] = []
    depth = 0
    for line in lines:
        current.append(line)
        plain = line.partition("//")[0]
        depth += plain.count("{") - plain.count("}")
        opened = "{" in plain or "}" in plain
        ends = plain.rstrip().endswith(";") or line.startswith("#")
        if depth == 0 and not opened and ends and not line.endswith("\\"):
            if groups and not groups[-1][0]:
                groups[-1][1].extend(current)
            else:
                groups.append(("", current))
            current = []
        elif depth <= 0 and opened and plain.rstrip().endswith(("}", "};", ";")):
            depth = 0
            named = _C_NAME.search(_NO_NAME.sub("", "\n".join(current)))
            groups.append(((named[1] or named[2]) if named else "", current))
            current = []
    if current:
        groups.append(("", current))
    return groups


def _by_worth(parts: Sequence[CodePart]) -> list[tuple[CodePart, bool]]:
    """The parts, those of most worth first, each with whether it is a kernel or has a main loop."""
    worth = {part.order: _loop_worth(part.text) for part in parts}
    essential = _essential(parts, worth)
    names = {part.name for part in parts if part.name}
    used = Counter(w for p in essential for w in _WORD.findall(p.text) if w in names - {p.name})
    rest = [part for part in parts if part not in essential]
    rest.sort(key=lambda p: (_rank_of(p), -used[p.name], p.order))
    return [*((part, True) for part in essential), *((part, False) for part in rest)]


def _essential(parts: Sequence[CodePart], worth: Mapping[int, int]) -> list[CodePart]:
    """The kernels and the functions with loops that they call, those with most work first. Without
    a kernel, the part with most work."""
    entries = [p for p in parts if _ENTRY.search(p.text) and not _LAUNCH.search(p.text)]
    entries = [p for p in entries if worth[p.order]] or entries
    chosen = entries or [max(parts, key=lambda p: (worth[p.order], len(p.text)))]
    called = {word for part in chosen for word in _WORD.findall(part.text)}
    chosen += [p for p in parts if p.name in called and worth[p.order] and p not in chosen]
    return sorted(chosen, key=lambda p: -worth[p.order])


def _rank_of(part: CodePart) -> int:
    """Constants and types first, then functions, then the host's code."""
    if _LAUNCH.search(part.text):
        return 2
    return 0 if not part.name else 1


def _loop_worth(text: str) -> int:
    """Loops and matrix instructions in a text, an estimate of where the work is done."""
    loops = sum(1 for line in text.splitlines() if _LOOP.search(line))
    return loops + 3 * min(loops, 1) * len(_MATRIX.findall(text)) if loops else 0


def _loop_of(text: str, mark: str, room: int) -> str:
    """The head of a function and its longest loop with its surroundings within the budget."""
    lines = text.splitlines()
    head = next((n for n, line in enumerate(lines) if line.rstrip().endswith(("{", ":"))), 0) + 1
    first, last = _longest_loop(lines, head)
    if first == last:
        return ""

    def piece(low: int, high: int) -> str:
        before = [f"{mark} ... {low - head} lines left out"] if low > head else []
        after = [f"{mark} ... {len(lines) - high} lines left out"] if high < len(lines) else []
        return "\n".join([*lines[:head], *before, *lines[low:high], *after])

    if count_tokens(piece(first, last)) > room:
        while last - first > FRAME and count_tokens(piece(first, last)) > room:
            last -= max(1, (last - first) // 8)
        return piece(first, last) if count_tokens(piece(first, last)) <= room else ""
    return _widened(piece, first, last, head, len(lines), room)


def _widened(
    piece: Callable[[int, int], str], first: int, last: int, head: int, end: int, room: int
) -> str:
    """The piece with lines after the loop, which are the epilogue, then lines before it."""
    best = piece(first, last)
    for forward in (True, False):
        while (last < end) if forward else (first > head):
            low, high = (
                (first, min(end, last + FRAME)) if forward else (max(head, first - FRAME), last)
            )
            wider = piece(low, high)
            if count_tokens(wider) > room:
                break
            best, first, last = wider, low, high
    return best


def _longest_loop(lines: Sequence[str], head: int) -> tuple[int, int]:
    """The lines [first, last) of the loop with most work, by indentation."""
    best, worth = (head, head), 0
    for n in range(head, len(lines)):
        if not _LOOP.search(lines[n]):
            continue
        indent = len(lines[n]) - len(lines[n].lstrip())
        end = n + 1
        while end < len(lines) and (
            not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent
        ):
            end += 1
        if end < len(lines) and lines[end].strip().startswith("}"):
            end += 1
        value = (end - n) + 20 * len(_MATRIX.findall("\n".join(lines[n:end])))
        if value > worth:
            best, worth = (n, end), value
    return best


def _joined(parts: Sequence[CodePart], chosen: Mapping[int, str], mark: str) -> str:
    """The chosen parts in the order of the source, with a remark where others are missing."""
    lines: list[str] = []
    missing = 0
    for part in parts:
        if part.order not in chosen:
            missing += 1
            continue
        if missing:
            lines.append(f"{mark} left out here: {missing}")
            missing = 0
        lines.append(chosen[part.order])
    return data("\n".join(lines)).strip("\n")
