"""Proposes a generated kernel for any problem whose graph can be traced and lowered: C++ for the
CPU, Triton for a GPU.

From the reference it proposes the kernel with the default choices; from its own candidates, the
same with one choice changed. If a graph cannot be lowered, it logs the missing operator and
proposes nothing. If the problem allows libraries, a Triton candidate leaves such operators,
products and convolutions to torch. Deterministic in the context and the installed torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import REFERENCE, Node, Proposal, Value
from optimizer.search.synthesizers.base import CaseView, HardwareView, ProblemView, ProposalContext
from optimizer.search.synthesizers.traced import cpp, triton
from optimizer.search.synthesizers.traced.expression import NotWritten, Program
from optimizer.search.synthesizers.traced.graph import NotTraced, trace
from optimizer.search.synthesizers.traced.lowering import Lowering, NotLowered
from optimizer.search.synthesizers.traced.operators import OPERATORS
from optimizer.search.synthesizers.traced.triton_products import LIBRARY as NOT_OURS

NAME = "traced"
HOPELESS = 2.5  # times as long as the reference, which no choice of sizes made up for
LANGUAGES = ("cpp", "triton")
# Operators that Triton candidates leave to torch if allowed: its libraries are faster at products,
# and the Triton writer lacks some scans.
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "addmv", "mv")
# Orders and scatters, which the Triton writer lacks.
ORDERS_AND_SCATTERS = (
    *("sort", "sort.stable", "topk", "kthvalue", "median", "median.dim", "nanmedian"),
    *("nanmedian.dim", "mode", "scatter.src", "scatter.value", "scatter.reduce"),
    *("scatter.value_reduce", "scatter_add", "scatter_reduce.two", "index_add", "index_copy"),
    *("index_reduce", "index_put", "_unsafe_index_put", "put", "as_strided_scatter"),
)
SCANS = ("cummax", "cummin")
LIBRARY = frozenset(f"aten.{name}" for name in (*PRODUCTS, *SCANS, *ORDERS_AND_SCATTERS))
Choices = Mapping[str, Value]
WIDTH = "prefer_vector_width"  # in bits; the widest last
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Language:
    """Candidates in one language, with the default choices and the alternatives of each;
    `first_plan` and `change` begin the plans of proposals."""

    name: str
    file: str
    entry: str
    defaults: Choices
    alternatives: Mapping[str, tuple[Value, ...]]
    first_plan: str
    change: str


CPP = Language(
    "cpp",
    "kernel.cpp",
    "kernlore_run",
    # Choices of the C++ toolchain (its VARIANTS) that change how these loops are compiled.
    {WIDTH: "512", "unroll_loops": False},
    {WIDTH: ("256", "512"), "unroll_loops": (True, False)},
    "Write the traced graph as loops, with rows worked on to the end.",
    "Compile the same loops",
)
TRITON = Language(
    "triton",
    "kernel.py",
    "ModelNew",
    triton.DEFAULTS,
    triton.ALTERNATIVES,
    "Write the traced graph as Triton",
    "Write the same kernels",
)


@dataclass(frozen=True)
class Lowered:
    """The programs of a problem, and the cases that they serve."""

    programs: tuple[tuple[Signature, Program], ...]
    cases: tuple[str, ...]


class TracedSynthesizer:
    """Writes C++ for the CPU and Triton for a GPU."""

    name = NAME
    first_tries = 1

    def __init__(self, log: Callable[[str], None] | None = None) -> None:
        """`log` gets the reason why a problem has no kernel; by default this module's logger."""
        self._log = log or _log.info
        self.nothing_because = ""
        self._lowered: dict[tuple[str, str], Lowered | None] = {}

    def propose(self, context: ProposalContext) -> Proposal | None:
        """The next kernel; None if the graph cannot be lowered, a case's dtypes are unknown, or
        nothing is left to change."""
        language = language_of(context.hardware)
        if language is None:
            return None
        lowered = self._programs(context.problem, language)
        if lowered is None:
            return None
        if lost := _lost(context.tried):
            if lost != self.nothing_because:
                self._log(f"no further generated kernel for {context.problem.name}: {lost}")
            self.nothing_because = lost
            return None
        tried = {_key(n.proposal.values) for n in context.tried if n.proposal and _is_own(n)}
        texts = {n.proposal.bundle.source for n in context.tried if n.proposal and _is_own(n)}
        here = _within(language, context.hardware)
        for plan, values in _choices(context.parent, here, _refused(context.tried)):
            if _key(values) in tried:
                continue
            try:
                text, about = _written(language, lowered, context.problem, values)
            except NotWritten as problem:
                self._refuse(context.problem.name, str(problem))
                self._lowered[(context.problem.name, language.name)] = None
                return None
            if language is TRITON and text in texts:
                continue  # this choice changes nothing here
            return Proposal(
                bundle=Bundle(
                    {language.file: text},
                    language.file,
                    language.name,
                    language.entry,
                    dict(values),
                    "recipe",
                ),
                synthesizer=NAME,
                parent=context.parent.number,
                plan=plan + about if context.parent.number == REFERENCE else plan,
                values=dict(values),
                cases=lowered.cases,
            )
        return None

    def _refuse(self, name: str, why: str) -> None:
        self.nothing_because = why
        self._log(f"no generated kernel for {name}: {why}")

    def _programs(self, problem: ProblemView, language: Language) -> Lowered | None:
        """The programs; None if the first timed case has none."""
        key = (problem.name, language.name)
        if key not in self._lowered:
            allowed = problem.policy.get("library") == "allowed"
            library = LIBRARY if language is TRITON and allowed else None
            without = LIBRARY if language is TRITON and not allowed else frozenset()
            self._lowered[key] = self._programs_of_cases(problem, library, without)
        return self._lowered[key]

    def _programs_of_cases(
        self, problem: ProblemView, library: frozenset[str] | None, without: frozenset[str]
    ) -> Lowered | None:
        programs: list[tuple[Signature, Program]] = []
        served = []
        for case in problem.cases:
            program = lowered(case, library, without)
            if isinstance(program, str):
                self._refuse(f"{problem.name}, {case.name}", program)
                if case is problem.main:
                    return None
                continue
            served.append(case.name)
            if all(signature != case.signature for signature, _ in programs):
                programs.append((case.signature, program))
        return Lowered(tuple(programs), tuple(served))


