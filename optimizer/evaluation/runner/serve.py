"""The runner's life: import, wait, set one kernel up, call it as requested, die.

Requests: `load`, `renew`, `inputs`, `call`, `block`, `trace`, `bye`. A failure of the candidate is
an answer, with the kind of failure; what the supervisor concludes from it is not known here.
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

from optimizer.evaluation.runner import clocks, fresh, hold
from optimizer.evaluation.runner.clocks import Spans
from optimizer.evaluation.runner.confine import confine, leave_ipc
from optimizer.evaluation.runner.kernels import (
    CallableKernel,
    KernelError,
    library_kernel,
    module_kernel,
    traced,
)
from optimizer.evaluation.runner.memory import (
    Arrays,
    LateChange,
    OutputRefused,
    check,
    pin,
    places_from,
    refresh,
    store,
    touch,
    unpin,
)
from optimizer.evaluation.runner.samples import (
    CALL,
    DRAW_BYTES,
    READABLE,
    REQUEST,
    TOKEN_BYTES,
    Snapshots,
    draw_in,
    read_elements,
    resolved,
    seed_in,
    show,
)
from optimizer.evaluation.runner.system_calls import forbid_calls
from optimizer.evaluation.runner.wire import Wire, WireClosed

JOIN_SECONDS = 5.0
# Elements, and calls among which are some that replace few elements and some that replace many.
REHEARSED, REHEARSALS = 1 << 18, 6
COPIES = 9  # of the right results, where they are left in freed memory
Reply = dict[str, Any]
ARRAYS = ("inputs", "banks", "outputs")
MAX_TRACE = 4_000  # characters of a traceback


def settle_torch(threads: int, device: str) -> None:
    """Settings that every runner makes before it knows its kernel; on a GPU, the context too."""
    torch.set_num_threads(threads)
    if device == "cuda":
        # As for the golden results: where a problem allows less precision, a candidate asks for it.
        torch.backends.cudnn.allow_tf32 = False
        torch.zeros(1, device="cuda")
        hold.prepare()
        fresh.prepare()
        _rehearse()


def _rehearse() -> None:
    """Let the driver load what fresh values, clocks and looks take of torch, before anybody waits:
    it loads each function of a device at its first launch."""
    own, bank = torch.rand(2, REHEARSED, device="cuda")
    near, clock, snapshots = bank.cpu(), clocks.CudaClock(REHEARSED), Snapshots()
    writer = fresh.Writer()
    writer.prepare([bank])
    for call in range(REHEARSALS):
        left = refresh([own], [bank], 0, call, late=True, near=[near], write=writer)
        torch.cuda.synchronize()
        result, _, _ = clock.time(own.clone, left)
        snapshots.take([result])
        snapshots.read(bytes(DRAW_BYTES))
    store([own], [near])
    torch.cuda.empty_cache()


class Runner:
    """One kernel and its arrays."""

    def __init__(self, wire: Wire, tokens: int, device: str) -> None:
        self._wire = wire
        self._tokens = tokens
        self._device = device
        self._kernel: CallableKernel | None = None
        self._confined: list[str] | None = None
        self._targets: list[torch.Tensor | None] = []
        self._banks: list[torch.Tensor | None] = []
        self._expected: list[tuple[str, list[int]]] = []
        self._keys: tuple[str, ...] = ()
        self._mapped: dict[str, Arrays] = {}
        self._pinned = False  # the outputs' memory
        self._last: Any = None
        self._kept: list[torch.Tensor] = []
        self._snapshots = Snapshots()
        self._without: frozenset[int] = frozenset()
        self._fence: list[torch.Tensor] = []
        self._clock = clocks.CpuClock()
        self._writer = fresh.Writer() if device == "cuda" else None

    def serve(self) -> None:
        """Answer requests until the supervisor leaves."""
        # Held by this frame, which runs before any candidate is there.
        seen = clocks.as_started().compared()
        every, over, same, code, call, functions, codes, getters, names, _ = seen
        answers: Mapping[str, Callable[[dict[str, Any], list[int]], Reply]] = {
            "load": self._load,
            "renew": self._renew,
            "inputs": self._inputs,
            "call": self._call,
            "block": partial(self._block, seen=seen, read=os.read, write=os.write),
            "trace": self._trace,
        }
        word = ctypes.c_uint64(READABLE)  # held as long as this frame
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
            if not self._without.isdisjoint((13, 40)):  # a replaced `send` is what they win by
                self._wire.send(reply)
                continue
            if not intact and self._without.isdisjoint((4, 13, 35)):
                reply["patched"] = True
            send(reply)

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
        except MemoryError:
            return {"ok": False, "failure": "memory", "message": "out of memory"}
        except WireClosed:
            raise
        # The candidate's code may raise anything at all, SystemExit included, and fails by it.
        except BaseException as error:
            log = "".join(traceback.format_exception(error))[-MAX_TRACE:]
            return {"ok": False, "failure": "raised", "message": repr(error)[:500], "log": log}

    # -- load

    def _load(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Map the arrays, give up privileges, set the kernel up. May be requested again, for
        another case of the same candidate."""
        # Rows of the exploit table whose defence is off (`doctor --exploits --without`).
        self._without = frozenset(message["without"])
        if self._confined is None:
            self._confined = confine(
                _own_folders(message), message["limits"], landlock=24 not in self._without
            )
            if 31 not in self._without:
                self._confined += leave_ipc()
                # A driver for a GPU may change metadata of its own files.
                self._confined += forbid_calls(metadata=self._device == "cpu")
        self._last = self._kernel = None
        self._snapshots = Snapshots()
        self._unpin()
        for name, fd, (rows, size) in zip(ARRAYS, fds, message["arrays"], strict=True):
            self._mapped[name] = Arrays(fd, places_from(rows), size)
            os.close(fd)
        self._pinned = self._device == "cuda" and pin(self._mapped["outputs"])
        self._expected = [(dtype, shape) for dtype, shape in message["expected"]]
        self._keys = tuple(message["keys"])
        tensors = [self._here(t) for t in self._mapped["inputs"].tensors]
        count = message["inputs"]
        inputs = [
            self._value(t, kind) for t, kind in zip(tensors, message["scalars"], strict=False)
        ]
        state = dict(zip(message["state"], tensors[count:], strict=True))
        self._kernel = self._set_up(message, inputs[:count], state)
        weights: Sequence[torch.Tensor | None] = self._kernel.weights
        self._targets = [*tensors[:count], *(weights or [None] * len(state))]
        banks = [self._here(t) for t in self._mapped["banks"].tensors]
        fresh = message["fresh"]
        self._banks = [b if wanted else None for b, wanted in zip(banks, fresh, strict=True)]
        if self._writer is not None:
            self._writer.prepare(self._banks)
            self._clock = clocks.CudaClock(
                message["flush_bytes"],
                forget=21 not in self._without,
                occupy=self._without.isdisjoint((37, 48)),
                same_stream=45 not in self._without,
                straight=50 not in self._without,
            )
        elif 4 in self._without:
            self._clock = clocks.TrustingCpuClock()
        return {
            "notes": self._kernel.notes,
            "threads": threading.active_count(),
            "confined": self._confined,
        }

    def _unpin(self) -> None:
        if self._pinned:
            unpin(self._mapped["outputs"])
            self._pinned = False

    def _renew(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Take what the supervisor wrote into the shared inputs and banks. `fresh` says that only
        blocks follow, which give every tensor that has a bank other values first."""
        del fds
        for target, bank, shared in zip(
            self._targets, self._banks, self._mapped["inputs"].tensors, strict=True
        ):
            if not (message["fresh"] and bank is not None):
                _copied(target, shared)
        for bank, shared in zip(self._banks, self._mapped["banks"].tensors, strict=True):
            _copied(bank, shared)
        if self._writer is not None:
            self._writer.prepare(self._banks)
        return {}

    def _inputs(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Show what the inputs hold now, so that the supervisor sees whether they were changed."""
        del message, fds
        for target, shared in zip(self._targets, self._mapped["inputs"].tensors, strict=True):
            if target is not None and target.data_ptr() != shared.data_ptr():
                shared.copy_(target)
        return {}

    def _here(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device) if self._device != "cpu" else tensor

    def _value(self, tensor: torch.Tensor, scalar: bool) -> Any:
        return tensor.item() if scalar else tensor

    def _set_up(
        self, message: dict[str, Any], inputs: list[Any], state: dict[str, torch.Tensor]
    ) -> CallableKernel:
        path, entry = Path(message["path"]), message["entry"]
        if message["kind"] == "interpreter":
            os.environ["TRITON_INTERPRET"] = "1"
        if message["kind"] == "c_abi":
            return library_kernel(
                path,
                entry,
                inputs=inputs,
                state=state,
                outputs=self._expected,
                device=self._device,
            )
        return module_kernel(
            path,
            entry,
            init_args=message["init_args"],
            inputs=inputs,
            state=state,
            seed=message["seed"],
            dtype=message["dtype"],
            device=self._device,
        )

    # -- calls

    @property
    def _call_kernel(self) -> Callable[[], Any]:
        if self._kernel is None:
            raise KernelError("nothing is loaded")
        return self._kernel.call

    def _call(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """One call on the inputs as they are; its outputs go to shared memory."""
        del fds
        self._last = None
        self._leave_behind()
        result, took, wall = self._clock.time(self._call_kernel)
        self._store(result)
        return {"ns": took, "wall_ns": wall, "threads": threading.active_count()}

    def _block(
        self,
        message: dict[str, Any],
        fds: list[int],
        seen: clocks.Compared,
        read: Callable[[int, int], bytes],
        write: Callable[[int, bytes], int],
    ) -> Reply:
        """Time as many calls as the supervisor grants, each on fresh values; their number is never
        in this process. `seen`, `read` and `write` are of before the candidate was there."""
        del fds
        every, over, same, code, apply, functions, codes, getters, names, started = seen
        watched = self._without.isdisjoint((4, 13, 35, 40))
        call, clock, look = self._call_kernel, self._clock, message["look"]
        before, self._last = threading.active_count(), None
        times, walls, looks = list[int](), list[int](), list[str]()
        refreshed, touched, patched, shown = 0, 0, False, b""
        spans, began = Spans(), clocks.now_ns()
        spans.leave()
        clock.begin()
        while True:
            token = self._answer(REQUEST + shown, read, write)
            if look == "inside" and self._last is not None:
                looks.append(self._looked_at(draw_in(token)).hex())
            if token[:1] != CALL:
                break
            left, took = self._freshened(seed_in(token))
            refreshed += took
            self._last = None  # freed like any caller's, before the next call allocates
            spans.enter()
            self._last, took, wall = clock.time(call, left)
            spans.end()
            shown = self._seen(look, wall)  # before a thread can finish what was left
            # In a frame that runs already: a function could deny its replacement.
            own = every(over(same, over(code, functions), codes))
            own = every(over(same, over(apply, getters, names), functions)) and own
            patched = patched or (watched and not own)
            times.append(took)
            walls.append(wall)
            spans.add(took)
            spans.leave()
            touched += self._touch()
            if 9 in self._without and len(times) == 1:
                self._store(self._last)
        spans.close()
        if 9 not in self._without:
            self._store(self._last)
        return {
            "total_ns": clocks.now_ns() - began,
            "times_ns": times,
            "walls_ns": walls,
            "looks": looks,
            **spans.known,
            "refresh_ns": refreshed,
            "touch_ns": touched,
            **clock.known,
            "threads": [before, threading.active_count()],
            "patched": 41 not in self._without
            and (patched or clocks.replaced(started, self._without.isdisjoint((13, 35)))),
        }

    def _freshened(self, seed: int) -> tuple[list[LateChange], int]:
        """Give the inputs fresh values; returns what is left to do on the stream of the call, and
        how long this took, in nanoseconds."""
        began = clocks.now_ns()
        left = self._fresh(seed)
        if self._device == "cuda":
            torch.cuda.synchronize()
        return left, clocks.now_ns() - began

    def _fresh(self, seed: int) -> list[LateChange]:
        """The seed is that of one call alone: what later calls get is not in this process."""
        if not self._without.isdisjoint((7, 8)):
            return []
        spread, whole = 33 not in self._without, self._without.isdisjoint((33, 34, 35))
        late = self._device == "cuda" and self._without.isdisjoint((1, 37))
        moved = (38 if self._device == "cpu" else 49) not in self._without
        near, on_gpu = self._mapped["banks"].tensors, self._device == "cuda"
        return refresh(
            self._targets,
            self._banks,
            seed,
            0,
            spread,
            whole,
            late,
            moved,
            near,
            rounded=on_gpu,
            write=self._writer,
        )

    def _touch(self) -> int:
        """Read the outputs of a call, page by page; how long that took, in nanoseconds."""
        if self._device != "cpu" or 36 in self._without:
            return 0
        started = clocks.now_ns()
        touch(self._last)
        return clocks.now_ns() - started

    def _answer(
        self,
        request: bytes,
        read: Callable[[int, int], bytes],
        write: Callable[[int, bytes], int],
    ) -> bytes:
        """Ask the supervisor whether the block goes on. The answer does not exist before."""
        if 32 not in self._without:
            write(self._tokens, request)
        if 41 in self._without:
            read = os.read
        return read(self._tokens, TOKEN_BYTES)

    def _checked(self) -> list[torch.Tensor]:
        """The outputs of the last call, as they can be read."""
        return resolved(check(self._last, self._expected, 3 not in self._without, self._keys))

    def _seen(self, look: str, chance: int) -> bytes:
        """Keep what the call that has ended left, as far as somebody looks at it; what the next
        request shows of it. `chance` is a number that nobody knew before."""
        if look == "outside":
            return self._shown(chance)
        if look and self._device == "cuda":
            self._snapshots.take(self._checked())
        return b""

    def _looked_at(self, draw: bytes) -> bytes:
        """The bytes of the elements that this draw decides about, of the last call's outputs."""
        if self._device == "cuda":
            return self._snapshots.read(draw)
        return read_elements(self._checked(), draw)

    def _shown(self, chance: int) -> bytes:
        """What the next request shows of them. `chance` is a number that nobody knew before."""
        self._kept = self._checked()  # until the supervisor has read them
        return show(self._kept, chance.to_bytes(DRAW_BYTES, "little"))

    def _store(self, result: Any) -> None:
        if 2 in self._without:
            join_threads()
        plain = 3 not in self._without
        store(check(result, self._expected, plain, self._keys), self._mapped["outputs"].tensors)

    def _leave_behind(self) -> None:
        """What the outputs' memory holds when the candidate gets it from the allocator.

        Nothing of use: the shared outputs hold a pattern. Without defence 5 the supervisor puts the
        right results there, as a harness does that runs the reference in the same process first.
        """
        count = 1 if self._without.isdisjoint((5, 22)) else COPIES
        for shared in self._mapped["outputs"].tensors:
            copies = [self._here(shared).clone() for _ in range(count)]
            self._fence = copies[2::2]  # what lies before them does not go back to the system

    def _trace(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Which operators one call really ran."""
        del fds, message
        return {"operators": traced(self._call_kernel)}


def _own_folders(message: dict[str, Any]) -> list[Path]:
    """Where it may write: its scratch folder, and what its compilers keep for the other processes
    of the same evaluation."""
    folders = [Path(message["scratch"])]
    if message["cache"] is not None:
        cache = Path(message["cache"])
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
        os.environ["TORCH_EXTENSIONS_DIR"] = str(cache / "extensions")
        # Inductor keeps its precompiled headers in the folder of temporary files.
        os.environ["TMPDIR"] = tempfile.tempdir = str(cache)
        folders.append(cache)
    return folders


def _copied(own: torch.Tensor | None, shared: torch.Tensor) -> None:
    """Copy shared memory into a tensor of the kernel, where that is another one."""
    if own is not None and own.data_ptr() != shared.data_ptr():
        own.copy_(shared)


def join_threads() -> None:
    """Wait for threads that calls left running: a harness that compares later does not see them
    (without defence 2)."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)


# Every module of the runner is imported by now, and no candidate.
