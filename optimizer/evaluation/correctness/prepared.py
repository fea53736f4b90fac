"""A problem and its cases prepared once for many candidates on one device: values, float64 goldens,
error bounds, least work, and the seeds that candidates are checked with.

Runs only the reference, in the supervisor; no candidate's process ever sees any of it.
"""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch

from kb.errors import InvalidRequest
from kb.problem_terms import op_family
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.loaded_kernel import CaseValues, TimedBlock
from optimizer.evaluation.needed_work import Dependence, dependence, needed_read_bytes
from optimizer.evaluation.problem.bounds import (
    Bound,
    agree,
    compare,
    plainly_equal,
    rounding,
    shares,
    with_scale_of,
)
from optimizer.evaluation.problem.check import unvaried
from optimizer.evaluation.problem.open_case import DrawnValues, OpenCase
from optimizer.evaluation.problem.operators import ADDED_TO, traits_of
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.user_code import check_shapes
from optimizer.evaluation.records import CaseTiming, Flag, OutputError
from optimizer.evaluation.roofline import (
    CaseWork,
    doubtful_us,
    impossible_times,
    remarkable,
    unneeded_factor,
    work_of,
)
from optimizer.evaluation.runner.defences import Defences
from optimizer.evaluation.runner.fresh_values import refresh
from optimizer.evaluation.runner.kernels import DispatchWatch
from optimizer.evaluation.runner.memory import SAMPLED, drawn_elements
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.shared_arrays import copy_into, on_host

T = TypeVar("T")
CACHED_SEEDS = 4
# Calls of a block whose inputs are computed again if a few of their sampled elements differ.
MAX_RECOMPUTED = 4
# The same to learn the scale of their outputs. A block of many calls is of a small case.
MAX_RESCALED = 64
UNEVEN = 1 << 40  # in a seed: one of its tensors has uneven values
PATTERN = 1 << 23  # elements after which uneven values may repeat
POOL = 4096  # elements that they are drawn from
# Values of a level: more than most rows have elements, so that few are equal; a prime number, so
# that columns of several rows differ too.
LEVEL = 131071
# Elements of whole rows that have runs of one kind, share of them that is in runs, and elements of
# a run: the least, and the largest share of a row.
SEGMENT, RUN_SHARES, LEAST_RUN, LONGEST_RUN = 1 << 15, (1 / 32, 1 / 6), 16, 1 / 64
LEAST_ROW = 256  # shorter rows count together
# Elements of a second draw that values are replaced from: many times the number that one call
# replaces, and few compared with the inputs.
BANK = 1 << 20


@dataclass(frozen=True)
class Expected:
    """What outputs are compared with, one entry for each output: `golden` in float64 (or exact),
    `reference` in the case's dtype, and `bounds`."""

    golden: tuple[torch.Tensor, ...]
    reference: tuple[torch.Tensor, ...]
    bounds: tuple[Bound, ...]

    @property
    def bytes(self) -> int:
        """Memory that it uses."""
        units = [b.unit for b in self.bounds if b.unit is not None]
        return sum(tensor.nbytes for tensor in (*self.golden, *self.reference, *units))