def language_of(hardware: HardwareView) -> Language | None:
    """The language of candidates for this hardware, if there is one."""
    if hardware.device == "cpu":
        return CPP if CPP.name in hardware.languages else None
    return TRITON if TRITON.name in hardware.languages else None


def _within(language: Language, hardware: HardwareView) -> Language:
    """The language with the choices of this hardware: vectors up to the processor's width, tensor
    cores for float32 if they take TF32."""
    if language is TRITON and "nvidia" in hardware.lineage:
        return replace(language, defaults=triton.DEFAULTS_WITH_TF32)
    bits = hardware.facts.get("vector_bits")
    widths = language.alternatives.get(WIDTH)
    if widths is None or not isinstance(bits, int | float):
        return language
    fitting = tuple(width for width in widths if int(width) <= bits) or widths[:1]
    return replace(
        language,
        defaults={**language.defaults, WIDTH: fitting[-1]},
        alternatives={**language.alternatives, WIDTH: fitting},
    )


def lowered(
    case: CaseView, library: frozenset[str] | None = None, without: frozenset[str] = frozenset()
) -> Program | str:
    """The program of a case, or the reason why it has none. With `library`, its operators and those
    that cannot be lowered are left to torch. Operators of `without` are rejected."""
    in_torch = library is not None  # such kernels read hidden buffers of the Model
    traced = trace(case.source, case.dtype, attention=in_torch, values=not in_torch)
    if isinstance(traced, NotTraced):
        return f"it was not traced: {traced.reason}"
    known = {name: rule for name, rule in OPERATORS.items() if name not in without}
    try:
        return Lowering(traced.graph, case.signature, known, library, traced.hidden).program()
    except NotLowered as problem:
        return f"it is not lowered: {problem}"


def _written(
    language: Language, lowered: Lowered, problem: ProblemView, values: Choices
) -> tuple[str, str]:
    """The source with these choices, and its description in the plan. Raises NotWritten."""
    if language is CPP:
        return cpp.write_candidate(lowered.programs), ""
    source = triton.write_candidate(lowered.programs, problem.source, values)
    kernels = f"{source.kernels} kernel" + ("s" if source.kernels != 1 else "")
    left = f"; torch keeps {', '.join(source.left)}" if source.left else ""
    return source.text, f": {kernels}{left}."


def _lost(tried: Sequence[Node]) -> str:
    """Why other choices for the same kernels are not worth their time: the fastest of them
    certainly takes more than HOPELESS times as long as the reference; else empty."""
    measured = [n.speedup for n in tried if _is_own(n) and n.correct and n.speedup is not None]
    if not measured:
        return ""
    best = max(measured, key=lambda speedup: speedup.high)
    if best.high * HOPELESS >= 1:
        return ""
    return f"its kernels reach {best.value:.2f}x of the reference, and choices do not close that"


def _refused(tried: Sequence[Node]) -> bool:
    """Whether a kernel was incorrect or took too long to compile."""
    return any(_is_own(n) and n.evaluation and not n.evaluation.correct for n in tried)


def _choices(parent: Node, language: Language, refused: bool) -> Iterator[tuple[str, Choices]]:
    if parent.number == REFERENCE:
        yield language.first_plan, language.defaults
        if refused and language.defaults.get("products", NOT_OURS) != NOT_OURS:
            yield language.first_plan, {**language.defaults, "products": NOT_OURS}
    elif _is_own(parent) and parent.proposal is not None:
        for name, values in language.alternatives.items():
            for value in values:
                if parent.proposal.values.get(name) != value:
                    changed = {**parent.proposal.values, name: value}
                    yield f"{language.change} with {name} = {value}.", changed


def _is_own(node: Node) -> bool:
    return node.proposal is not None and node.proposal.synthesizer == NAME


def _key(values: Choices) -> frozenset[tuple[str, str]]:
    return frozenset((name, str(value)) for name, value in values.items())
