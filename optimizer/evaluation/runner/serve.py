"""The life of a runner: import, wait, set one kernel up, call it as requested, end.

Requests: `load`, `renew`, `inputs`, `call`, `block`, `trace`, `forbid`, `bye`. A failure of the
candidate is a reply with the kind of failure; the supervisor draws the conclusions.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from optimizer.evaluation.runner import clocks, fresh_values
from optimizer.evaluation.runner.confine import confine, forbid_calls, leave_ipc
from optimizer.evaluation.runner.constructor import init_arguments
from optimizer.evaluation.runner.defences import Defences
from optimizer.evaluation.runner.fresh_values import GpuValueWriter, LateChange, refresh
from optimizer.evaluation.runner.kernels import (
    CallableKernel,
    KernelError,
    library_kernel,
    module_kernel,
    traced,
)
from optimizer.evaluation.runner.library import forbid_library
from optimizer.evaluation.runner.memory import (
    READABLE,
    Arrays,
    HeldMemory,
    KernelReader,
    OutputRefused,
    Snapshots,
    check,
    pin,
    placements_from,
    read_elements,
    report,
    resolved,
    settled,
    store,
    unpin,
)
from optimizer.evaluation.runner.wire import (
    CALL,
    DRAW_BYTES,
    REQUEST,
    TOKEN_BYTES,
    Wire,
    WireClosed,
    draw_in,
    seed_in,
)

JOIN_SECONDS = 5.0
# Elements, and calls: enough that some replace few elements and some many.
REHEARSED, REHEARSALS = 1 << 18, 6
FREED_COPIES = 9  # of results that are left in freed memory
Reply = dict[str, Any]
ARRAYS = ("inputs", "banks", "outputs")
MAX_TRACE = 4_000  # characters of a traceback


def settle_torch(threads: int, device: str) -> None:
    """Settings of every runner before it knows its kernel; on a GPU, the context too."""
    torch.set_num_threads(threads)
    if device == "cuda":
        # As for the golden results; a candidate that may use less precision sets it itself.
        torch.backends.cudnn.allow_tf32 = False
        torch.zeros(1, device="cuda")
        clocks.prepare_hold()
        fresh_values.prepare()
        _rehearse()


def _rehearse() -> None:
    """Make the driver load the functions that fresh values, clocks and samples use, before the
    first evaluation waits for them: it loads each at its first launch."""
    own, bank = torch.rand(2, REHEARSED, device="cuda")
    host, clock, snapshots = bank.cpu(), clocks.CudaClock(REHEARSED), Snapshots()
    writer = GpuValueWriter()
    writer.prepare([bank])
    for seed in range(REHEARSALS):
        pending = refresh([own], [bank], seed, late=True, host_banks=[host], write=writer)
        torch.cuda.synchronize()
        result, _, _ = clock.time(own.clone, pending)
        snapshots.take([result])
        snapshots.read(bytes(DRAW_BYTES))
    store([own], [host])
    torch.cuda.empty_cache()


class Runner:
    """One kernel and its arrays."""

    def __init__(self, wire: Wire, tokens: int, device: str) -> None:
        self._wire = wire
        self._tokens = tokens
        self._device = device
        self._defences = Defences()
        self._kernel: CallableKernel | None = None
        self._confined: list[str] | None = None
        self._targets: list[torch.Tensor | None] = []
        self._banks: list[torch.Tensor | None] = []
        self._expected: list[tuple[str, list[int]]] = []
        self._keys: tuple[str, ...] = ()
        self._mapped: dict[str, Arrays] = {}
        self._forbids = False
        self._pinned = False  # the outputs' memory
        self._last: Any = None
        self._reported: list[torch.Tensor] = []
        self._snapshots = Snapshots()
        self._reader = KernelReader()
        self._held = HeldMemory()
        self._shared: frozenset[int] = frozenset()  # outputs in which the reference shares memory
        self._freed: list[torch.Tensor] = []
        self._clock = clocks.CpuClock()
        self._writer = GpuValueWriter() if device == "cuda" else None

    def serve(self) -> None:
        """Answer requests until the supervisor leaves."""
        # Held by this frame, which runs before any candidate is imported.
        original = clocks.original_functions().comparison()
        every, over, same, code, call, functions, codes, getters, names, _ = original
        answers: Mapping[str, Callable[[dict[str, Any], list[int]], Reply]] = {
            "load": self._load,
            "renew": self._renew,
            "inputs": self._inputs,
            "call": self._call,
            "block": partial(self._block, original=original, read=os.read, write=os.write),
            "trace": self._trace,
            "forbid": self._forbid,
        }
        word = ctypes.c_uint64(READABLE)  # lives as long as this frame
        ready = {"ready": True, "pid": os.getpid(), "word": ctypes.addressof(word)}
        self._wire.send({"ok": True, **ready})
        send = self._wire.sender()
        while True:
            message, fds = self._wire.receive()
            if message["op"] == "bye":
                return
            # Compared and sent in this frame, which no candidate can replace.
            intact = every(over(same, over(code, functions), codes))
            intact = every(over(same, over(call, getters, names), functions)) and intact
            reply = self._guarded(answers[message["op"]], message, fds)
            intact = every(over(same, over(code, functions), codes)) and intact
            intact = every(over(same, over(call, getters, names), functions)) and intact
            if not intact and self._defences.watch_runner:
                reply["patched"] = True
            if self._defences.bind_early:
                send(reply)
            else:
                self._wire.send(reply)

    def _guarded(
        self,
        answer: Callable[[dict[str, Any], list[int]], Reply],
        message: dict[str, Any],
        fds: list[int],
    ) -> Reply:
        try:
            return {"ok": True, **answer(message, fds)}
        except OutputRefused as refused:
            return {"ok": False, "failure": "refused", "message": str(refused)}
        except KernelError as error:
            return {"ok": False, "failure": "subject", "message": str(error)}
        except NotImplementedError as error:
            return {
                "ok": False,
                "failure": "unsupported",
                "message": str(error)[:500] or repr(error),
            }
        except MemoryError:
            return {"ok": False, "failure": "memory", "message": "out of memory"}
        except WireClosed:
            raise
        # The candidate may raise anything, SystemExit included; each of it is its failure.
        except BaseException as error:
            log = "".join(traceback.format_exception(error))[-MAX_TRACE:]
            return {"ok": False, "failure": "raised", "message": repr(error)[:500], "log": log}

    # -- load

    def _load(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Map the arrays, give up privileges, set the kernel up. May be requested again, for
        another case of the same candidate."""
        defences = self._defences = Defences(**message["defences"])
        if self._confined is None:
            self._confined = confine(
                _writable_folders(message), message["limits"], landlock=defences.landlock
            )
            if defences.filter_system_calls:
                self._confined += leave_ipc()
                # A GPU's driver may change metadata of its files.
                self._confined += forbid_calls(metadata=self._device == "cpu")
        self._last = self._kernel = None
        self._forbids = bool(message["forbids"])
        self._snapshots = Snapshots()
        self._unpin()
        for name, fd, (rows, size) in zip(ARRAYS, fds, message["arrays"], strict=True):
            self._mapped[name] = Arrays(fd, placements_from(rows), size)
            os.close(fd)
        self._pinned = self._device == "cuda" and pin(self._mapped["outputs"])
        self._expected = [(dtype, shape) for dtype, shape in message["expected"]]
        self._keys = tuple(message["keys"])
        tensors = [self._on_device(t) for t in self._mapped["inputs"].tensors]
        count = len(message["scalars"])
        inputs = [
            t.item() if scalar else t
            for t, scalar in zip(tensors, message["scalars"], strict=False)
        ]
        state = dict(zip(message["state"], tensors[count:], strict=True))
        self._kernel = self._set_up(message, inputs, state)
        if defences.plain_outputs:
            own = self._kernel.call
            self._kernel.call = lambda: settled(own())
        weights: Sequence[torch.Tensor | None] = self._kernel.weights
        self._targets = [*tensors[:count], *(weights or [None] * len(state))]
        self._held, self._shared = HeldMemory(self._targets), frozenset(message["shared"])
        banks = [self._on_device(t) for t in self._mapped["banks"].tensors]
        self._banks = [
            bank if wanted else None for bank, wanted in zip(banks, message["fresh"], strict=True)
        ]
        if self._writer is not None:
            self._writer.prepare(self._banks)
            self._clock = clocks.CudaClock(
                message["flush_bytes"],
                reset_cache=defences.reset_persisting_cache,
                hold=defences.hold_device,
                default_stream=defences.default_stream,
                driver_times=defences.driver_times,
            )
        elif not (defences.bind_early and defences.watch_libraries):
            kind = clocks.CpuClock if defences.bind_early else clocks.LateBoundCpuClock
            self._clock = kind(watch_libraries=defences.watch_libraries)
        return {"notes": self._kernel.notes, "confined": self._confined}

    def _unpin(self) -> None:
        if self._pinned:
            unpin(self._mapped["outputs"])
            self._pinned = False

    def _renew(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Copy the supervisor's values into the shared inputs and banks. `fresh`: only blocks
        follow, which first give every tensor that has a bank other values."""
        del fds
        for target, bank, shared in zip(
            self._targets, self._banks, self._mapped["inputs"].tensors, strict=True
        ):
            if not (message["fresh"] and bank is not None):
                _copy_from(target, shared)
        for bank, shared in zip(self._banks, self._mapped["banks"].tensors, strict=True):
            _copy_from(bank, shared)
        if self._writer is not None:
            self._writer.prepare(self._banks)
        return {}

    def _inputs(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Copy the inputs to shared memory, so that the supervisor sees whether they changed."""
        del message, fds
        for target, shared in zip(self._targets, self._mapped["inputs"].tensors, strict=True):
            if target is not None and target.data_ptr() != shared.data_ptr():
                shared.copy_(target)
        return {}

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device) if self._device != "cpu" else tensor

    def _set_up(
        self, message: dict[str, Any], inputs: list[Any], state: dict[str, torch.Tensor]
    ) -> CallableKernel:
        path, entry = Path(message["path"]), message["entry"]
        if message["kind"] == "interpreter":
            os.environ["TRITON_INTERPRET"] = "1"
        if message["kind"] == "c_abi":
            return library_kernel(
                path, entry, inputs=inputs, state=state, outputs=self._expected, device=self._device
            )
        return module_kernel(
            path,
            entry,
            init_args=init_arguments(message),
            inputs=inputs,
            state=state,
            dtype=message["dtype"],
            device=self._device,
            gradients=message["gradients"],
            overwritten=message["overwritten"],
        )

    # -- calls

    @property
    def _call_kernel(self) -> Callable[[], Any]:
        if self._kernel is None:
            raise KernelError("nothing is loaded")
        return self._kernel.call

    def _call(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """One call on the current inputs; its outputs are copied to shared memory."""
        del message, fds
        self._last = None
        self._fill_freed_memory()
        result, _, wall = self._clock.time(self._call_kernel)
        self._store(result)
        return {"wall_ns": wall}

    def _block(
        self,
        message: dict[str, Any],
        fds: list[int],
        original: clocks.Comparison,
        read: Callable[[int, int], bytes],
        write: Callable[[int, bytes], int],
    ) -> Reply:
        """Time as many calls as the supervisor grants, each on fresh values; their number is never
        in this process. `original`, `read` and `write` are from before the candidate."""
        del fds
        every, over, same, code, apply, functions, codes, getters, names, recorded = original
        defences = self._defences
        watched, last_counts = defences.watch_runner, defences.compare_last_call
        call, clock, sample = self._call_kernel, self._clock, message["sample"]
        before, self._last = threading.active_count(), None
        times, walls, samples = list[int](), list[int](), list[str]()
        refreshed, touched, patched, reported = 0, 0, False, b""
        spans, began = clocks.Spans(), clocks.now_ns()
        spans.leave()
        clock.begin()
        while True:
            token = self._request(REQUEST + reported, read, write)
            if sample == "inside" and self._last is not None:
                samples.append(self._sampled(draw_in(token)).hex())
            if token[:1] != CALL:
                break
            pending, took = self._freshened(seed_in(token))
            refreshed += took
            self._last = None  # freed as by any caller, before the next call allocates
            spans.enter()
            self._last, took, wall = clock.time(call, pending)
            spans.end()
            reported = self._captured(sample, wall)  # before a thread can finish work left undone
            # In a frame that is already running: a function could deny its replacement.
            own = every(over(same, over(code, functions), codes))
            own = every(over(same, over(apply, getters, names), functions)) and own
            patched = patched or (watched and not own)
            times.append(took)
            walls.append(wall)
            spans.add(took)
            spans.leave()
            touched += self._touch()
            if self._forbids:  # after a first call, which may prepare something
                self._forbids = False
                forbid_library()
            if not last_counts and len(times) == 1:
                self._store(self._last)
        spans.close()
        if last_counts:
            self._store(self._last)
        return {
            "total_ns": clocks.now_ns() - began,
            "times_ns": times,
            "walls_ns": walls,
            "samples": samples,
            **spans.known,
            "refresh_ns": refreshed,
            "touch_ns": touched,
            **clock.known,
            "threads": [before, threading.active_count()],
            "patched": patched
            or clocks.replaced(recorded, libraries=defences.watch_libraries, runner=watched),
        }

    def _freshened(self, seed: int) -> tuple[list[LateChange], int]:
        """Give the inputs the fresh values of one call; later calls' seeds are not in this process.
        Returns changes that are pending on the call's stream, and the time this took, in ns."""
        began = clocks.now_ns()
        pending = self._refresh(seed)
        if self._device == "cuda":
            torch.cuda.synchronize()
        return pending, clocks.now_ns() - began

    def _refresh(self, seed: int) -> list[LateChange]:
        defences, on_gpu = self._defences, self._device == "cuda"
        if defences.fresh_values == "none":
            return []
        return refresh(
            self._targets,
            self._banks,
            seed,
            whole=defences.fresh_values == "all",
            spread=defences.fresh_values != "stretch",
            shift=defences.shift_values,
            scatter=defences.scatter_values,
            late=on_gpu and defences.late_inputs,
            host_banks=self._mapped["banks"].tensors,
            rounded=on_gpu,
            write=self._writer,
        )

    def _touch(self) -> int:
        """Read a byte of every page of a call's outputs; the time that took, in ns."""
        if self._device != "cpu" or not self._defences.read_outputs:
            return 0
        outputs = self._outputs()
        started = clocks.now_ns()
        self._reader.touch(outputs)
        return clocks.now_ns() - started

    def _request(
        self, request: bytes, read: Callable[[int, int], bytes], write: Callable[[int, bytes], int]
    ) -> bytes:
        """The supervisor's token, which does not exist before the request."""
        if self._defences.single_tokens:
            write(self._tokens, request)
        if not self._defences.bind_early:
            read = os.read
        return read(self._tokens, TOKEN_BYTES)

    def _outputs(self) -> list[torch.Tensor]:
        """The outputs of the last call, checked and `resolved`."""
        return resolved(self._checked(self._last))

    def _checked(self, result: Any) -> list[torch.Tensor]:
        plain = self._defences.plain_outputs
        return check(result, self._expected, plain, self._keys, self._held, self._shared)

    @property
    def _by_kernel(self) -> KernelReader | None:
        """What reads outputs in host memory; None where pages that are closed do not matter."""
        return self._reader if self._defences.read_outputs and self._device == "cpu" else None

    def _captured(self, sample: str, chance: int) -> bytes:
        """Snapshot sampled outputs of the finished call; returns the bytes that the next request
        reports. `chance` is a number that was unknown before."""
        if sample == "outside":
            self._reported = self._outputs()  # until the supervisor has read them
            draw = chance.to_bytes(DRAW_BYTES, "little")
            return report(self._reported, draw, self._by_kernel)
        if sample and self._device == "cuda":
            self._snapshots.take(self._outputs())
        return b""

    def _sampled(self, draw: bytes) -> bytes:
        """Bytes of the drawn elements of the last call's outputs."""
        if self._device == "cuda":
            return self._snapshots.read(draw)
        return read_elements(self._outputs(), draw, reader=self._by_kernel)

    def _store(self, result: Any) -> None:
        if not self._defences.take_outputs_at_once:
            join_threads()
        outputs = self._checked(result)
        if self._by_kernel is not None:
            self._by_kernel.touch(outputs)
        store(outputs, self._mapped["outputs"].tensors)

    def _fill_freed_memory(self) -> None:
        """Free memory that holds the shared outputs, which the candidate's allocator reuses. They
        hold a pattern, or, without `hide_results`, the right results, as in a harness that runs the
        reference in the same process."""
        count = 1 if self._defences.hide_results else FREED_COPIES
        for shared in self._mapped["outputs"].tensors:
            copies = [self._on_device(shared).clone() for _ in range(count)]
            self._freed = copies[2::2]  # keeps the memory before them from going to the system

    def _forbid(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Torch's operators fail from now on."""
        del fds, message
        return {"operators": forbid_library()}

    def _trace(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """The operators that one call dispatches."""
        del fds, message
        return {"operators": traced(self._call_kernel)}


def _writable_folders(message: dict[str, Any]) -> list[Path]:
    """The scratch folder, and the cache of compilers that all processes of an evaluation share."""
    folders = [Path(message["scratch"])]
    if message["cache"] is not None:
        cache = Path(message["cache"])
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
        os.environ["TORCH_EXTENSIONS_DIR"] = str(cache / "extensions")
        # Inductor puts its precompiled headers among temporary files.
        os.environ["TMPDIR"] = tempfile.tempdir = str(cache)
        folders.append(cache)
    return folders


def _copy_from(own: torch.Tensor | None, shared: torch.Tensor) -> None:
    """Copy shared memory into a tensor of the kernel that is not itself in it."""
    if own is not None and own.data_ptr() != shared.data_ptr():
        own.copy_(shared)


def join_threads() -> None:
    """Wait for threads that calls left running."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)


# Every module of the runner is imported by now, and no candidate.
