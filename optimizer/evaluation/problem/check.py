"""Checks whether a problem can distinguish a right kernel from a wrong one.

Three questions for every case: do all controls (outputs that took no work) fail the bound, does the
output depend on every input and weight, and is there enough work to time. Knows problems and
bounds, not candidates.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from kb.errors import InvalidRequest
from optimizer.evaluation.problem.bounds import Bound, within
from optimizer.evaluation.problem.open_case import DrawnValues, OpenCase
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.user_code import check_shapes

# Of its RMS: an output that varies less is one number with noise.
MIN_SPREAD = 1e-6
SEED = 11
# Of a check before a search, which the reference of a large problem would delay.
DISTRUST_BYTES = 64 << 20
DISTRUST_SECONDS = 5.0
_RANDOM_HINT = "Take random numbers as inputs instead of drawing them in forward."


@dataclass(frozen=True)
class CaseFault:
    """A fault of a case. Severity `invalid`: results on this case mean nothing; `warning`: they may
    mean little."""

    case: str
    severity: Literal["invalid", "warning"]
    message: str
    hint: str


@dataclass(frozen=True)
class _Run:
    """A case run once."""

    case: OpenCase
    device: str
    inputs: list[torch.Tensor]
    state: dict[str, torch.Tensor]
    references: list[torch.Tensor]
    goldens: list[torch.Tensor]
    bounds: list[Bound]


def check_problem(
    problem: Problem, *, cases: Sequence[Case] | None = None, device: str = "cpu"
) -> list[CaseFault]:
    """All faults of the problem's cases for this kind of device, or of the given cases."""
    chosen = cases if cases is not None else [c for c in problem.cases if c.fits(device)]
    opened = (OpenCase(problem, case) for case in chosen)
    return [finding for case in opened for finding in check_case(case, device)]


def check_case(case: OpenCase, device: str = "cpu") -> list[CaseFault]:
    """The faults of one case. `device` is where the reference runs."""
    return [*_train_mode(case), *_faults(case, device)]


def distrust(problem: Problem, device: str = "cpu") -> list[str]:
    """What a search should say before it begins, a sentence for each fault but those of size. Cases
    above DISTRUST_BYTES, and those that are not reached within DISTRUST_SECONDS, are not run."""
    until, said = time.monotonic() + DISTRUST_SECONDS, dict[str, None]()
    for case in problem.searched:
        if not case.fits(device) or time.monotonic() > until:
            continue
        opened = OpenCase(problem, case, device=device)
        faults = list(_train_mode(opened))
        if opened.signature.compulsory_bytes <= DISTRUST_BYTES:
            faults += _faults(opened, device, sized=False)
        for fault in faults:
            verdict = "cannot be trusted" if fault.severity == "invalid" else "warning"
            text = f"{problem.name}, case {case.name}: {verdict}: {fault.message}. {fault.hint}"
            said.setdefault(text)
    return list(said)


def _faults(case: OpenCase, device: str, sized: bool = True) -> list[CaseFault]:
    if any(output.elements == 0 for output in case.outputs):
        message = "an output has no elements"
        return [CaseFault(case.case.name, "invalid", message, "Choose larger constants.")]
    run = _run(case, device)
    try:
        check_shapes(case.problem, case.outputs, run.references)
    except InvalidRequest as problem:
        return [_invalid(run, problem.message, problem.hint)]
    findings = list(_repeatable(run))
    if findings:  # a golden from other random numbers means nothing
        return findings
    findings = [*_controls(run), *_constant(run)]
    if not findings:  # an invalid bound shows no change
        findings = [*_sensitivity(run), *_unvaried(run)]
    return [*findings, *(_size(run) if sized else ())]


def check_reference(case: OpenCase, device: str = "cpu") -> None:
    """Raises InvalidRequest if no kernel can be checked against the reference of this case: it has
    no elements, or its next call gives another result."""
    if any(output.elements == 0 for output in case.outputs):
        raise InvalidRequest(
            f"{case.problem.name}: an output of the case {case.case.name} has no elements",
            hint="Choose larger sizes.",
        )
    inputs, state = case.drawn_in_place(SEED)
    first = case.reference(inputs, state, device=device)
    check_shapes(case.problem, case.outputs, first)
    other = case.reference(inputs, state, device=device, noise=1)
    if all(torch.equal(a, b) for a, b in zip(first, other, strict=True)):
        return
    golden = [_widened(output) for output in first]
    bounds = case.bounds(inputs, golden, first, device=device)
    for output, exact, bound in zip(other, golden, bounds, strict=True):
        if not within(output, exact, bound):
            raise InvalidRequest(
                f"{case.problem.name}: {bound.name} differs in the next call", hint=_RANDOM_HINT
            )


