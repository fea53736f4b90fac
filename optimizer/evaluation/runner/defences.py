"""The judge's defences against candidates that cheat, as one policy.

Every evaluation uses the defaults. A caller that weakens one gets results that are not to be
believed. Used by the supervisor and, sent with each kernel, by the runner. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

FreshValues = Literal["all", "spread", "stretch", "none"]


@dataclass(frozen=True)
class Defences:
    """The checks, secrets and measurements of an evaluation. Each field describes the effect of its
    default."""

    # The source, before anything runs.
    forbid_introspection: bool = True  # reading frames, or objects by searching for them
    forbid_process_access: bool = True  # ptrace and the like
    forbid_fallback: bool = True  # handlers that compute with torch, inheriting the reference

    # Correctness.
    check_all_cases: bool = True
    repeat_calls: bool = True  # each value is computed twice
    reject_changed_inputs: bool = True
    trace_operators: bool = True  # where a problem forbids libraries
    forbid_library: bool = True  # there, torch's operators and BLAS fail after the first call
    hide_results: bool = True  # right results are never in the runner's memory
    random_seeds: bool = True  # other values in every evaluation
    uneven_values: bool = True  # of the last seed: a part of a row does not show the whole
    tolerance: float = 0.0  # accepted beyond the error bounds, as a share of the output's size
    nan_equals_anything: bool = False

    # The runner's process.
    landlock: bool = True  # files can be written in the scratch folder only
    filter_system_calls: bool = True
    authenticate_results: bool = True  # a message without the nonce rejects the candidate
    bind_early: bool = True  # clocks, reads and sends are functions bound before the candidate
    watch_runner: bool = True  # replaced functions of the runner are reported
    watch_libraries: bool = True  # replaced functions of time, os and torch are reported
    plain_outputs: bool = True  # outputs are torch.Tensor itself, with memory behind them
    take_outputs_at_once: bool = True  # without waiting for threads that a call left

    # The values and outputs of timed calls.
    fresh_values: FreshValues = "all"  # of each input before a call: all of it, elements spread
    # over it, one stretch, or nothing is replaced
    shift_values: bool = True  # floats are moved towards one of them too
    scatter_values: bool = True  # values come in short runs from random positions; on a CPU only
    outside_values: bool = True  # on a CPU the supervisor writes inputs; the runner has no bank
    late_inputs: bool = True  # on a GPU, some values are written on the stream of the call
    single_tokens: bool = True  # a call is granted when the runner requests it, not before
    secret_draws: bool = True  # the runner does not know which elements are sampled
    sample_every_call: bool = True  # elements of each call's outputs are compared
    sample_inputs: bool = True  # and elements of its inputs
    compare_last_call: bool = True  # whole outputs of a block's last call, not of its first
    compare_blocks: bool = True  # whole outputs are compared at all after timed blocks

    # Clocks, and work outside the calls.
    clock_calls: bool = True  # on a CPU the supervisor times every call too
    compare_clocks: bool = True  # the runner's times with the supervisor's wall
    charge_hidden_work: bool = True  # processor time outside the calls counts as the candidate's
    charge_late_work: bool = True  # so does work of a GPU after a call
    read_outputs: bool = True  # a byte of every page after each call, and how long that takes
    reject_background_work: bool = True  # threads and processes that outlive a call
    reject_dispatch_modes: bool = True

    # On a GPU.
    reset_persisting_cache: bool = True
    hold_device: bool = True  # a kernel occupies the device until the call is launched
    default_stream: bool = True  # calls begin, and their ends are recorded, on it
    driver_times: bool = True  # times come from the driver, whose code is watched

    @property
    def weakened(self) -> list[str]:
        """The fields that differ from the default, in alphabetical order."""
        return sorted(f.name for f in fields(self) if getattr(self, f.name) != f.default)
