"""A stand-in for Gluon's Blackwell calls on the CPU: runs a sample's algorithm, not its layouts.

Every partition of a warp-specialised kernel is a thread. Copies by TMA and work of the tensor core
happen later than they are issued, after random pauses: copies in any order, tensor work in order.
So a stage that is overwritten too early, a phase that is waited for wrongly or a missing commit
shows as a wrong value or as a wait without end, which is an error here. Arithmetic is float64.

It knows no shapes that the hardware would refuse, no swizzles, and no proxies or fences.
"""

from __future__ import annotations

import ast
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch

PATIENCE = 10.0  # seconds after which a wait counts as one without end
PAUSE = 2e-4  # seconds: the longest that the machine delays a copy or a product

_here = threading.local()  # the block that this thread belongs to


class WaitsForever(Exception):
    """A barrier's phase did not come."""


class Values(np.ndarray):
    """What a partition holds in registers."""

    @property
    def type(self) -> SimpleNamespace:
        return SimpleNamespace(layout=None)

    def to(self, dtype: object) -> Values:
        del dtype  # everything is float64
        return self


def _values(array: Any) -> Values:
    return np.array(array, dtype=np.float64).view(Values)


class Memory:
    """Shared memory, or a view of it that is only looked at when it is used."""

    def __init__(self, array: np.ndarray, view: Callable[[np.ndarray], np.ndarray] | None = None):
        self.array = array
        self.view = view or (lambda held: held)
        self.dtype, self.layout = "float64", None

    @property
    def shape(self) -> list[int]:
        return list(self.view(self.array).shape)

    def read(self) -> np.ndarray:
        return np.array(self.view(self.array))

    def write(self, values: np.ndarray) -> None:
        place = self.view(self.array)
        assert np.shares_memory(place, self.array) and place.shape == values.shape
        place[...] = values

    def index(self, i: int) -> Memory:
        return Memory(self.array[i])

    def permute(self, order: Sequence[int]) -> Memory:
        return Memory(self.array, lambda held: self.view(held).transpose(order))

    def reshape(self, shape: Sequence[int]) -> Memory:
        return Memory(self.array, lambda held: self.view(held).reshape(shape))

    def load(self, layout: object) -> Values:
        del layout
        return _values(self.read())

    def store(self, values: np.ndarray) -> None:
        self.write(values)


