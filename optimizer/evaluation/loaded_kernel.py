"""A candidate, or the reference, loaded into a runner for one case: the supervisor's handle of it,
and its blocks of timed calls.

Has a copy of the inputs' values after every call (`InputMirror`) out of the kernel's reach, so that
any call can be checked against the reference.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from optimizer.evaluation.isolation.runner_process import (
    Device,
    OutputSampler,
    RunnerForged,
    RunnerProcess,
    own_wait_ns,
    sampled_outputs,
)
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.runner.defences import Defences
from optimizer.evaluation.runner.fresh_values import refresh
from optimizer.evaluation.runner.memory import PAGE, dtype_name, placements_json
from optimizer.evaluation.runner.wire import DRAW_BYTES, seed_of_weights, token
from optimizer.evaluation.shared_arrays import SharedStore, copy_into, same_bits
from optimizer.evaluation.toolchains.base import Loader

POISON_BYTE = 0xA5
POISON_STEP = 4093  # bytes, in outputs above SMALL_BYTES: prime, so that every lane is met
SMALL_BYTES = 1 << 20


class CandidateFailed(Exception):
    """The kernel failed by its own fault. `message` is for its author, `log` is its output.

    `kind` is the failure that the runner named: subject (it could not be set up or called), raised,
    refused (its outputs), unsupported (it declined its inputs), or memory.
    """

    def __init__(self, kind: str, message: str, log: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.log = log


@dataclass(frozen=True)
class CaseValues:
    """Values for one call. `tensors` are inputs, then weights, in the order of the ABI; `banks`
    holds a second draw for each tensor that may get fresh values, None for the others; `uneven`:
    one of them has rows whose parts differ."""

    seed: int
    tensors: tuple[torch.Tensor, ...]
    banks: tuple[torch.Tensor | None, ...]
    uneven: bool = False


class InputMirror:
    """The values of a kernel's inputs, computed by repeating the fresh values of its last call;
    only on demand, because the outputs of most blocks agree."""

    def __init__(
        self, values: CaseValues, device: Device, defences: Defences | None = None, inputs: int = 0
    ) -> None:
        """`device` is the runner's. `inputs` is the number of tensors whose values the supervisor
        writes."""
        self._defences = defences or Defences()
        self._rounded = device == "cuda"
        self._inputs = inputs
        self.reset(values)

    def reset(self, values: CaseValues) -> None:
        self._values = values
        self._missing: list[int] = []  # seeds of calls whose values are not computed yet
        self._own: list[torch.Tensor] | None = None

    @property
    def _whole(self) -> bool:
        """Whether the values of a call do not depend on the calls before it."""
        return self._defences.fresh_values in ("all", "none")

    def replay(self, seeds: Sequence[int]) -> None:
        """Change the values as calls with these seeds changed them."""
        if self._defences.fresh_values != "none":
            self._missing = [*seeds[-1:]] if self._whole else [*self._missing, *seeds]

    def of(self, seed: int) -> Sequence[torch.Tensor] | None:
        """Inputs, then weights, in the call with this seed; None if they depend on earlier
        calls."""
        if not self._whole:
            return None
        values = [value.clone() for value in self._values.tensors]
        self._refresh(values, seed)
        return values

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """Inputs, then weights, after the last call."""
        if self._missing and self._own is None:
            self._own = [value.clone() for value in self._values.tensors]
        missing, self._missing = self._missing, []
        for seed in missing:
            assert self._own is not None
            self._refresh(self._own, seed)
        return self._values.tensors if self._own is None else self._own

    def _refresh(self, values: Sequence[torch.Tensor], seed: int) -> None:
        count, banks = self._inputs, self._values.banks
        if not count:
            _refresh(values, banks, seed, self._defences, self._rounded)
            return
        _refresh(values[:count], banks[:count], seed, self._defences)
        _refresh(values[count:], banks[count:], seed_of_weights(seed), self._defences)


def _refresh(
    values: Sequence[torch.Tensor],
    banks: Sequence[torch.Tensor | None],
    seed: int,
    defences: Defences,
    rounded: bool = False,
) -> None:
    """The fresh values of one call, as the runner makes them."""
    fresh = defences.fresh_values
    if fresh != "none":
        refresh(
            values,
            banks,
            seed,
            whole=fresh == "all",
            spread=fresh != "stretch",
            shift=defences.shift_values,
            scatter=defences.scatter_values,
            rounded=rounded,
        )


class LoadedKernel:
    """One kernel on one case."""

    def __init__(
        self,
        runner: RunnerProcess,
        case: OpenCase,
        values: CaseValues,
        store: SharedStore | None = None,
        defences: Defences | None = None,
        mirrored: bool = True,
        fresh: bool = False,
    ) -> None:
        """`store` provides its memory. A trusted kernel needs no mirror. `fresh`: the kernel is
        only called in blocks, in which its inputs get fresh values anyway."""
        self._runner = runner
        self._case = case
        self._store = store or SharedStore()
        self._defences = defences or Defences()
        self._results: Sequence[torch.Tensor] | None = None
        self._first_seconds = 0.0
        self.called_ns = 0  # in timed calls, also in those that failed
        outputs, on_cpu = case.outputs, runner.settings.device == "cpu"
        written_here = on_cpu and self._defences.outside_values and self._defences.single_tokens
        self._written_here = len(case.scalars) if written_here else 0  # tensors, the first ones
        self._expected = [(t.dtype, list(t.shape)) for t in outputs]
        held = [(dtype_name(t.dtype), t.shape) for t in values.tensors]
        take, on_gpu = self._store.take, runner.settings.device == "cuda"
        self._shared = {
            "inputs": take(held),
            "banks": take([_bank_spec(bank) for bank in self._sent(values.banks)]),
            "outputs": take([(t.dtype, t.shape) for t in outputs], pinned=on_gpu),
        }
        # Of the reference, torch's operators are the work.
        forbidden = case.problem.policy.library == "forbidden" and mirrored and on_cpu
        self.forbids = forbidden and self._defences.forbid_library
        self._values = values
        device = runner.settings.device
        self._mirror = None
        if mirrored:
            self._mirror = InputMirror(values, device, self._defences, self._written_here)
        written = self._write(values, fresh)
        for name, shared in self._shared.items():
            if shared.used:  # it holds inputs or results of another kernel
                for number, tensor in enumerate(shared.arrays.tensors):
                    if (name, number) not in written:
                        _bytes(tensor).fill_(POISON_BYTE)

    @property
    def mirror(self) -> InputMirror:
        """The supervisor's copy of the inputs."""
        assert self._mirror is not None, "this kernel was loaded without a mirror"
        return self._mirror

    def held(self, block: TimedBlock, call: int) -> Sequence[torch.Tensor] | None:
        """The inputs' values in a call of a block; None if unknown."""
        return self.mirror.of(block.seeds[call]) if block.seeds else None

    def _write(self, values: CaseValues, fresh: bool, set_up: bool = True) -> set[tuple[str, int]]:
        """Write values to shared memory; returns the arrays, by kind and number, that were written.
        `set_up`: the kernel will be set up with these values."""
        count, written = len(self._case.scalars), set()
        for number, shared in enumerate(self._shared["inputs"].arrays.tensors):
            # A kernel sees weights when it is set up, and inputs when it is called.
            seen = set_up and number >= count
            if not fresh or seen or values.banks[number] is None:
                copy_into(shared, values.tensors[number])
                written.add(("inputs", number))
        sent = self._sent(values.banks)
        banks = zip(self._shared["banks"].arrays.tensors, sent, strict=True)
        for number, (shared, bank) in enumerate(banks):
            if bank is not None:
                copy_into(shared, bank)
                written.add(("banks", number))
        return written

    def _sent(self, banks: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The banks that the runner gets: not those of inputs that this process writes."""
        return [None if n < self._written_here else bank for n, bank in enumerate(banks)]

    def _write_inputs(self, seed: int) -> None:
        """Write the inputs of one call into the memory that the kernel reads."""
        shared, count = self._shared["inputs"].arrays.tensors, self._written_here
        _refresh(shared[:count], self._values.banks[:count], seed, self._defences)

    def load(
        self,
        loader: Loader,
        *,
        limits: Mapping[str, int],
        flush_bytes: int,
        seconds: float,
        cache: Path | None = None,
    ) -> dict[str, Any]:
        """Set the kernel up in the runner, within `seconds`. Returns the runner's reply: notes and
        confined. Raises CandidateFailed, or as `RunnerProcess.ask` does.

        `cache` is the folder for results of the kernel's compilers. A kernel that gets one compiles
        at its first call, so this call gets the deadline of loading.
        """
        self._first_seconds = seconds if cache is not None else 0.0
        arrays = list(self._shared.values())
        message = {
            "op": "load",
            "kind": loader.kind,
            "path": str(loader.path),
            "entry": loader.entry,
            **self._case.calling_convention(),
            "fresh": [bank is not None for bank in self._sent(self._values.banks)],
            "arrays": [[placements_json(a.placements), a.size] for a in arrays],
            "scratch": str(self._runner.scratch),
            "forbids": self.forbids,
            "cache": str(cache) if cache is not None else None,
            "limits": dict(limits),
            "flush_bytes": flush_bytes,
            "defences": asdict(self._defences),
        }
        return dict(self._ask(message, seconds, [a.fd for a in arrays]))

    def renew(self, values: CaseValues, seconds: float, fresh: bool = False) -> None:
        """Put other values into the same buffers. `fresh` as in the constructor. Raises as `load`
        does."""
        self._values = values
        self._write(values, fresh, set_up=False)
        if self._mirror is not None:
            self._mirror.reset(values)
        self._ask({"op": "renew", "fresh": fresh}, seconds)

    def call(self, seconds: float) -> list[torch.Tensor]:
        """The outputs of one call, in shared memory until the next call. Raises as `load` does."""
        self._poison()
        self.called_ns += self._ask({"op": "call"}, self._deadline(seconds))["wall_ns"]
        return self.outputs

    def _deadline(self, seconds: float) -> float:
        """The deadline of a call; the first one may compile."""
        deadline, self._first_seconds = max(seconds, self._first_seconds), 0.0
        return deadline

    def inputs_changed(self, seconds: float) -> list[str]:
        """Names of inputs and weights that the kernel changed."""
        self._ask({"op": "inputs"}, seconds)
        names = [t.name for t in self._case.signature.tensors if t.role != "output"]
        shared = self._shared["inputs"].arrays.tensors
        return [
            name
            for name, now, was in zip(names, shared, self.mirror.tensors, strict=True)
            if not same_bits(now, was)
        ]

    def preserves_inputs(self, held: InputMirror) -> bool:
        """Whether the shared inputs equal the mirror's. Weights are the runner's own."""
        shared = self._shared["inputs"].arrays.tensors[: len(self._case.scalars)]
        return all(map(same_bits, shared, held.tensors))

    @property
    def current(self) -> list[torch.Tensor]:
        """Inputs and weights as `inputs_changed` last saw them."""
        return self._shared["inputs"].arrays.tensors

    def operators(self, seconds: float) -> dict[str, int]:
        """Torch operators that one call dispatches, with their counts."""
        return dict(self._ask({"op": "trace"}, seconds)["operators"])

    def forbid_library(self, seconds: float) -> None:
        """Take torch's operators and BLAS out of the runner. Raises as `load` does."""
        self._ask({"op": "forbid"}, seconds)

    def block(self, seed: int, calls: int, seconds: float, secret: int = 0) -> TimedBlock:
        """Time so many calls on fresh values; the mirror follows. `seed` and `secret` decide the
        values and the sampled elements; the runner gets the seed call by call. Raises as `load`
        does, and RunnerForged for impossible times."""
        self._poison()
        draws = _BlockDraws(seed, secret, calls)
        single, sampling = self._defences.single_tokens, self._sampling()
        sampler = self._sampler(draws.samples) if sampling == "outside" else None
        waited, delayed = self._runner.waited_ns(), own_wait_ns()
        busy, worked = self._runner.busy_ns(), self._runner.worked_ns()
        began = time.perf_counter_ns()
        self._runner.send({"op": "block", "sample": sampling})
        deadline = self._deadline(seconds)
        tokens = draws.tokens(sampling == "inside", self._written_here > 0)
        outer: list[int] = []
        if single:
            with one_thread():
                outer = self._runner.grant(tokens, deadline, sampler, self._preparation(draws))
        else:
            self._runner.grant_all(tokens)
        reply = self._checked(self._runner.await_answer(deadline))
        if sampler is not None and sampler.error:
            raise CandidateFailed("refused", f"its outputs cannot be read: {sampler.error}")
        if single:
            self._runner.check_granted()
        _check_times(reply, calls)
        if self._runner.settings.device == "cpu":
            if reply["walls_ns"] != reply["times_ns"] and self._defences.clock_calls:
                raise RunnerForged("two different times of a call on a CPU")
            if not self._defences.clock_calls:
                outer = []
        else:
            outer = []
        if any(ours < theirs for ours, theirs in zip(outer, reply["times_ns"], strict=False)):
            raise RunnerForged("calls that took longer than the supervisor waited for them")
        wall = time.perf_counter_ns() - began
        waited = self._runner.waited_ns() - waited
        delayed = own_wait_ns() - delayed
        busy = self._runner.busy_ns() - busy
        worked = self._runner.worked_ns() - worked
        if self._mirror is not None:
            self._mirror.replay(draws.seeds)
        try:
            self.called_ns += sum(reply["walls_ns"])
            samples = map(bytes.fromhex, reply["samples"]) if sampler is None else sampler.samples
            return TimedBlock(
                times=tuple(reply["times_ns"]),
                walls=tuple(reply["walls_ns"]),
                spans=tuple((calls, ns, waited) for calls, ns, waited in reply["spans"]),
                refresh_ns=reply["refresh_ns"],
                touch_ns=reply["touch_ns"],
                pages=sum(-(-result.nbytes // PAGE) for result in self.outputs),
                total_ns=reply["total_ns"],
                wall_ns=wall,
                waited_ns=waited,
                delayed_ns=delayed,
                busy_ns=busy,
                threads=(reply["threads"][0], reply["threads"][1]),
                patched=reply["patched"],
                draws=draws.samples,
                samples=tuple(samples),
                inputs=() if sampler is None else tuple(sampler.inputs),
                changed_late=0 if sampler is None else sampler.changed_late,
                worked_ns=worked,
                seeds=tuple(draws.seeds),
                idles=tuple(reply["idles_ns"]),
                library_patched=reply["library_patched"],
                mode_left=reply["mode_left"],
                inside_ns=int(reply["inside_ns"]),
                outer=tuple(outer),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            # A candidate can replace the function that writes the answer.
            raise RunnerForged(
                f"an answer of another form: {error!r}", reply, self._runner.log
            ) from error

    def _preparation(self, draws: _BlockDraws) -> Callable[[int], None] | None:
        """What this process does before it grants a call; None for nothing."""
        seeds = draws.seeds
        if not self._written_here:
            return None
        return lambda call: self._write_inputs(seeds[call]) if call < len(seeds) else None

    def _sampling(self) -> Literal["outside", "inside", ""]:
        """Which process samples the outputs of every call: this one, the runner, or none."""
        if not self._defences.sample_every_call:
            return ""
        outside = self._runner.settings.device == "cpu" and self._defences.secret_draws
        return "outside" if outside and self._runner.readable else "inside"

    def _sampler(self, draws: Sequence[bytes]) -> OutputSampler:
        shared = self._shared["inputs"].arrays.tensors[: len(self._case.scalars)]
        return OutputSampler(self._runner.pid, sampled_outputs(self._expected), draws, shared)

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The shared memory of the outputs after the last call."""
        return self._shared["outputs"].arrays.tensors

    def reveal(self, results: Sequence[torch.Tensor]) -> None:
        """Leave these results in the runner's memory before every call, as a harness does whose
        reference runs in the candidate's process."""
        self._results = results

    def _poison(self) -> None:
        """Overwrite the outputs, so that no earlier result passes for this call's."""
        if self._results is not None:
            for tensor, result in zip(self.outputs, self._results, strict=True):
                tensor.copy_(result)
            return
        for tensor in self.outputs:
            data = _bytes(tensor)
            data[:: 1 if data.numel() <= SMALL_BYTES else POISON_STEP].fill_(POISON_BYTE)

    def _ask(self, message: Mapping[str, Any], seconds: float, fds: Sequence[int] = ()) -> Any:
        return self._checked(self._runner.ask(message, fds, seconds=seconds))

    def _checked(self, reply: dict[str, Any]) -> dict[str, Any]:
        if not reply.get("ok"):
            raise CandidateFailed(
                str(reply.get("failure")), str(reply.get("message")), str(reply.get("log", ""))
            )
        return reply

    def close(self, reusable: bool = False) -> None:
        """Return the memory. `reusable`: the process has ended for certain, so another kernel may
        get it."""
        for shared in self._shared.values():
            self._store.give(shared, reusable)


class _BlockDraws:
    """Random numbers of a block: the seed of each call's values, and the draw of the elements that
    are sampled after it. None can be computed from the others."""

    def __init__(self, seed: int, secret: int, calls: int) -> None:
        name = f"{seed} {secret}".encode()
        words = hashlib.shake_256(name).digest(2 * calls * DRAW_BYTES)
        halves = [words[at : at + DRAW_BYTES] for at in range(0, len(words), DRAW_BYTES)]
        self._seeds, self.samples = halves[:calls], tuple(halves[calls:])

    @property
    def seeds(self) -> list[int]:
        """In the order of the calls."""
        return [int.from_bytes(drawn, "little") for drawn in self._seeds]

    def tokens(self, reveal: bool, weights: bool) -> list[bytes]:
        """A token for each call and one for the end. `reveal` puts the draws of the samples in;
        with `weights` the seeds are those of the weights alone."""
        nothing = bytes(DRAW_BYTES)
        draws = [nothing, *(draw if reveal else nothing for draw in self.samples)]
        seeds = [*self._seeds, nothing]
        if weights:
            own = map(seed_of_weights, self.seeds)
            seeds = [*(seed.to_bytes(DRAW_BYTES, "little") for seed in own), nothing]
        last = len(seeds) - 1
        return [token(n < last, *pair) for n, pair in enumerate(zip(seeds, draws, strict=True))]


def _check_times(reply: Mapping[str, Any], calls: int) -> None:
    """As many times as calls, all positive, and spans that add up to them."""
    times, spans = reply["times_ns"], reply["spans"]
    if len(times) != calls or min(times) <= 0:
        raise RunnerForged(f"times of {len(times)} calls instead of {calls}")
    if sum(n for n, _, _ in spans) != calls or sum(ns for _, ns, _ in spans) != sum(times):
        raise RunnerForged("spans that are not made of the calls' times")


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread of torch in this process. The supervisor compares outputs between blocks, and
    other threads would spin for milliseconds into the next timed calls."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0).byte()


def _bank_spec(bank: torch.Tensor | None) -> tuple[str, Sequence[int]]:
    return ("uint8", (0,)) if bank is None else (dtype_name(bank.dtype), bank.shape)


# -- timed blocks

COLD_NS, COLD_SHARE = 5_000_000, 0.2  # of a block, in which the clock warms up
WARM_SPANS = 3
GRACE_NS = 20_000  # waits that wake-ups cost on a quiet machine
WAITING = 2  # threads that can wait while other work has a processor


@dataclass(frozen=True)
class TimedBlock:
    """Calls that were timed together. All times are in nanoseconds.

    Of each call: `times` by the device's clock, `walls` by the wall clock, `draws` (which elements
    were sampled), `samples` (bytes of those of its outputs, empty if nothing sampled), `inputs` (of
    its inputs, if the supervisor sampled), `seeds` of its fresh values, and `idles`, the time from
    its end on its stream until the GPU was idle, if known; on a CPU also `outer`, the time by the
    supervisor's clock from granting it to the next request. Each of `spans` is a number of calls,
    their time, and for how long threads were ready without a processor meanwhile.

    Of the block: `waited_ns` is that wait, `delayed_ns` the supervisor's own, which made it see the
    end late. `busy_ns` is processor time of the runner's main thread by the kernel's account,
    `inside_ns` the part within calls by the runner's, `worked_ns` that of all its threads,
    `others_ns` that of other work, None if unknown. `threads` counts Python threads before and
    after. `changed_late` counts calls whose outputs changed after they had ended. `patched`: timers
    or functions of the runner were replaced. `library_patched`: library functions that tell times
    were. `mode_left`: a mode of torch's dispatcher was on after a call. `pages`: memory pages of
    the outputs of a call.
    """

    times: tuple[int, ...]
    walls: tuple[int, ...]
    spans: tuple[tuple[int, int, int], ...]
    refresh_ns: int
    touch_ns: int
    total_ns: int
    wall_ns: int
    waited_ns: int
    delayed_ns: int
    busy_ns: int
    threads: tuple[int, int]
    patched: bool
    draws: tuple[bytes, ...] = ()
    samples: tuple[bytes, ...] = ()
    inputs: tuple[bytes, ...] = ()
    changed_late: int = 0
    worked_ns: int = 0
    seeds: tuple[int, ...] = ()
    idles: tuple[int, ...] = ()
    library_patched: bool = False
    mode_left: bool = False
    inside_ns: int = 0
    outer: tuple[int, ...] = ()
    others_ns: float | None = None
    pages: int = 0

    @property
    def disturbed_ns(self) -> float:
        """The wait that other work may have caused; otherwise threads waited for each other, or for
        a processor to wake up."""
        if self.others_ns is None:
            return self.waited_ns
        return min(self.waited_ns, WAITING * self.others_ns)

    @property
    def mean_ns(self) -> float:
        """The mean call."""
        return sum(self.times) / len(self.times)

    def quiet_mean_ns(self, share: float) -> float | None:
        """The mean call in spans that waited for at most this share; None if those are less than
        half of the calls.

        A block begins with caches that hold the other side's data and with sleeping threads: its
        first spans do not count if there are enough others.
        """
        spans = self._warm_spans()
        quiet = [(calls, ns) for calls, ns, waited in spans if waited <= share * ns + GRACE_NS]
        calls = sum(calls for calls, _ in quiet)
        if not calls or 2 * calls < sum(calls for calls, _, _ in spans):
            return None
        return sum(ns for _, ns in quiet) / calls

    def waiting_mean_ns(self, share: float) -> float | None:
        """The mean call of a block whose threads waited without a disturbance: other work used less
        than this share of a processor, and too little to explain the waits. None for any other
        block, and if that is unknown."""
        if self.others_ns is None or self.others_ns > share * self.wall_ns:
            return None
        if sum(waited for _, _, waited in self.spans) <= WAITING * self.others_ns:
            return None
        spans = self._warm_spans()
        return sum(ns for _, ns, _ in spans) / sum(calls for calls, _, _ in spans)

    def _warm_spans(self) -> Sequence[tuple[int, int, int]]:
        cold = min(COLD_NS, COLD_SHARE * sum(self.times))
        passed = skipped = 0
        for _, ns, _ in self.spans:
            if passed >= cold:
                break
            passed += ns
            skipped += 1
        return self.spans[skipped:] if len(self.spans) - skipped >= WARM_SPANS else self.spans
