"""A problem and its cases made ready once for many candidates on one device: values, float64
goldens, error bounds, least work, and the seeds that candidates are checked with.

Runs only the reference, in the supervisor; nothing of it is ever seen by a candidate's process.
"""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch

from optimizer.evaluation.correctness.needed_bytes import needed_read_bytes
from optimizer.evaluation.correctness.undecided import OtherRoundings, settled
from optimizer.evaluation.loaded_kernel import Sample
from optimizer.evaluation.problem.bounds import Bound, agree, compare, plainly_equal, shares
from optimizer.evaluation.problem.check import unvaried
from optimizer.evaluation.problem.operators import traits_of
from optimizer.evaluation.problem.outputs import check_shapes
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.tensors import Banks, OpenCase, open_case
from optimizer.evaluation.records import OutputError
from optimizer.evaluation.roofline import Work, work_of
from optimizer.evaluation.runner.samples import LOOKS, places
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.timed_block import Block

T = TypeVar("T")
KEPT_SAMPLES = 4
# Calls of a block whose inputs are made again, where a few of their elements differ.
MOST_LOOKED_INTO = 4
# Elements of a second draw that values are replaced from: many times what one call replaces, and
# little beside the inputs.
BANK = 1 << 20


@dataclass(frozen=True)
class Expected:
    """What outputs are compared with.

    `golden` are float64 (or exact) outputs, `reference` the reference's own in the case's dtype,
    `bounds` what is allowed to differ, each for every output.
    """

    golden: tuple[torch.Tensor, ...]
    reference: tuple[torch.Tensor, ...]
    bounds: tuple[Bound, ...]

    @property
    def bytes(self) -> int:
        """What it keeps of memory."""
        units = [b.unit for b in self.bounds if b.unit is not None]
        return sum(tensor.nbytes for tensor in (*self.golden, *self.reference, *units))


@dataclass(frozen=True)
class Leniency:
    """What the comparison accepts beside the bounds: nothing, unless a defence is off.

    `tolerance` applies to all outputs, relative to their size. `nan_is_equal` makes NaN equal to
    any value.
    """

    tolerance: float = 0.0
    nan_is_equal: bool = False


