"""A candidate, or the reference, loaded into a runner for one case: the supervisor's end of it.

Keeps its own copy of what the kernel's inputs hold after every call (`Mirror`), which the kernel
cannot reach, so that any call can be checked against the reference.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from optimizer.evaluation.host_arrays import copy_into, same_bits
from optimizer.evaluation.isolation.runner_process import (
    Device,
    RunnerForged,
    RunnerProcess,
    own_wait_ns,
)
from optimizer.evaluation.looks import Looks, outputs_of
from optimizer.evaluation.problem.tensors import OpenCase
from optimizer.evaluation.runner.memory import dtype_name, places_json, refresh
from optimizer.evaluation.runner.samples import DRAW_BYTES, token
from optimizer.evaluation.shared_arrays import SharedStore
from optimizer.evaluation.timed_block import Block
from optimizer.evaluation.toolchains.base import Loader

POISON_BYTE = 0xA5
POISON_STEP = 4093  # bytes, in outputs above SMALL_BYTES: prime, so that every lane is met
SMALL_BYTES = 1 << 20
# Rows of the exploit table that looking at every call's outputs serves, and those without whose
# defence the runner is told what will be looked at.
EVERY_CALL = (2, 3, 9, 10, 32, 33, 36, 39)
TOLD = (41, 42)
EVERY_CALL_ON_GPU = (46, 47)


class KernelFailed(Exception):
    """The kernel did not do what was requested, by its own fault. `message` is for its author,
    `log` is what it printed.

    `kind` is the failure that the runner named: subject (it could not be set up or called), raised,
    refused (its outputs), or memory.
    """

    def __init__(self, kind: str, message: str, log: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.log = log


@dataclass(frozen=True)
class Sample:
    """Values for one call. `tensors` are inputs, then weights, in the order of the ABI; `banks`
    holds a second draw for each tensor that may be changed in pieces, None for the others."""

    seed: int
    tensors: tuple[torch.Tensor, ...]
    banks: tuple[torch.Tensor | None, ...]


class Mirror:
    """What a kernel's inputs hold, by making the fresh values of its last call again.

    They are made when somebody asks for them: most blocks end with outputs that agree.
    """

    def __init__(self, sample: Sample, device: Device, without: Collection[int] = ()) -> None:
        """`device` is the runner's. `without` holds rows of the exploit table whose defence is off,
        which decide about fresh values."""
        self._spread, self._whole = 33 not in without, not {33, 34, 35} & {*without}
        self._moved = (38 if device == "cpu" else 49) not in without
        self._fresh = not {7, 8} & {*without}
        self._rounded = device == "cuda"
        self.reset(sample)

    def reset(self, sample: Sample) -> None:
        """Hold the values of another sample."""
        self._sample = sample
        self._missing: list[int] = []  # seeds of calls whose values are to be made
        self._own: list[torch.Tensor] | None = None

    def replay(self, seeds: Sequence[int]) -> None:
        """Change the values as calls with these seeds changed them."""
        if not self._fresh:
            return
        if self._whole:  # what is replaced as a whole does not depend on the calls before
            self._missing = [*seeds[-1:]]
        else:
            self._missing += seeds

    def of(self, seed: int) -> Sequence[torch.Tensor] | None:
        """Inputs, then weights, as in the call with this seed; None where they depend on the calls
        before it."""
        if not self._whole:
            return None
        values = [value.clone() for value in self._sample.tensors]
        if self._fresh:
            self._refresh(values, seed, True)
        return values

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """Inputs, then weights, as after the last call."""
        if self._missing and self._own is None:
            self._own = [value.clone() for value in self._sample.tensors]
        missing, self._missing = self._missing, []
        for seed in missing:
            assert self._own is not None
            self._refresh(self._own, seed, self._whole)
        return self._sample.tensors if self._own is None else self._own

    def _refresh(self, values: list[torch.Tensor], seed: int, whole: bool) -> None:
        banks, spread = self._sample.banks, self._spread
        refresh(values, banks, seed, 0, spread, whole, moved=self._moved, rounded=self._rounded)


class LoadedKernel:
    """One kernel on one case."""

    def __init__(
        self,
        runner: RunnerProcess,
        case: OpenCase,
        sample: Sample,
        store: SharedStore | None = None,
        without: frozenset[int] = frozenset(),
        followed: bool = True,
        fresh: bool = False,
    ) -> None:
        """`store` is where its memory comes from. `without` holds rows of the exploit table whose
        defence is off. `followed` says whether there is a mirror, which a trusted kernel does not
        need. `fresh` says that the kernel is only called in blocks, before which its inputs get
        fresh values anyway."""
        self._runner = runner
        self._case = case
        self._store = store or SharedStore()
        self._without = without
        self._left: Sequence[torch.Tensor] | None = None
        self._first_seconds = 0.0
        self.called_ns = 0  # in timed calls, also in those that failed
        signature = case.signature
        outputs = signature.of("output")
        self._expected = [(t.dtype, list(t.shape)) for t in outputs]
        held = [(dtype_name(t.dtype), t.shape) for t in sample.tensors]
        take, on_gpu = self._store.take, runner.settings.device == "cuda"
        self._shared = {
            "inputs": take(held),
            "banks": take([_bank_spec(bank) for bank in sample.banks]),
            "outputs": take([(t.dtype, t.shape) for t in outputs], pinned=on_gpu),
        }
        self._sample = sample
        self._mirror = Mirror(sample, runner.settings.device, without) if followed else None
        written = self._write(sample, fresh)
        for name, shared in self._shared.items():
            if shared.used:  # it holds what another kernel was given, or its results
                for number, tensor in enumerate(shared.arrays.tensors):
                    if (name, number) not in written:
                        _bytes(tensor).fill_(POISON_BYTE)

    @property
    def mirror(self) -> Mirror:
        """The supervisor's copy of the inputs; only a followed kernel has it."""
        assert self._mirror is not None, "a kernel that is not followed has no mirror"
        return self._mirror

    def held(self, block: Block, call: int) -> Sequence[torch.Tensor] | None:
        """What the inputs held in a call of a block; None where that is not known."""
        return self.mirror.of(block.seeds[call]) if block.seeds else None

    def _write(self, sample: Sample, fresh: bool, set_up: bool = True) -> set[tuple[str, int]]:
        """Which arrays, by kind and number, were written. `set_up` says that the kernel will be set
        up with these values."""
        count, written = len(self._case.scalars), set()
        for number, shared in enumerate(self._shared["inputs"].arrays.tensors):
            # A kernel sees weights when it is set up, and inputs first when it is called.
            seen = set_up and number >= count
            if not fresh or seen or sample.banks[number] is None:
                copy_into(shared, sample.tensors[number])
                written.add(("inputs", number))
        banks = zip(self._shared["banks"].arrays.tensors, sample.banks, strict=True)
        for number, (shared, bank) in enumerate(banks):
            if bank is not None:
                copy_into(shared, bank)
                written.add(("banks", number))
        return written

    def load(
        self,
        loader: Loader,
        *,
        limits: Mapping[str, int],
        flush_bytes: int,
        seconds: float,
        seed: int = 0,
        cache: Path | None = None,
    ) -> dict[str, Any]:
        """Set the kernel up in the runner, within `seconds`. Returns the runner's reply: notes,
        threads and confined. Raises KernelFailed, or what `RunnerProcess.ask` raises.

        `cache` is the folder where its compilers keep their results. It is given to a kernel that
        compiles at its first call, so that this call gets the deadline of loading.
        """
        self._first_seconds = seconds if cache is not None else 0.0
        arrays = list(self._shared.values())
        message = {
            "op": "load",
            "kind": loader.kind,
            "path": str(loader.path),
            "entry": loader.entry,
            "init_args": self._case.init_args,
            "dtype": self._case.case.dtype,
            "seed": seed,
            "inputs": len(self._case.scalars),
            "scalars": list(self._case.scalars),
            "state": [t.name for t in self._case.signature.of("parameter", "buffer")],
            "fresh": [bank is not None for bank in self._banks],
            "expected": self._expected,
            "keys": list(self._case.output_keys),
            "arrays": [[places_json(a.places), a.size] for a in arrays],
            "scratch": str(self._runner.scratch),
            "cache": str(cache) if cache is not None else None,
            "limits": dict(limits),
            "flush_bytes": flush_bytes,
            "without": sorted(self._without),
        }
        return dict(self._ask(message, seconds, [a.fd for a in arrays]))

    @property
    def _banks(self) -> Sequence[torch.Tensor | None]:
        return self._sample.banks

    def renew(self, sample: Sample, seconds: float, fresh: bool = False) -> None:
        """Put other values into the same buffers. `fresh` says that only blocks follow. Raises as
        `load` does."""
        self._sample = sample
        self._write(sample, fresh, set_up=False)
        if self._mirror is not None:
            self._mirror.reset(sample)
        self._ask({"op": "renew", "fresh": fresh}, seconds)

    def call(self, seconds: float) -> list[torch.Tensor]:
        """The outputs of one call. They lie in shared memory until the next call. Raises as `load`
        does."""
        self._poison()
        self.called_ns += self._ask({"op": "call"}, self._patience(seconds))["wall_ns"]
        return self.outputs

    def _patience(self, seconds: float) -> float:
        """The deadline of a call; the first one may compile."""
        patience, self._first_seconds = max(seconds, self._first_seconds), 0.0
        return patience

    def inputs_changed(self, seconds: float) -> list[str]:
        """Names of inputs and weights that the kernel changed although nobody asked it to."""
        self._ask({"op": "inputs"}, seconds)
        names = [t.name for t in self._case.signature.tensors if t.role != "output"]
        shared = self._shared["inputs"].arrays.tensors
        return [
            name
            for name, now, was in zip(names, shared, self.mirror.tensors, strict=True)
            if not same_bits(now, was)
        ]

    def keeps_inputs(self, held: Mirror) -> bool:
        """Whether the inputs, which the runner maps too, are what the mirror holds. Weights are the
        runner's own."""
        shared = self._shared["inputs"].arrays.tensors[: len(self._case.scalars)]
        return all(map(same_bits, shared, held.tensors))

    @property
    def current(self) -> list[torch.Tensor]:
        """Inputs and weights as `inputs_changed` last saw them."""
        return self._shared["inputs"].arrays.tensors

    def operators(self, seconds: float) -> dict[str, int]:
        """Torch operators that one call dispatches, with their counts."""
        return dict(self._ask({"op": "trace"}, seconds)["operators"])

    def block(self, seed: int, calls: int, seconds: float, secret: int = 0) -> Block:
        """Time so many calls on fresh values; the mirror follows. `seed` and `secret` decide the
        values, which the runner is told call by call, and which elements are looked at. Raises as
        `load` does, and RunnerForged for times that cannot be."""
        self._poison()
        drawn = _Drawn(seed, secret, calls)
        ahead, look = 32 in self._without, self._looking()
        looks = self._looks(drawn.looks) if look == "outside" else None
        waited, delayed = self._runner.waited_ns(), own_wait_ns()
        busy, worked = self._runner.busy_ns(), self._runner.worked_ns()
        began = time.perf_counter_ns()
        self._runner.send({"op": "block", "look": look})
        patience = self._patience(seconds)
        self._runner.feed(drawn.tokens(look == "inside"), patience, looks, ahead)
        reply = self._checked(self._runner.await_answer(patience))
        if looks is not None and looks.refused:
            raise KernelFailed("refused", f"its outputs cannot be read: {looks.refused}")
        if not ahead:
            self._runner.finish_feeding()
        _check_times(reply, calls)
        wall = time.perf_counter_ns() - began
        waited = self._runner.waited_ns() - waited
        delayed = own_wait_ns() - delayed
        busy = self._runner.busy_ns() - busy
        worked = self._runner.worked_ns() - worked
        if self._mirror is not None:
            self._mirror.replay(drawn.seeds)
        try:
            self.called_ns += sum(reply["walls_ns"])
            return Block(
                times=tuple(reply["times_ns"]),
                walls=tuple(reply["walls_ns"]),
                spans=tuple((calls, ns, waited) for calls, ns, waited in reply["spans"]),
                refresh_ns=reply["refresh_ns"],
                touch_ns=reply["touch_ns"],
                total_ns=reply["total_ns"],
                wall_ns=wall,
                waited_ns=waited,
                delayed_ns=delayed,
                busy_ns=busy,
                threads=(reply["threads"][0], reply["threads"][1]),
                patched=reply["patched"],
                draws=drawn.looks,
                looks=tuple(map(bytes.fromhex, reply["looks"]) if looks is None else looks.looks),
                inputs=() if looks is None else tuple(looks.inputs),
                late=0 if looks is None else looks.late,
                worked_ns=worked,
                seeds=tuple(drawn.seeds),
                idles=tuple(reply["idles_ns"]),
                diverted=reply["diverted"],
                moded=reply["moded"],
                inside_ns=int(reply["inside_ns"]),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            # A candidate can replace what writes the answer; it does not end the supervisor.
            raise RunnerForged(
                f"an answer of another form: {error!r}", reply, self._runner.log
            ) from error

    def _looking(self) -> Literal["outside", "inside", ""]:
        """Who looks at the outputs of every call: this process, the runner, or nobody."""
        if self._runner.settings.device != "cpu":
            return "inside" if self._without.isdisjoint(EVERY_CALL_ON_GPU) else ""
        if not self._without.isdisjoint(EVERY_CALL):
            return ""
        told = not self._without.isdisjoint(TOLD) or not self._runner.readable
        return "inside" if told else "outside"

    def _looks(self, draws: Sequence[bytes]) -> Looks:
        shared = self._shared["inputs"].arrays.tensors[: len(self._case.scalars)]
        return Looks(self._runner.pid, outputs_of(self._expected), draws, shared)

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The shared memory of the outputs, as the last call left it."""
        return self._shared["outputs"].arrays.tensors

    def leave(self, results: Sequence[torch.Tensor]) -> None:
        """Let the runner's memory hold these results before every call: the right results, as in
        harnesses whose reference runs in the candidate's process (without defence 5 or 11)."""
        self._left = results

    def _poison(self) -> None:
        """Nothing that an earlier call left may pass for this one's result."""
        if self._left is not None:
            for tensor, result in zip(self.outputs, self._left, strict=True):
                tensor.copy_(result)
            return
        for tensor in self.outputs:
            data = _bytes(tensor)
            data[:: 1 if data.numel() <= SMALL_BYTES else POISON_STEP].fill_(POISON_BYTE)

    def _ask(self, message: Mapping[str, Any], seconds: float, fds: Sequence[int] = ()) -> Any:
        return self._checked(self._runner.ask(message, fds, seconds=seconds))

    def _checked(self, reply: dict[str, Any]) -> dict[str, Any]:
        if not reply.get("ok"):
            raise KernelFailed(
                str(reply.get("failure")), str(reply.get("message")), str(reply.get("log", ""))
            )
        return reply

    def close(self, reusable: bool = False) -> None:
        """Give the memory back. `reusable` says that the process has ended for certain, so that the
        memory may serve another kernel."""
        for shared in self._shared.values():
            self._store.give(shared, reusable)


class _Drawn:
    """What decides about a block: the seed of each call's values, and the draw of the elements that
    are looked at after it. From a part of either the rest cannot be known."""

    def __init__(self, seed: int, secret: int, calls: int) -> None:
        name = f"{seed} {secret}".encode()
        words = hashlib.shake_256(name).digest(2 * calls * DRAW_BYTES)
        halves = [words[at : at + DRAW_BYTES] for at in range(0, len(words), DRAW_BYTES)]
        self._seeds, self.looks = halves[:calls], tuple(halves[calls:])

    @property
    def seeds(self) -> list[int]:
        """Of the calls, in their order."""
        return [int.from_bytes(drawn, "little") for drawn in self._seeds]

    def tokens(self, told: bool) -> list[bytes]:
        """One for each call and one for the end. `told` puts the draws of the looks into them."""
        nothing = bytes(DRAW_BYTES)
        draws = [nothing, *(self.looks if told else [nothing] * len(self.looks))]
        seeds = [*self._seeds, nothing]
        last = len(seeds) - 1
        return [token(n < last, *pair) for n, pair in enumerate(zip(seeds, draws, strict=True))]


def _check_times(reply: Mapping[str, Any], calls: int) -> None:
    """As many times as calls, all of them possible, and spans that are made of them."""
    times, spans = reply["times_ns"], reply["spans"]
    if len(times) != calls or min(times) <= 0:
        raise RunnerForged(f"times of {len(times)} calls instead of {calls}")
    if sum(n for n, _, _ in spans) != calls or sum(ns for _, ns, _ in spans) != sum(times):
        raise RunnerForged("spans that are not made of the calls' times")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0).byte()


def _bank_spec(bank: torch.Tensor | None) -> tuple[str, Sequence[int]]:
    return ("uint8", (0,)) if bank is None else (dtype_name(bank.dtype), bank.shape)