def _run(case: OpenCase, device: str) -> _Run:
    inputs, state = case.drawn(SEED)
    references = case.reference(inputs, state, device=device)
    goldens = case.reference(inputs, state, dtype=torch.float64, device=device)
    moved = case.sensitivities(inputs, state, goldens, device)
    bounds = case.bounds(inputs, goldens, references, moved)
    return _Run(case, device, inputs, state, references, goldens, bounds)


def _invalid(run: _Run, message: str, hint: str) -> CaseFault:
    return CaseFault(run.case.case.name, "invalid", message, hint)


# -- controls


def controls(
    inputs: Mapping[str, torch.Tensor], golden: torch.Tensor, reference: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Outputs that took no work, by name, in the shape and dtype of the reference."""
    yield "all zeros", torch.zeros_like(reference)
    for name, value in inputs.items():
        if value.numel() == reference.numel() and value.dtype == reference.dtype:
            yield f"a copy of the input {name}", value.reshape(reference.shape)
    finite = golden.double()[torch.isfinite(golden)]
    if golden.is_floating_point() and finite.numel():
        mean = finite.mean().to(reference.dtype)
        yield "the mean of the right result, everywhere", mean.expand(reference.shape)
        rows = golden.double().nan_to_num().mean(dim=-1, keepdim=True) if golden.dim() else golden
        if golden.dim() > 1 and golden.shape[-1] > 1:
            row_means = rows.to(reference.dtype).expand(reference.shape)
            yield "the mean of the right result, row by row", row_means


def _controls(run: _Run) -> Iterator[CaseFault]:
    """A control that passes means that the bound accepts anything."""
    inputs = dict(zip(run.case.input_names, run.inputs, strict=True))
    for bound, golden, reference in zip(run.bounds, run.goldens, run.references, strict=True):
        for name, output in controls(inputs, golden, reference):
            if within(output, golden, bound):
                yield _invalid(run, f"{bound.name}: {name} would pass", _control_hint(bound))


def _control_hint(bound: Bound) -> str:
    if bound.kind != "float":
        return "Choose inputs for which the result is something else, or drop the output."
    return (
        f"The bound is {bound.allowed:.2g} of the result's size: give another distribution, a "
        "shorter reduction or a wider dtype, or return what varies (rows, not their mean)."
    )


# -- the output itself


def _constant(run: _Run) -> Iterator[CaseFault]:
    for bound, golden in zip(run.bounds, run.goldens, strict=True):
        values = golden.double()
        values = values[torch.isfinite(values)]
        if not values.numel():
            yield _invalid(
                run, f"{bound.name} is nowhere finite", "Choose inputs in the model's range."
            )
            continue
        size = float(values.square().mean().sqrt())
        spread = float(values.std(correction=0)) if values.numel() > 1 else size
        if golden.numel() > 1 and spread <= MIN_SPREAD * size:
            yield _invalid(
                run,
                f"{bound.name} is the same everywhere (spread {spread:.2g} at size {size:.2g})",
                "The model collapses on these inputs; change them, or the model.",
            )
        if values.numel() < golden.numel() / 2:
            yield CaseFault(
                run.case.case.name,
                "warning",
                f"{bound.name} is finite in {values.numel()} of {golden.numel()} elements",
                "NaN and infinities are compared by place only; choose inputs in range.",
            )


def _repeatable(run: _Run) -> Iterator[CaseFault]:
    """Two calls of the reference with different random numbers must agree."""
    again = run.case.reference(run.inputs, run.state, device=run.device, noise=1)
    exact = [_widened(reference) for reference in run.references]
    bounds = run.case.bounds(run.inputs, exact, run.references)
    for bound, golden, other in zip(bounds, exact, again, strict=True):
        if not within(other, golden, bound):
            yield _invalid(run, f"{bound.name} differs in the next call", _RANDOM_HINT)


def _widened(reference: torch.Tensor) -> torch.Tensor:
    return reference.double() if reference.is_floating_point() else reference


# -- sensitivity


def _sensitivity(run: _Run) -> Iterator[CaseFault]:
    """Each input and weight in turn is replaced by another draw; some output must move."""
    banks = run.case.second_draw(SEED)
    frozen = run.case.problem.policy.weights == "frozen"
    for number, name in enumerate(run.case.input_names):
        other = banks.inputs[number]
        if torch.equal(other, run.inputs[number]):
            other = _moved(other)
        changed = [*run.inputs[:number], other, *run.inputs[number + 1 :]]
        if not run.case.scalars[number] and not _moves(run, changed, run.state):
            yield _invalid(run, f"no output depends on the input {name}", _SENSITIVITY_HINT)
    for name, value in run.state.items():
        other = banks.state[name]
        if torch.equal(other, value):
            other = _moved(other)
        structure = not value.is_floating_point()
        if frozen or structure or not value.numel():
            continue
        if not _moves(run, run.inputs, {**run.state, name: other}):
            yield _invalid(run, f"no output depends on the weight {name}", _SENSITIVITY_HINT)


def unvaried(case: OpenCase, first: DrawnValues, other: DrawnValues) -> tuple[str, ...]:
    """Inputs that are equal in two draws without being declared as fixed: whether a kernel reads
    them is not tested."""
    known = zip(case.input_names, case.scalars, first.inputs, other.inputs, strict=True)
    fixed = case.problem.policy.fixed
    return tuple(
        name
        for name, scalar, a, b in known
        if not scalar and name not in fixed and a.numel() and torch.equal(a, b)
    )


def _unvaried(run: _Run) -> Iterator[CaseFault]:
    first = DrawnValues(run.inputs, run.state)
    for name in unvaried(run.case, first, run.case.second_draw(SEED)):
        yield CaseFault(
            run.case.case.name,
            "warning",
            f"the input {name} is the same in every draw: a kernel that never reads it would pass",
            "Draw it at random in get_inputs, or name it under policy.fixed where its values are"
            " part of the problem.",
        )


_SENSITIVITY_HINT = (
    "A kernel may then ignore it and pass: remove it, or choose values for which it matters."
)


def _moved(value: torch.Tensor) -> torch.Tensor:
    """A different value for a constant input, equal in every draw."""
    if value.dtype == torch.bool:
        return ~value
    if not value.is_floating_point():
        return value.flip(-1) if value.dim() else value
    return value * 1.5 + 0.25


def _moves(run: _Run, inputs: list[torch.Tensor], state: dict[str, torch.Tensor]) -> bool:
    """Whether some output leaves its bound."""
    outputs = run.case.reference(inputs, state, device=run.device)
    compared = zip(outputs, run.goldens, run.bounds, strict=True)
    return any(not within(output, golden, bound) for output, golden, bound in compared)


# -- train mode


def _train_mode(case: OpenCase) -> Iterator[CaseFault]:
    """The reference runs in eval mode; modules that compute something else in train mode."""
    names = case.trained_otherwise
    if names:
        yield CaseFault(
            case.case.name,
            "warning",
            f"the problem is the result in eval mode, in which {', '.join(names)} computes other"
            " values than in train mode: dropout does nothing, batch norm uses its running"
            " statistics",
            "To time what training computes, call the function with its arguments in forward: "
            "F.batch_norm(x, None, None, weight, bias, training=True), and multiply by a mask that"
            " is an input for dropout.",
        )


# -- size


def _size(run: _Run) -> Iterator[CaseFault]:
    case, moved = run.case, run.case.signature.compulsory_bytes
    if not case.case.timed or moved >= MIN_BYTES:
        return
    little = too_little(moved, case.flops)
    if not little:
        return
    yield CaseFault(
        case.case.name,
        "warning",
        little,
        f"Reach {MIN_BYTES:,} bytes or {MIN_FLOPS:,} operations, or set timed = false. A simulator"
        " counts cycles of any size.",
    )


# A launch costs about 5 us on a GPU and a call from Python about as much; a smaller kernel measures
# only that. 1 MiB at 2 TB/s is 0.5 us, on two cores 100 us.
MIN_BYTES = 1 << 20
MIN_FLOPS = 50_000_000


def too_little(moved_bytes: int, flops: int) -> str:
    """A sentence that the case is too small to time; empty if it is not."""
    if moved_bytes >= MIN_BYTES or flops >= MIN_FLOPS:
        return ""
    if not flops:  # torch's counter knows only products
        return f"{moved_bytes:,} bytes, and no operation that is counted, are too little to time"
    return f"{moved_bytes:,} bytes and {flops:,} floating-point operations are too little to time"