class PreparedCase(OpenCase):
    """An open case with goldens of the latest seeds.

    Goldens are in the memory of the device. If that does not suffice, those of other seeds are
    dropped; if it still does not, everything is computed on the CPU from then on.
    """

    def __init__(
        self,
        problem: Problem,
        case: Case,
        device: str,
        *,
        defences: Defences | None = None,
        golden_bytes: int = EvaluationSettings.golden_bytes,
    ) -> None:
        """`defences` may loosen comparisons. `golden_bytes` as in the settings."""
        super().__init__(problem, case, device=device)
        self._device = device
        self._golden_device = device
        self._golden_bytes = golden_bytes
        self._defences = defences or Defences()
        self._sensitivities: list[float] | None = None
        self._frozen: dict[str, torch.Tensor] | None = None  # weights that never change
        self._banks: tuple[torch.Tensor | None, ...] | None = None
        self.unvaried: tuple[str, ...] = ()  # inputs, once values were drawn
        self._values_of: OrderedDict[int, CaseValues] = OrderedDict()
        self._expected: OrderedDict[int, Expected] = OrderedDict()

    @property
    def name(self) -> str:
        return self.case.name

    @cached_property
    def numbers(self) -> dict[str, int | float | bool | str]:
        """Traits and constants of the reference, by name."""
        return {**traits_of(self, self._device), **self.constants()}

    def _wants_uneven(self, seed: int) -> bool:
        """Whether a tensor of this seed shall have uneven values: where the bound of an output is
        so wide that a part of a row can be within it. In float32 the usual values show that."""
        narrow = any(output.dtype in ("float16", "bfloat16") for output in self.outputs)
        return bool(seed & UNEVEN) and (narrow or self.problem.policy.precision == "relaxed")

    def values(self, seed: int) -> CaseValues:
        values = self._values_of.get(seed)
        if values is None:
            drawn = self.drawn_in_place(seed)
            if self.problem.policy.weights == "frozen":  # the same for all seeds
                if self._frozen is None:
                    self._frozen = {name: v.cpu() for name, v in drawn.state.items()}
                drawn = drawn._replace(state=self._frozen)
            if self._banks is None:  # for all seeds: drawing large arrays takes long
                self._banks = self._drawn_banks(seed, drawn)
            given = [*drawn.inputs, *drawn.state.values()]
            uneven = self._wants_uneven(seed) and _make_uneven(
                given, self._banks, seed, self.flops > 0
            )
            values = CaseValues(seed, tuple(map(on_host, given)), self._banks, uneven)
            _cache(self._values_of, seed, values)
        return values

    def _drawn_banks(self, seed: int, drawn: DrawnValues) -> tuple[torch.Tensor | None, ...]:
        other = self.second_draw_in_place(seed)
        replaceable = self.replaceable(drawn, other)
        self.unvaried = unvaried(self, drawn, other)
        pairs = zip(replaceable, (*other.inputs, *other.state.values()), strict=True)
        banks = tuple(
            bank.view(-1)[:BANK].clone().cpu() if wanted else None for wanted, bank in pairs
        )
        if self._accepts_integers(seed, drawn, banks):
            return banks
        named = {*self.problem.policy.perturb}
        return tuple(
            bank if bank is None or bank.is_floating_point() or name in named else None
            for name, bank in zip((*self.input_names, *drawn.state), banks, strict=True)
        )

    def _accepts_integers(
        self, seed: int, drawn: DrawnValues, banks: Sequence[torch.Tensor | None]
    ) -> bool:
        """Whether the reference takes integers that were replaced piecewise: they may be positions
        that depend on each other."""
        if all(bank is None or bank.is_floating_point() for bank in banks):
            return True
        # On the CPU, where a position outside of an array is an error and not the end of a context.
        values = [value.cpu().clone() for value in (*drawn.inputs, *drawn.state.values())]
        refresh(values, banks, seed, rounded=False)
        count = len(drawn.inputs)
        try:
            self.reference(values[:count], dict(zip(drawn.state, values[count:], strict=True)))
        except InvalidRequest:
            return False
        return True

    def expected(self, seed: int) -> Expected:
        """Goldens and bounds of a seed."""
        expected = self._expected.get(seed)
        if expected is None:
            self._make_room()
            tensors = self.values(seed).tensors
            expected = self._within_memory(lambda: self._compute(tensors))
            _cache(self._expected, seed, expected)
            if self._golden_device == "cuda":
                # Computing in float64 took many times the goldens' memory, which the candidate
                # shall have.
                torch.cuda.empty_cache()
        return expected

    def tolerance(self, seed: int) -> float:
        """The smallest error that a floating output may have, relative to its size, by the
        latest bounds, or by those of the seed; 0 without a floating output."""
        latest = next(reversed(self._expected), seed)
        return min(
            (b.allowed for b in self.expected(latest).bounds if b.kind == "float"), default=0
        )

    def _make_room(self) -> None:
        """Drop goldens until others as large as the latest fit."""
        sizes = [expected.bytes for expected in self._expected.values()]
        while sizes and sum(sizes) + sizes[-1] > self._golden_bytes:
            self._expected.popitem(last=False)
            sizes.pop(0)

    def _within_memory(self, work: Callable[[], T]) -> T:
        """The result of `work`, which reads `_golden_device` when it begins."""
        if self._golden_device != "cpu":
            for _ in range(2):  # the second time without other seeds' goldens
                with suppress(torch.OutOfMemoryError):
                    return work()
                self._expected.clear()
                torch.cuda.empty_cache()
            self._golden_device = "cpu"
        return work()

    def _compute(self, tensors: Sequence[torch.Tensor]) -> Expected:
        device = self._golden_device
        inputs, state = inputs_and_state(self, self._moved_once(tensors))
        golden = self.reference(inputs, state, dtype=torch.float64, device=device)
        check_shapes(self.problem, self.outputs, golden)
        reference = self.reference(inputs, state, device=device)
        if self._sensitivities is None:  # it hardly depends on the seed
            self._sensitivities = self.sensitivities(inputs, state, golden, device)
        bounds = self.bounds(inputs, golden, reference, self._sensitivities, device=device)
        tolerant = tuple(self._tolerant(bound) for bound in bounds)
        return Expected(tuple(golden), tuple(reference), tolerant)

    def _moved_once(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values on the device of the goldens, for several runs."""
        return [value.to(self._golden_device) if value.dim() else value for value in tensors]

    def _tolerant(self, bound: Bound) -> Bound:
        least = self._defences.tolerance
        if not least or bound.kind != "float":
            return bound
        return replace(
            bound,
            allowed=max(bound.allowed, least),
            quantile_allowed=max(bound.quantile_allowed, least),
        )

    # -- comparisons

    def taken(
        self, outputs: Sequence[torch.Tensor], into: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Copies of outputs in shared memory, on the device of the goldens, where they are
        compared; `into` is memory of their shapes on the CPU, for goldens or outputs there."""
        if self._golden_device != "cpu":
            with suppress(torch.OutOfMemoryError):
                return [output.to(self._golden_device) for output in outputs]
        for copy, output in zip(into, outputs, strict=True):
            copy_into(copy, output)
        return list(into)

    def errors(
        self,
        outputs: Sequence[torch.Tensor],
        seed: int,
        tensors: Sequence[torch.Tensor] | None = None,
    ) -> list[OutputError]:
        """Each output's error with its bound, for inputs and weights `tensors`, by default those of
        the seed."""

        def compared() -> list[OutputError]:
            expected = self.expected(seed) if tensors is None else self._compute(tensors)
            values = self.values(seed).tensors if tensors is None else tensors
            others = OtherRoundings(self, values, self._golden_device, expected.golden)
            errors = []
            for number, output in enumerate(outputs):
                golden, bound = expected.golden[number], expected.bounds[number]
                here = output.to(self._golden_device)
                if self._defences.nan_equals_anything and here.is_floating_point():
                    here = torch.where(here.isnan(), golden.to(here.dtype), here)
                error = compare(here, golden, bound)
                errors.append(_without_undecided(error, here, bound, others.of(number)))
            return errors

        return self._within_memory(compared)

    def disagreement(
        self,
        *,
        candidate: Sequence[torch.Tensor],
        baseline: Sequence[torch.Tensor],
        tensors: Callable[[], Sequence[torch.Tensor]],
        seed: int,
        undecided: Counter[str],
    ) -> str | None:
        """Why two sides' outputs of the same timed call cannot both be right, or None.

        `tensors` returns the inputs' values in that call. Each may differ from the golden by the
        bound of the case, so they may differ by twice that. Elements that differ and are right by
        another rounding are added to `undecided`, by output.
        """

        def compared() -> str | None:
            bounds, device = self.expected(seed).bounds, self._golden_device
            for number, (ours, theirs, bound) in enumerate(
                zip(candidate, baseline, bounds, strict=True)
            ):
                output, reference = ours.to(device), theirs.to(device)
                if plainly_equal(output, reference, bound):
                    continue
                bound = with_scale_of(bound, reference)
                golden = reference.double() if bound.kind == "float" else reference
                error = compare(
                    output,
                    golden,
                    replace(
                        bound,
                        reference=reference,
                        allowed=2 * bound.allowed,
                        quantile_allowed=2 * bound.quantile_allowed,
                        finite=False,
                        pointed=self.pointed(tensors(), device) if bound.pointed else None,
                    ),
                )
                if not error.ok and _is_whole(bound):
                    others = OtherRoundings(self, tensors(), device)
                    held = replace(bound, reference=reference)
                    error = _without_undecided(error, output, held, others.of(number))
                    undecided[error.output] += error.undecided
                if not error.ok:
                    return error.in_words(f"{error.output} of a timed call")
            return None

        return self._within_memory(compared)

    def samples_disagree(
        self,
        ours: TimedBlock,
        theirs: TimedBlock,
        seed: int,
        tensors: Callable[[int], Sequence[torch.Tensor] | None],
        undecided: Counter[str],
    ) -> str | None:
        """Why the sampled elements of two sides' calls cannot all be right, or None. Whole outputs
        are compared too, but only of one call in each block. Indices are skipped: the data that
        they point into existed only during the call. `tensors` returns the inputs' values in a call
        of the block, None if unknown; `undecided` as for `disagreement`."""
        if not ours.samples and not theirs.samples:
            return None
        bounds = self.expected(seed).bounds
        sizes = [bound.reference.numel() for bound in bounds]
        numbers = [drawn_elements(draw, sizes) for draw in ours.draws]
        positions = [
            torch.tensor(of_output, dtype=torch.long) for of_output in zip(*numbers, strict=True)
        ]
        read, expected = _elements(bounds, ours), _elements(bounds, theirs)
        if read is None or expected is None:
            return "its process did not read the outputs of every timed call"
        for number, (bound, at, mine, wanted) in enumerate(
            zip(bounds, positions, read, expected, strict=True)
        ):
            if bound.kind == "index" or agree(mine, wanted, at, bound):
                continue
            if bound.kind == "float" and self._agree_rescaled(
                number, at, mine, wanted, bound, tensors
            ):
                continue
            if not (_is_whole(bound) and self._samples_rounded(number, at, mine, wanted, tensors)):
                return f"{bound.name} of a timed call is wrong at some of the elements looked at"
            undecided[bound.name] += int((mine != wanted).sum())
        return None

    def _agree_rescaled(
        self,
        number: int,
        at: torch.Tensor,
        mine: torch.Tensor,
        wanted: torch.Tensor,
        bound: Bound,
        tensors: Callable[[int], Sequence[torch.Tensor] | None],
    ) -> bool:
        """Whether the sampled elements agree at the scale of each call's own outputs. `at`, `mine`
        and `wanted` have a row for each call."""
        calls = range(len(at))
        apart = [n for n in calls if not agree(mine[n], wanted[n], at[n], bound)]
        if len(apart) > MAX_RESCALED:
            return False
        for call in apart:
            held = tensors(call)
            if held is None:
                return False
            outputs = self.reference(*inputs_and_state(self, held), device=self._golden_device)
            rescaled = with_scale_of(bound, outputs[number])
            if not agree(mine[call], wanted[call], at[call], rescaled):
                return False
        return True

    def _samples_rounded(
        self,
        number: int,
        at: torch.Tensor,
        mine: torch.Tensor,
        wanted: torch.Tensor,
        tensors: Callable[[int], Sequence[torch.Tensor] | None],
    ) -> bool:
        """Whether all sampled elements of an output that differ, in a few calls, are right by
        another rounding. `at`, `mine` and `wanted` have a row for each call."""
        calls = (mine != wanted).any(dim=1).nonzero().flatten().tolist()
        if len(calls) > MAX_RECOMPUTED:
            return False
        for call in calls:
            held = tensors(call)
            if held is None:
                return False
            others = OtherRoundings(self, held, self._golden_device).of(number)
            rows = (other.cpu().flatten()[at[call]] for other in others)
            if bool(settled(mine[call], wanted[call], rows)[0].any()):
                return False
        return True


def inputs_and_state(
    case: OpenCase, tensors: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Inputs and named weights, from both in the order of the ABI."""
    count = len(case.scalars)
    names = [t.name for t in case.signature.of("parameter", "buffer")]
    return list(tensors[:count]), dict(zip(names, tensors[count:], strict=True))


def _is_whole(bound: Bound) -> bool:
    """Whether an output is compared exactly and holds no floats: counts, indices, booleans."""
    return bound.kind == "exact" and not bound.reference.dtype.is_floating_point


def _without_undecided(
    error: OutputError, output: torch.Tensor, bound: Bound, others: Iterator[torch.Tensor]
) -> OutputError:
    """The error without elements that the reference's own rounding decides."""
    if error.ok or not _is_whole(bound) or not math.isfinite(error.worst):
        return error
    return shares(bound, *settled(output, bound.reference, others))


def _elements(bounds: Sequence[Bound], block: TimedBlock) -> list[torch.Tensor] | None:
    """Sampled elements of each output, a row for each call; None if any are missing."""
    sizes = [SAMPLED * b.reference.element_size() if b.reference.numel() else 0 for b in bounds]
    if len(block.samples) != len(block.draws) or {*map(len, block.samples)} != {sum(sizes)}:
        return None
    elements, begin = [], 0
    for bound, size in zip(bounds, sizes, strict=True):
        data = b"".join(sample[begin : begin + size] for sample in block.samples)
        flat = torch.frombuffer(bytearray(data), dtype=bound.reference.dtype) if data else None
        elements.append(
            bound.reference.new_empty((len(block.samples), 0), device="cpu")
            if flat is None
            else flat.view(len(block.samples), SAMPLED)
        )
        begin += size
    return elements


def _cache(store: OrderedDict[int, T], seed: int, value: T) -> None:
    store[seed] = value
    while len(store) > CACHED_SEEDS:
        store.popitem(last=False)


class PreparedProblem:
    """The prepared cases of a problem, and the seeds that candidates are checked with."""

    def __init__(self, problem: Problem, device: str, settings: EvaluationSettings) -> None:
        self._problem = problem
        self._device = device
        self._settings = settings
        self._cases: dict[str, PreparedCase] = {}
        self._works: dict[str, CaseWork] = {}
        self._needed: dict[str, CaseWork] = {}
        self._dependences: dict[str, Dependence] = {}
        # New ones for each process, so that nothing stored from an earlier one is of use; few, so
        # that goldens are computed once.
        self._chance = random.SystemRandom()
        self._seeds = [self._chance.getrandbits(24) for _ in range(settings.seeds)]
        self._uneven = self._chance.getrandbits(24) | UNEVEN

    def case(self, case: Case) -> PreparedCase:
        """The prepared case, opened once."""
        if case.name not in self._cases:
            self._cases[case.name] = PreparedCase(
                self._problem,
                case,
                self._device,
                defences=self._settings.defences,
                golden_bytes=self._settings.golden_bytes,
            )
        return self._cases[case.name]

    def work(self, case: Case) -> CaseWork:
        """The least work of one call of the case."""
        if case.name not in self._works:
            self._works[case.name] = work_of(self.case(case))
        return self._works[case.name]

    def counted_work(self, case: Case) -> CaseWork:
        """As `work`, but with the operations that the result depends on where the formulas of the
        reference's operators may count more: attention, masks, triangles, top-k."""
        work = self.work(case)
        masked = op_family(work.op) == "attention" or self.case(case).cost.masks
        if not work.flops or not masked:
            return work
        return replace(work, operations=self._dependence(case).operations)

    def needed_work(self, case: Case) -> CaseWork:
        """As `work`, but with the operations and the part of the inputs that the result depends on,
        found by running the reference: for the rare time that seems too short."""
        if case.name not in self._needed:
            found, prepared = self._dependence(case), self.case(case)
            read = needed_read_bytes(prepared, self._device, self._seeds[0], found)
            self._needed[case.name] = replace(
                self.work(case),
                operations=found.operations,
                needed_read_bytes=read,
                view_bytes=sum(prepared.outputs[number].bytes for number in found.views),
            )
        return self._needed[case.name]

    def impossible_times(
        self, case: Case, timing: CaseTiming, ceilings: Ceilings | None
    ) -> list[Flag]:
        """Flags of a time that the device's ceilings contradict."""
        work, took = self.work(case), timing.candidate_us
        # The dependence of the result is computed only if needed.
        explained = 1.0
        if took is not None and ceilings and took < doubtful_us(work, timing, ceilings):
            work = self.needed_work(case)
        if remarkable(timing) and ceilings:
            work = self.needed_work(case)
            explained = unneeded_factor(work, self.case(case).cost.result_bytes, ceilings)
        return impossible_times(work, timing, ceilings, explained)

    def _dependence(self, case: Case) -> Dependence:
        if case.name not in self._dependences:
            prepared, seed = self.case(case), self._seeds[0]
            tolerance = prepared.tolerance(seed)
            self._dependences[case.name] = dependence(prepared, self._device, seed, tolerance)
        return self._dependences[case.name]

    def drawn_seeds(self) -> list[int]:
        if not self._settings.defences.random_seeds:
            return list(range(self._settings.seeds))
        if self._settings.seeds < 2 or not self._settings.defences.uneven_values:
            return self._chance.sample(self._seeds, self._settings.seeds)
        return [*self._chance.sample(self._seeds, self._settings.seeds - 1), self._uneven]


# -- uneven values
#
# Where the elements along a row are alike, a kernel that reads a part of them returns nearly the
# right mean, maximum or norm, by less than the error that 16 bits cause anyway. So the last seed of
# an evaluation gives one tensor two levels: most elements of a row are from one end of the tensor's
# values, and a few runs, at random places and of random lengths, from the other. A part of the row
# then shows too many or too few of the runs. All values are in the range that the tensor has, and
# rows are of similar size, so right kernels are as precise as for its own values; they are compared
# with the float64 reference of these values, with the bounds that follow from them.


def _make_uneven(
    values: list[torch.Tensor], banks: Sequence[torch.Tensor | None], seed: int, alike: bool
) -> bool:
    """Replace one of the floating tensors that may get fresh values, a large one more probably, by
    uneven values; False if all are small, whole numbers, or hold an infinity or NaN."""
    chance = random.Random(seed)
    fitting = [
        number
        for number, (value, bank) in enumerate(zip(values, banks, strict=True))
        if bank is not None and value.is_floating_point() and value.numel() >= LEAST_ROW
    ]
    while fitting:
        number = chance.choices(fitting, [values[n].numel() for n in fitting])[0]
        uneven = uneven_values(values[number], chance.getrandbits(62), alike)
        if uneven is not None:
            values[number] = uneven
            return True
        fitting.remove(number)
    return False


def uneven_values(value: torch.Tensor, seed: int, alike: bool = False) -> torch.Tensor | None:
    """A tensor like this one with uneven rows; zeros stay where they are. `alike`: all rows are of
    one size, because algorithms such as Strassen's are only as precise as the largest row. None for
    values that are not continuous."""
    generator = torch.Generator().manual_seed(seed)
    flat = value.reshape(-1)
    at = torch.unique(torch.randint(flat.numel(), (POOL,), generator=generator))
    pool = flat[at.to(flat.device)].double().cpu()
    pool = pool[pool != 0]
    finite = len(pool) >= len(at) // 4 and bool(pool.isfinite().all())
    if not finite or bool((pool == pool.round()).all()):
        return None
    width = 1
    for extent in reversed(value.shape):
        if (width := width * extent) >= LEAST_ROW:
            break
    width = min(width, PATTERN)
    rows = min(PATTERN, flat.numel()) // width
    own = -(-SEGMENT // width)  # rows of a segment
    ends = _ends(pool, generator).to(flat.device, value.dtype)
    ends = ends.repeat(1, -(-width * own // LEVEL) + 1)
    segments = []
    for begin in range(0, rows, own):
        size = width * min(own, rows - begin)
        weights = _WEIGHTS[:2] if alike else _WEIGHTS
        usual, other = _KINDS[int(torch.multinomial(weights, 1, generator=generator))]
        in_run = _runs(size, width, generator).to(flat.device)
        first = width * begin % LEVEL
        levels = ends[:, first : first + size]
        segments.append(torch.where(in_run, levels[other], levels[usual]))
    pattern = torch.cat(segments)
    uneven = torch.empty_like(flat)
    for part, given in zip(
        torch.split(uneven, len(pattern)), torch.split(flat, len(pattern)), strict=True
    ):
        torch.where(given == 0, given, pattern[: len(part)], out=part)
    return uneven.view(value.shape)


SMALL, LARGE, LOW, HIGH = range(4)
# The level of most elements of a segment, and that of its runs, with weights. Rows in which most
# are large would be much larger than others.
_KINDS = ((LOW, HIGH), (HIGH, LOW), (SMALL, LARGE))
_WEIGHTS = torch.tensor([0.4, 0.4, 0.2])


def _ends(pool: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """LEVEL values of each level: between neighbours in an eighth of the pool."""
    end = len(pool) // 8
    by_value, by_size = pool.sort().values, pool[pool.abs().sort().indices]
    small, large = by_size[:end].sort().values, by_size[-end:].sort().values
    ends = torch.stack([small, large, by_value[:end], by_value[-end:]])
    place = torch.rand(4, LEVEL, generator=generator, dtype=torch.float64) * (end - 1)
    lower = place.long().clamp_(max=end - 2)
    return torch.lerp(ends.gather(1, lower), ends.gather(1, lower + 1), place - lower)


def _runs(size: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """Mask of runs at random places."""
    drawn = torch.rand(2, generator=generator).tolist()
    longest = max(1.0, LONGEST_RUN * width)
    least = min(LEAST_RUN, longest / 4) if longest > 4 else 1.0
    length = least * (longest / least) ** drawn[0]
    share = RUN_SHARES[0] * (RUN_SHARES[1] / RUN_SHARES[0]) ** drawn[1]
    count = math.ceil(share * size / length)
    within = torch.rand(count + 1, 2, generator=generator)
    within[:, 0] *= 2 * length * (1 / share - 1)  # between two runs
    within[:, 1] = (within[:, 1] + 0.5) * length
    lengths = within.round_().long().flatten().clamp_(min=1)
    inside = torch.arange(len(lengths)).remainder(2).bool()
    mask = torch.repeat_interleave(inside, lengths)[:size]
    return torch.cat([mask, mask.new_zeros(size - len(mask))])


# -- elements that only rounding decides  In a count of values below a limit, a value may be as near
# the limit as its own rounding. The reference itself shows that such an element is undecided: it is
# run in float64, and again with every result that the case's dtype would round moved up and down by
# the error that honest kernels may have there (Monte Carlo arithmetic). Inputs stay unchanged, and
# so do results that the dtype holds exactly, so a comparison of inputs, or of sums of ones, is
# never undecided. An element on which two of these runs differ may equal any of them; all others
# must equal the reference's bits.

DRAWS = 3  # of directions of rounding; each is run with its opposite too
# Share of an output's elements that may be undecided: an output with more shows only rounding.
MAX_UNDECIDED = 0.01
# Pointwise operators that round nothing; those that compare give no floats.
EXACT = frozenset(
    [
        "abs",
        "neg",
        "relu",
        "clamp",
        "clamp_min",
        "clamp_max",
        "minimum",
        "maximum",
        "fmin",
        "fmax",
        "where",
        "floor",
        "ceil",
        "round",
        "trunc",
        "sign",
        "sgn",
        "threshold",
        "hardtanh",
        "copysign",
        "masked_fill",
        "heaviside",
        "nan_to_num",
        "_to_copy",
        "copy",
        "clone",
        "fill",
        "positive",
        "remainder",
        "fmod",
        "frac",
    ]
)
REDUCED = frozenset(
    ["sum", "mean", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "prod"]
)
PRODUCTS = frozenset(
    ["mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "_cdist_forward", "convolution"]
)
ROWS = frozenset(
    [
        "_softmax",
        "_log_softmax",
        "logsumexp",
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "_native_batch_norm_legit_no_training",
        "avg_pool2d",
    ]
)


class OtherRoundings:
    """Outputs of the reference on the same values with other roundings, run on demand, the golden
    first."""

    def __init__(
        self,
        case: OpenCase,
        tensors: Sequence[torch.Tensor],
        device: str,
        golden: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """`tensors` are inputs and weights; `golden` is the float64 result, if known."""
        self._case, self._device = case, device
        self._inputs, self._state = inputs_and_state(case, tensors)
        floats = [t.dtype for t in tensors if t.is_floating_point()]
        self._dtype = max(floats, key=lambda dtype: torch.finfo(dtype).eps, default=None)
        self._known = [] if golden is None else [list(golden)]

    def of(self, output: int) -> Iterator[torch.Tensor]:
        """The output with this number from one run after another."""
        runs = 1 + 2 * DRAWS if self._dtype is not None else 0  # without floats nothing is rounded
        for number in range(runs):
            if number == len(self._known):
                self._known.append(self._run(number))
            yield self._known[number][output]

    def _run(self, number: int) -> list[torch.Tensor]:
        given = self._inputs, self._state
        if not number:
            return self._case.reference(*given, dtype=torch.float64, device=self._device)
        assert self._dtype is not None
        draw, opposite = divmod(number - 1, 2)
        with _Rounded(self._dtype, draw, -1 if opposite else 1):
            return self._case.reference(*given, dtype=torch.float64, device=self._device)


def settled(
    output: torch.Tensor, reference: torch.Tensor, others: Iterator[torch.Tensor]
) -> tuple[torch.Tensor, int]:
    """Mask of the wrong elements of an integer output, and the number of elements that differ from
    the reference but are right under another rounding, 0 if those are too many."""
    differ = output != reference
    wrong = differ.clone()
    most = max(1, math.ceil(MAX_UNDECIDED * differ.numel()))
    if int(differ.sum()) > most:
        return differ, 0
    for other in others:
        wrong &= output != other.to(output.device)
        if not bool(wrong.any()):
            break
    return wrong, int(differ.sum()) - int(wrong.sum())


class _Rounded(DispatchWatch):  # type: ignore[no-untyped-call]
    """Perturbs float64 results of operators by the rounding error of the dtype."""

    def __init__(self, dtype: torch.dtype, draw: int, sign: int) -> None:
        super().__init__()
        self._dtype, self._sign = dtype, sign
        self._name = str(dtype).removeprefix("torch.")
        self._draw = draw
        self._generators: dict[torch.device, torch.Generator] = {}

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = func._schema.name.split("::")[-1].removesuffix("_")
        pointwise = torch.Tag.pointwise in func.tags and name not in EXACT
        if not pointwise and name not in REDUCED | PRODUCTS | ROWS:
            return func(*args, **kwargs)
        first = args[0] if args else None
        if name in REDUCED and isinstance(first, torch.Tensor) and first.dtype == torch.float64:
            # Terms that cancel are rounded by their own size.
            args = (self._moved(first.clone(), 1), *args[1:])
        result = func(*args, **kwargs)
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                self._moved(value, _terms(name, args, value))
        return result

    def _moved(self, value: torch.Tensor, terms: int) -> torch.Tensor:
        """Move elements in place that the dtype does not hold exactly."""
        device = value.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._draw)
        generator = self._generators[device]
        signs = torch.randint(0, 2, value.shape, generator=generator, device=device).mul_(2).sub_(1)
        far = self._sign * rounding(self._name, terms, False)
        rounds = value.to(self._dtype).double() != value
        return value.mul_(1 + far * (signs * rounds))


def _terms(name: str, args: tuple[Any, ...], result: torch.Tensor) -> int:
    """Approximate number of terms in a sum of the operator; 1 if it sums nothing."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if name in PRODUCTS:
        tensors = tensors[1:] if name in ADDED_TO else tensors
        if name == "convolution":
            return max(1, tensors[1].numel() // max(1, tensors[1].shape[0]))
        return int(tensors[0].shape[-1]) if tensors and tensors[0].dim() else 1
    if name in ROWS:
        return max(1, int(tensors[0].shape[-1])) if tensors and tensors[0].dim() else 1
    if name in REDUCED and tensors:
        return max(1, tensors[0].numel() // max(1, result.numel()))
    return 1