class TensorMemory(Memory):
    """Columns of one wide number or of two narrow ones. A wide number marks its second half, so
    that what was written as one kind is no number when it is read as the other."""

    WIDE = np.inf

    def __init__(self, array: np.ndarray, packed: bool = False):
        super().__init__(array)
        self.packed = packed

    @staticmethod
    def empty(shape: Sequence[int]) -> TensorMemory:
        return TensorMemory(np.full((*shape, 2), np.nan))

    @property
    def shape(self) -> list[int]:
        *rows, columns, halves = self.array.shape
        return [*rows, columns * halves if self.packed else columns]

    def read(self) -> np.ndarray:
        wide = self.array[..., 1] == self.WIDE
        if not self.packed:
            return np.where(wide, self.array[..., 0], np.nan)
        return np.where(wide[..., None], np.nan, self.array).reshape(self.shape)

    def load(self, layout: object) -> Values:
        _here.block.pause()
        return super().load(layout)

    def write(self, values: np.ndarray) -> None:
        assert list(values.shape) == self.shape, "a store of another shape"
        if self.packed:
            self.array[...] = np.asarray(values).reshape(self.array.shape)
        else:
            self.array[..., 0], self.array[..., 1] = values, self.WIDE

    def index(self, i: int) -> TensorMemory:
        return TensorMemory(self.array[i])

    def slice(self, start: int, length: int) -> TensorMemory:
        in_column = 2 if self.packed else 1
        columns = slice(start // in_column, (start + length) // in_column)
        return TensorMemory(self.array[..., columns, :], self.packed)

    def _reinterpret(self, dtype: str, shape: Sequence[int], layout: object) -> TensorMemory:
        del layout
        view = TensorMemory(self.array, packed=dtype == "bfloat16")
        assert view.shape == list(shape), "the columns hold another number of elements"
        return view


class Barrier:
    """mbarrier: a phase ends when all have arrived and all expected bytes have come."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.missing = self.bytes = self.completed = 0

    def init(self, count: int) -> None:
        self.count = self.missing = count

    def add(self, arrivals: int = 0, expected: int = 0, came: int = 0) -> None:
        with self.changed:
            assert self.count, "a barrier that was not initialised"
            self.missing -= arrivals
            self.bytes += expected - came
            assert self.missing >= 0, "more arrivals than the barrier counts"
            if self.missing == 0 and self.bytes == 0:
                self.completed += 1
                self.missing = self.count
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.completed & 1 != int(parity), PATIENCE):
                raise WaitsForever(f"phase {parity}, {self.completed} completed")


class Barriers(list[Barrier]):
    """An array of barriers; one alone is the array itself."""

    def index(self, i: int) -> Barriers:  # type: ignore[override]
        return Barriers([self[i]])


class Block:
    """One block: its place in the grid, the tensor core's queue, and its copies."""

    def __init__(self, place: tuple[int, ...], grid: tuple[int, ...], warps: int):
        self.place, self.grid, self.warps = place, grid, warps
        self.random = random.Random(repr(place))
        self.tensor_work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.copies = ThreadPoolExecutor(4)
        self.stores: list[Future[None]] = []
        self.faults: list[BaseException] = []
        self.tensor_core = threading.Thread(target=self._work, daemon=True)
        self.tensor_core.start()

    def pause(self) -> None:
        time.sleep(self.random.random() * PAUSE)

    def _work(self) -> None:
        while (work := self.tensor_work.get()) is not None:
            self.pause()
            try:
                work()
            except BaseException as fault:
                self.faults.append(fault)

    def close(self) -> None:
        self.tensor_work.put(None)
        self.tensor_core.join(PATIENCE)
        self.copies.shutdown()
        if self.faults:
            raise self.faults[0]


@dataclass
class Descriptor:
    """A tensor and its box; `base` is a torch tensor of any dtype."""

    base: torch.Tensor
    block_type: SimpleNamespace
    dtype: str = "float64"
    layout: object = None

    @staticmethod
    def from_tensor(tensor: torch.Tensor, box: Sequence[int], layout: object) -> Descriptor:
        nbytes = prod(box) * tensor.element_size()
        kind = SimpleNamespace(shape=list(box), nbytes=nbytes)
        return Descriptor(tensor, kind, layout=layout)

    def _cut(self, corner: Sequence[int]) -> tuple[slice, ...]:
        sizes = zip(corner, self.block_type.shape, self.base.shape, strict=True)
        return tuple(slice(at, min(at + box, size)) for at, box, size in sizes)

    def fetch(self, corner: Sequence[int]) -> np.ndarray:
        box = np.zeros(self.block_type.shape)
        part = self.base[self._cut(corner)].to(torch.float64).numpy()
        box[tuple(slice(0, size) for size in part.shape)] = part
        return box

    def put(self, corner: Sequence[int], box: np.ndarray) -> None:
        cut = self._cut(corner)
        inside = box[tuple(slice(0, max(0, c.stop - c.start)) for c in cut)]
        if inside.size:
            self.base[cut] = torch.from_numpy(inside.copy()).to(self.base.dtype)


class Kernel:
    """What `gluon.jit` makes: called on the device, or launched over a grid by the host."""

    def __init__(self, function: FunctionType):
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int, **constants: Any) -> None:
            names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
            if "num_warps" in names:
                constants["num_warps"] = num_warps
            for place in np.ndindex(*grid):
                _here.block = Block(place, grid, num_warps)
                self.function(*args, **constants)
                _here.block.close()

        return launch


