"""Whether a candidate's outputs are right on one case: several seeds, each against its float64
golden, and twice on the same values.

The candidate runs before any expected value is needed, in another process than the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.host_arrays import copy_into, same_bits
from optimizer.evaluation.loaded_kernel import LoadedKernel
from optimizer.evaluation.records import CaseCheck, Flag
from optimizer.evaluation.settings import EvaluationSettings

# Operators that move, allocate or look at data; anything else is work that a library does.
MOVEMENT = (
    "aten.empty",
    "aten.empty_like",
    "aten.empty_strided",
    "aten.new_empty",
    "aten.zeros",
    "aten.zeros_like",
    "aten.view",
    "aten._unsafe_view",
    "aten.reshape",
    "aten._reshape_alias",
    "aten.t",
    "aten.transpose",
    "aten.permute",
    "aten.expand",
    "aten.squeeze",
    "aten.unsqueeze",
    "aten.select",
    "aten.slice",
    "aten.as_strided",
    "aten.detach",
    "aten.alias",
    "aten.clone",
    "aten.copy_",
    "aten.fill_",
    "aten.zero_",
    "aten._to_copy",
    "aten.contiguous",
    "aten.lift_fresh",
    "aten._local_scalar_dense",
)


@dataclass(frozen=True)
class CaseResult:
    """The checks of one case. `message` is empty when the case is right."""

    checks: tuple[CaseCheck, ...]
    flags: tuple[Flag, ...] = ()
    message: str = ""


def check_case(
    prepared: PreparedCase,
    kernel: LoadedKernel,
    seeds: Sequence[int],
    settings: EvaluationSettings,
) -> CaseResult:
    """Check every seed; the kernel holds the values of the first. Raises what the kernel raises."""
    checks: list[CaseCheck] = []
    copies = [torch.empty_like(output) for output in kernel.outputs]  # for all seeds
    for number, seed in enumerate(seeds):
        if number:
            kernel.renew(prepared.sample(seed), settings.call_seconds)
        check = _check_seed(prepared, kernel, seed, settings, copies)
        checks.append(check)
        if not check.ok:
            return CaseResult(tuple(checks), (), f"case {prepared.name}: {check.message}")
    flags = _library_flags(prepared, kernel, settings)
    message = flags[0].message if flags else ""
    return CaseResult(tuple(checks), tuple(flags), message)


def _check_seed(
    prepared: PreparedCase,
    kernel: LoadedKernel,
    seed: int,
    settings: EvaluationSettings,
    first: Sequence[torch.Tensor],
) -> CaseCheck:
    """`first` is memory for the outputs of the first call."""
    if not settings.on(5, 11, 22):
        kernel.leave(prepared.expected(seed).reference)
    for copy, output in zip(first, kernel.call(settings.call_seconds), strict=True):
        copy_into(copy, output)
    changed = kernel.inputs_changed(settings.call_seconds)
    if changed and settings.on(6):
        message = f"it changed {', '.join(changed)}, which a candidate may only read"
        return CaseCheck(prepared.name, seed, False, (), message)
    # Without defence 6 the reference gets the inputs as the candidate left them.
    changed_inputs = [value.clone() for value in kernel.current] if changed else None
    errors = tuple(prepared.errors(first, seed, changed_inputs))
    wrong = [error for error in errors if not error.ok]
    if wrong:
        return CaseCheck(prepared.name, seed, False, errors, wrong[0].in_words())
    if settings.on(30):
        again = kernel.call(settings.call_seconds)
        apart = []
        if not all(map(same_bits, first, again)):
            apart = [e for e in prepared.errors(again, seed, changed_inputs) if not e.ok]
        if apart:
            return CaseCheck(
                prepared.name, seed, False, errors, f"a second call differs: {apart[0].in_words()}"
            )
    return CaseCheck(prepared.name, seed, True, errors)


def _library_flags(
    prepared: PreparedCase, kernel: LoadedKernel, settings: EvaluationSettings
) -> list[Flag]:
    """Where the problem forbids libraries: which operators did the work, as the dispatcher saw."""
    if prepared.open.problem.policy.library == "allowed" or not settings.on(15):
        return []
    seen = kernel.operators(settings.call_seconds)
    working = [name for name in seen if name not in MOVEMENT]
    if not working:
        return []
    names = ", ".join(working[:4])
    return [Flag(15, "reject", f"the work is done by torch operators ({names}), not by its kernel")]