class PreparedCase:
    """An open case, and what was computed for the seeds of late.

    Goldens lie in the memory of the device. Where that does not suffice, those of other seeds are
    given up; where it still does not, everything is computed on the CPU from then on.
    """

    def __init__(
        self,
        case: OpenCase,
        device: str,
        leniency: Leniency | None = None,
        golden_bytes: int = EvaluationSettings.golden_bytes,
    ) -> None:
        """`golden_bytes`: as in the settings."""
        self.open = case
        self._device = device
        self._place = device  # of goldens
        self._golden_bytes = golden_bytes
        self._lenient = leniency or Leniency()
        self._sensitivities: list[float] | None = None
        self._banks: tuple[torch.Tensor | None, ...] | None = None
        self.unvaried: tuple[str, ...] = ()  # inputs, known once a sample was drawn
        self._samples: OrderedDict[int, Sample] = OrderedDict()
        self._expected: OrderedDict[int, Expected] = OrderedDict()

    @property
    def name(self) -> str:
        """The case's name."""
        return self.open.case.name

    @cached_property
    def constants(self) -> dict[str, int | float | bool | str]:
        """Numbers of the reference, by name, as proposers see them."""
        return {**traits_of(self.open, self._device), **self.open.constants()}

    def sample(self, seed: int) -> Sample:
        """The values of a seed."""
        sample = self._samples.get(seed)
        if sample is None:
            drawn = Banks(self.open.inputs(seed), self.open.state(seed))
            if self._banks is None:  # for all seeds: drawing takes long where arrays are large
                self._banks = self._drawn_banks(seed, drawn)
            sample = Sample(seed, (*drawn.inputs, *drawn.state.values()), self._banks)
            _keep(self._samples, seed, sample)
        return sample

    def _drawn_banks(self, seed: int, drawn: Banks) -> tuple[torch.Tensor | None, ...]:
        other = self.open.banks(seed)
        fresh = self.open.fresh_of(drawn, other)
        self.unvaried = unvaried(self.open, drawn, other)
        pairs = zip(fresh, (*other.inputs, *other.state.values()), strict=True)
        return tuple(bank.view(-1)[:BANK].clone() if wanted else None for wanted, bank in pairs)

    def expected(self, seed: int) -> Expected:
        """Goldens and bounds of a seed."""
        expected = self._expected.get(seed)
        if expected is None:
            self._make_room()
            tensors = self.sample(seed).tensors
            expected = self._within_memory(lambda: self._compute(tensors))
            _keep(self._expected, seed, expected)
            if self._place == "cuda":
                # Computing goldens in float64 took many times the memory that they need; the
                # candidate shall have the rest.
                torch.cuda.empty_cache()
        return expected

    def _make_room(self) -> None:
        """For as much as the latest goldens take."""
        sizes = [expected.bytes for expected in self._expected.values()]
        while sizes and sum(sizes) + sizes[-1] > self._golden_bytes:
            self._expected.popitem(last=False)
            sizes.pop(0)

    def _within_memory(self, work: Callable[[], T]) -> T:
        """What `work` returns, which reads `_place` when it begins."""
        if self._place != "cpu":
            for _ in range(2):  # with what other seeds took given up
                with suppress(torch.OutOfMemoryError):
                    return work()
                self._expected.clear()
                torch.cuda.empty_cache()
            self._place = "cpu"
        return work()

    def _compute(self, tensors: Sequence[torch.Tensor]) -> Expected:
        case = self.open
        count = len(case.scalars)
        names = [t.name for t in case.signature.of("parameter", "buffer")]
        inputs, state = list(tensors[:count]), dict(zip(names, tensors[count:], strict=True))
        golden = case.reference(inputs, state, dtype=torch.float64, device=self._place)
        check_shapes(case.problem, case.outputs, golden)
        reference = case.reference(inputs, state, device=self._place)
        if self._sensitivities is None:  # it hardly depends on the seed
            self._sensitivities = case.sensitivities(inputs, state, golden, self._place)
        bounds = case.bounds(inputs, golden, reference, self._sensitivities, device=self._place)
        lenient = tuple(self._lenient_bound(bound) for bound in bounds)
        return Expected(tuple(golden), tuple(reference), lenient)

    def _lenient_bound(self, bound: Bound) -> Bound:
        least = self._lenient.tolerance
        if not least or bound.kind != "float":
            return bound
        return replace(
            bound,
            allowed=max(bound.allowed, least),
            quantile_allowed=max(bound.quantile_allowed, least),
        )

    def errors(
        self,
        outputs: Sequence[torch.Tensor],
        seed: int,
        tensors: Sequence[torch.Tensor] | None = None,
    ) -> list[OutputError]:
        """Each output's error beside its bound. `tensors` are the values to expect the results of,
        where they are not the seed's."""
        return self._within_memory(lambda: self._errors(outputs, seed, tensors))

    def _errors(
        self,
        outputs: Sequence[torch.Tensor],
        seed: int,
        tensors: Sequence[torch.Tensor] | None,
    ) -> list[OutputError]:
        expected = self.expected(seed) if tensors is None else self._compute(tensors)
        values = self.sample(seed).tensors if tensors is None else tensors
        others = OtherRoundings(self.open, values, self._place, expected.golden)
        errors = []
        for number, output in enumerate(outputs):
            golden, bound = expected.golden[number], expected.bounds[number]
            seen = self._seen(output, golden)
            error = compare(seen, golden, bound)
            errors.append(_as_rounded(error, seen, bound, others.of(number)))
        return errors

    def _seen(self, output: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
        here = output.to(self._place)
        if self._lenient.nan_is_equal and here.is_floating_point():
            return torch.where(here.isnan(), golden.to(here.dtype), here)
        return here

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

        `tensors` gives what the inputs held in that call. Both may be off the golden by the bound
        of the case, so they may differ by twice that. `undecided` is told of elements, by output,
        that differ and are right by another rounding.
        """

        def compared() -> str | None:
            return self._disagreement(candidate, baseline, tensors, seed, undecided)

        return self._within_memory(compared)

    def _disagreement(
        self,
        candidate: Sequence[torch.Tensor],
        baseline: Sequence[torch.Tensor],
        tensors: Callable[[], Sequence[torch.Tensor]],
        seed: int,
        undecided: Counter[str],
    ) -> str | None:
        bounds = self.expected(seed).bounds
        for number, (ours, theirs, bound) in enumerate(
            zip(candidate, baseline, bounds, strict=True)
        ):
            output, reference = ours.to(self._place), theirs.to(self._place)
            if plainly_equal(output, reference, bound):
                continue
            golden = reference.double() if bound.kind == "float" else reference
            error = compare(
                output,
                golden,
                replace(
                    bound,
                    reference=reference,
                    allowed=2 * bound.allowed,
                    quantile_allowed=2 * bound.quantile_allowed,
                    unit=None,
                    finite=False,
                    pointed=self.open.pointed(tensors(), self._place) if bound.pointed else None,
                ),
            )
            if not error.ok and _is_whole(bound):
                others = OtherRoundings(self.open, tensors(), self._place)
                held = replace(bound, reference=reference)
                error = _as_rounded(error, output, held, others.of(number))
                undecided[error.output] += error.undecided
            if not error.ok:
                return error.in_words(f"{error.output} of a timed call")
        return None

    def looks_disagree(
        self,
        ours: Block,
        theirs: Block,
        seed: int,
        tensors: Callable[[int], Sequence[torch.Tensor] | None],
        undecided: Counter[str],
    ) -> str | None:
        """Why the elements that were read of two sides' calls cannot all be right, or None. Whole
        outputs are compared too, but only of one call in each block. Indices are left out: what
        they point into was there during the call only. `tensors` gives what the inputs held in a
        call of the block, None where that is not known; `undecided` is as for `disagreement`."""
        if not ours.looks and not theirs.looks:
            return None
        bounds = self.expected(seed).bounds
        sizes = [bound.reference.numel() for bound in bounds]
        numbers = [places(draw, sizes) for draw in ours.draws]
        each = [
            torch.tensor(of_output, dtype=torch.long) for of_output in zip(*numbers, strict=True)
        ]
        read, expected = _elements(bounds, ours), _elements(bounds, theirs)
        if read is None or expected is None:
            return "its process did not read the outputs of every timed call"
        for number, (bound, at, mine, wanted) in enumerate(
            zip(bounds, each, read, expected, strict=True)
        ):
            if bound.kind == "index" or agree(mine, wanted, at, bound):
                continue
            if not (_is_whole(bound) and self._looks_rounded(number, at, mine, wanted, tensors)):
                return f"{bound.name} of a timed call is wrong at some of the elements looked at"
            undecided[bound.name] += int((mine != wanted).sum())
        return None

    def _looks_rounded(
        self,
        number: int,
        at: torch.Tensor,
        mine: torch.Tensor,
        wanted: torch.Tensor,
        tensors: Callable[[int], Sequence[torch.Tensor] | None],
    ) -> bool:
        """Whether each element of an output that differs, in a few calls, is right by another
        rounding. All but the last argument have a row for each call."""
        calls = (mine != wanted).any(dim=1).nonzero().flatten().tolist()
        if len(calls) > MOST_LOOKED_INTO:
            return False
        for call in calls:
            held = tensors(call)
            if held is None:
                return False
            others = OtherRoundings(self.open, held, self._place).of(number)
            rows = (other.cpu().flatten()[at[call]] for other in others)
            if bool(settled(mine[call], wanted[call], rows)[0].any()):
                return False
        return True


def _is_whole(bound: Bound) -> bool:
    """Whether an output is compared exactly and holds no floats: counts, indices, truths."""
    return bound.kind == "exact" and not bound.reference.dtype.is_floating_point


def _as_rounded(
    error: OutputError, output: torch.Tensor, bound: Bound, others: Iterator[torch.Tensor]
) -> OutputError:
    """The error without what the reference's own rounding decides."""
    if error.ok or not _is_whole(bound) or not math.isfinite(error.worst):
        return error
    return shares(bound, *settled(output, bound.reference, others))


def _elements(bounds: Sequence[Bound], block: Block) -> list[torch.Tensor] | None:
    """What was read of each output, one row for each call; None where something is missing."""
    sizes = [LOOKS * b.reference.element_size() if b.reference.numel() else 0 for b in bounds]
    if len(block.looks) != len(block.draws) or {*map(len, block.looks)} != {sum(sizes)}:
        return None
    elements, begin = [], 0
    for bound, size in zip(bounds, sizes, strict=True):
        data = b"".join(look[begin : begin + size] for look in block.looks)
        flat = torch.frombuffer(bytearray(data), dtype=bound.reference.dtype) if data else None
        elements.append(
            bound.reference.new_empty((len(block.looks), 0), device="cpu")
            if flat is None
            else flat.view(len(block.looks), LOOKS)
        )
        begin += size
    return elements


def _keep(store: OrderedDict[int, T], seed: int, value: T) -> None:
    store[seed] = value
    while len(store) > KEPT_SAMPLES:
        store.popitem(last=False)


# What harnesses commonly allow in float32; only without defence 16.
USUAL_TOLERANCE = 1e-2


class PreparedProblem:
    """The prepared cases of a problem, and the seeds of the values that candidates are checked
    with."""

    def __init__(self, problem: Problem, device: str, settings: EvaluationSettings) -> None:
        self._problem = problem
        self._device = device
        self._settings = settings
        self._cases: dict[str, PreparedCase] = {}
        self._works: dict[str, Work] = {}
        self._needed: dict[str, Work] = {}
        # Drawn anew each time, so that nothing stored from an earlier one is of use; few, so that
        # goldens are computed once.
        self._chance = random.SystemRandom()
        self._seeds = [self._chance.getrandbits(24) for _ in range(settings.seeds + 1)]

    def case(self, case: Case) -> PreparedCase:
        """The case with its goldens, made once."""
        if case.name not in self._cases:
            lenient = Leniency(
                tolerance=0.0 if self._settings.on(16) else USUAL_TOLERANCE,
                nan_is_equal=not self._settings.on(20),
            )
            opened = open_case(self._problem, case, device=self._device)
            self._cases[case.name] = PreparedCase(
                opened, self._device, lenient, self._settings.golden_bytes
            )
        return self._cases[case.name]

    def work(self, case: Case) -> Work:
        """What one call of the case has to do at least."""
        if case.name not in self._works:
            self._works[case.name] = work_of(self.case(case).open)
        return self._works[case.name]

    def needed_work(self, case: Case) -> Work:
        """As `work`, but of the inputs only what the result depends on, found by trying: for the
        rare time that looks too short."""
        if case.name not in self._needed:
            work = self.work(case)
            opened = self.case(case).open
            read = needed_read_bytes(opened, self._device, self._seeds[0])
            self._needed[case.name] = replace(work, read_bytes=min(read, work.read_bytes))
        return self._needed[case.name]

    def drawn_seeds(self) -> list[int]:
        """Seeds for one candidate."""
        if not self._settings.on(24, 31):  # the same values for every candidate can be looked up
            return list(range(self._settings.seeds))
        return self._chance.sample(self._seeds, self._settings.seeds)