def _warp_specialize(
    parts: Sequence[tuple[Kernel, tuple[Any, ...]]],
    worker_num_warps: Sequence[int],
    worker_num_regs: Sequence[int] | None = None,
) -> None:
    block = _here.block
    warps = [block.warps, *worker_num_warps]
    assert len(warps) == len(parts)
    assert worker_num_regs is None or len(worker_num_regs) == len(worker_num_warps)

    def run(part: tuple[Kernel, tuple[Any, ...]], count: int) -> None:
        _here.block, _here.warps = block, count
        try:
            part[0](*part[1])
        except BaseException as fault:
            block.faults.append(fault)

    threads = [
        threading.Thread(target=run, args=(part, count), daemon=True)
        for part, count in zip(parts, warps, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if block.faults:
        raise block.faults[0]


def _allocate_shared(dtype: object, shape: Sequence[int], layout: object) -> Memory | Barriers:
    del dtype
    if layout == "barriers":
        return Barriers(Barrier() for _ in range(shape[0]))
    return Memory(np.full(shape, np.nan))


def _load_box(desc: Descriptor, corner: Any, bar: Barriers, into: Memory, pred: Any = True) -> None:
    block = _here.block

    def copy() -> None:
        block.pause()
        into.write(desc.fetch(corner))
        bar[0].add(came=desc.block_type.nbytes)

    if pred:
        block.copies.submit(copy)


def _store_box(desc: Descriptor, corner: Sequence[int], source: Memory) -> None:
    block = _here.block

    def copy() -> None:
        block.pause()
        desc.put(corner, source.read())

    block.stores.append(block.copies.submit(copy))


def _store_wait(pendings: int) -> None:
    stores = _here.block.stores
    for store in stores[: len(stores) - pendings]:
        store.result(PATIENCE)


def _mma(
    a: Memory, b: Memory, acc: Memory, *, use_acc: Any = True, mbarriers: Any = (), **_: Any
) -> None:
    def multiply() -> None:
        total = a.read() @ b.read()
        acc.write(acc.read() + total if use_acc else total)

    _here.block.tensor_work.put(multiply)
    for barrier in mbarriers:
        _commit(barrier)


def _mma_scaled(
    a: Memory, b: Memory, acc: Memory, a_scale: Memory, b_scale: Memory, *_: str, use_acc: Any
) -> None:
    def powers(scale: Memory, width: int) -> np.ndarray:
        count = width // scale.shape[1]
        return np.repeat(2.0 ** (scale.read() - 127), count, axis=1)

    def multiply() -> None:
        left = a.read() * powers(a_scale, a.shape[1])
        right = b.read() * powers(b_scale, b.shape[0]).T
        acc.write(acc.read() + left @ right if use_acc else left @ right)

    _here.block.tensor_work.put(multiply)


def _copy(source: Memory, into: Memory) -> None:
    def copy() -> None:
        into.write(source.read())

    _here.block.tensor_work.put(copy)


def _commit(barrier: Barriers) -> None:
    _here.block.tensor_work.put(lambda: barrier[0].add(arrivals=1))


class _Layout:
    def __init__(self, *args: Any, **fields: Any):
        pass

    @staticmethod
    def get_default_for(box: Sequence[int], dtype: object) -> None:
        return None


def _where(chosen: Any, yes: Any, no: Any) -> Values:
    return _values(np.where(chosen, yes, no))


LANGUAGE = SimpleNamespace(
    constexpr=lambda value: value,
    program_id=lambda axis: _here.block.place[axis],
    num_programs=lambda axis: _here.block.grid[axis],
    num_warps=lambda: getattr(_here, "warps", _here.block.warps),
    cdiv=lambda a, b: -(-a // b),
    minimum=lambda a, b: min(a, b) if np.isscalar(a) else _values(np.minimum(a, b)),
    maximum=lambda a, b: max(a, b) if np.isscalar(a) else _values(np.maximum(a, b)),
    static_range=range,
    allocate_shared_memory=_allocate_shared,
    warp_specialize=_warp_specialize,
    NVMMASharedLayout=_Layout,
    SliceLayout=_Layout,
    BlockedLayout=_Layout,
    SwizzledSharedLayout=_Layout,
    convert_layout=lambda values, layout, assert_trivial=False: values,
    arange=lambda start, end, layout: _values(np.arange(start, end)),
    full=lambda shape, value, dtype, layout: _values(np.full(shape, value)),
    max=lambda values, axis: _values(np.max(values, axis)),
    sum=lambda values, axis: _values(np.sum(values, axis)),
    exp2=lambda values: _values(np.exp2(values)),
    log2=lambda values: _values(np.log2(values)),
    where=_where,
    barrier=lambda: None,
    **{name: name for name in ("int64", "float32", "bfloat16", "float16", "uint8", "float8e4nv")},
)

NAMES: dict[str, Any] = {
    "gluon": SimpleNamespace(jit=Kernel, constexpr_function=lambda function: function),
    "gl": LANGUAGE,
    "TensorDescriptor": Descriptor,
    "TensorMemoryLayout": _Layout,
    "TensorMemoryScalesLayout": _Layout,
    "get_tmem_reg_layout": lambda *args: None,
    "fence_async_shared": lambda: None,
    "allocate_tensor_memory": lambda dtype, shape, layout: TensorMemory.empty(shape),
    "tcgen05_mma": _mma,
    "tcgen05_mma_scaled": _mma_scaled,
    "tcgen05_copy": _copy,
    "tcgen05_commit": _commit,
    "mbarrier": SimpleNamespace(
        MBarrierLayout=lambda: "barriers",
        init=lambda bar, count: bar[0].init(count),
        invalidate=lambda bar: None,
        expect=lambda bar, size: bar[0].add(arrivals=1, expected=size),
        arrive=lambda bar, count=1: bar[0].add(arrivals=count),
        wait=lambda bar, phase, pred=True: bar[0].wait(phase) if pred else None,
    ),
    "tma": SimpleNamespace(
        async_copy_global_to_shared=_load_box,
        async_copy_shared_to_global=_store_box,
        store_wait=_store_wait,
    ),
}


def sample(path: Path, units: int = 2) -> SimpleNamespace:
    """The names of a sample, its imports of Gluon answered from here. `units`: the number of
    multiprocessors that a persistent kernel is told of."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("triton."))
        and not (isinstance(node, ast.Import) and node.names[0].name == "torch")
    ]
    properties = SimpleNamespace(multi_processor_count=units)
    cuda = SimpleNamespace(get_device_properties=lambda device: properties)
    names = {"empty": torch.empty, "nn": torch.nn, "bfloat16": torch.bfloat16}
    names |= {"float32": torch.float32, "empty_like": torch.empty_like}
    space: dict[str, Any] = {**NAMES, "torch": SimpleNamespace(cuda=cuda, **names)}
    exec(compile(tree, str(path), "exec"), space)
    return SimpleNamespace(**space)
