"""A CPU simulation of Gluon's Blackwell calls: it runs the algorithm of a sample without its
layouts.

Each partition of a warp-specialised kernel is a thread. TMA copies and tensor core operations
complete after random delays: copies in any order, tensor core operations in order. A stage that is
overwritten too early, a wait for the wrong phase or a missing commit gives a wrong value or an
endless wait, which is an error. Arithmetic is float64.

The blocks of a pair (two_ctas) are two threads over shared tensors, each with half of the rows; the
first issues for both. Shapes that the hardware refuses, swizzles, proxies and fences are not
modelled.
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
from functools import partial
from math import prod
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from tests.ingestion.samples.gluon_barriers import PATIENCE, Barriers, _here, rank

PAUSE = 2e-4  # seconds: the longest simulated delay of a copy or a product
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


class Values(np.ndarray):
    """Values of a partition in registers."""

    @property
    def type(self) -> SimpleNamespace:
        return SimpleNamespace(layout=None)

    def to(self, dtype: object) -> Values:
        del dtype  # everything is float64
        return self


def _values(array: Any) -> Values:
    return np.array(array, dtype=np.float64).view(Values)


def _half(shape: Sequence[int]) -> slice:
    """The rows of this thread's block: all, or half of them in a pair."""
    ranks = _here.block.ranks
    return slice(rank() * shape[0] // ranks, (rank() + 1) * shape[0] // ranks)


class Memory:
    """Shared memory, or a view of it that is evaluated on use."""

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
        return _values(self.read()[_half(self.shape)])

    def store(self, values: np.ndarray) -> None:
        Memory(self.view(self.array)[_half(self.shape)]).write(values)


class TensorMemory(Memory):
    """Columns of one wide number or two narrow ones. A wide number marks its second half as NaN, so
    that reading it as narrow ones gives no number.
    """

    WIDE = np.inf

    def __init__(self, array: np.ndarray, packed: bool = False):
        super().__init__(array)
        self.packed = packed

    @staticmethod
    def empty(shape: Sequence[int], dtype: str) -> TensorMemory:
        memory = TensorMemory(np.full((*shape, 2), np.nan))
        memory.dtype = dtype
        return memory

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

    def store(self, values: np.ndarray) -> None:
        self.write(values)

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


class Block:
    """One block or a pair: its position in the grid, its tensor core queue, and its copies."""

    def __init__(
        self, place: tuple[int, ...], grid: tuple[int, ...], warps: int, ranks: int
    ) -> None:
        self.place, self.grid, self.warps, self.ranks = place, grid, warps, ranks
        self.together = threading.Barrier(ranks)
        self.allocated: dict[tuple[int, int], Any] = {}
        self.allocating = threading.Lock()
        self.random = random.Random(repr(place))
        self.tensor_work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.copies = ThreadPoolExecutor(4)
        self.stores: list[list[Future[None]]] = [[] for _ in range(ranks)]
        self.faults: list[BaseException] = []
        self.tensor_core = threading.Thread(target=self._work, daemon=True)
        self.tensor_core.start()

    def pause(self) -> None:
        time.sleep(self.random.random() * PAUSE)

    def once(self, make: Callable[[], Any]) -> Any:
        """The value of `make`, shared by both blocks of a pair: the n-th call of their role."""
        _here.count = getattr(_here, "count", 0) + 1
        key = (getattr(_here, "role", -1), _here.count)
        with self.allocating:
            if key not in self.allocated:
                self.allocated[key] = make()
            return self.allocated[key]

    def run(self, function: Callable[..., Any], args: Sequence[Any], **place: int) -> None:
        """Run one role of one block; store its exception."""
        _here.block, _here.count = self, 0
        for name, value in place.items():
            setattr(_here, name, value)
        try:
            function(*args)
        except BaseException as fault:
            self.faults.append(fault)
            self.together.abort()

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

    @property
    def nbytes_per_cta(self) -> int:
        return int(self.block_type.nbytes) // int(_here.block.ranks)

    @staticmethod
    def from_tensor(tensor: torch.Tensor, box: Sequence[int], layout: object) -> Descriptor:
        nbytes = prod(box) * tensor.element_size()
        kind = SimpleNamespace(shape=list(box), nbytes=nbytes)
        return Descriptor(tensor, kind, layout=layout)

    def _cut(self, corner: Sequence[int], box: Sequence[int]) -> tuple[slice, ...]:
        sizes = zip(corner, box, self.base.shape, strict=True)
        return tuple(slice(min(at, size), min(at + box, size)) for at, box, size in sizes)

    def fetch(self, corner: Sequence[int]) -> np.ndarray:
        box = np.zeros(self.block_type.shape)
        part = self.base[self._cut(corner, box.shape)].to(torch.float64).numpy()
        box[tuple(slice(0, size) for size in part.shape)] = part
        return box

    def put(self, corner: Sequence[int], box: np.ndarray) -> None:
        cut = self._cut(corner, box.shape)
        inside = box[tuple(slice(0, max(0, c.stop - c.start)) for c in cut)]
        if inside.size:
            self.base[cut] = torch.from_numpy(inside.copy()).to(self.base.dtype)


class Kernel:
    """The result of `gluon.jit`: called on the device, or launched over a grid by the host."""

    def __init__(self, function: FunctionType):
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int, num_ctas: int = 1, **constants: Any) -> None:
            names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
            if "num_warps" in names:
                constants["num_warps"] = num_warps
            for place in np.ndindex(*grid):
                block = Block(place, grid, num_warps, num_ctas)
                kernel = partial(self.function, **constants)
                _all([(block.run, kernel, args, {"rank": r}) for r in range(num_ctas)])
                block.close()

        return launch


def _all(calls: Sequence[tuple[Any, ...]]) -> None:
    """Run each call in its own thread, and wait for all."""
    threads = [
        threading.Thread(target=run, args=(function, args), kwargs=place, daemon=True)
        for run, function, args, place in calls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _warp_specialize(
    parts: Sequence[tuple[Kernel, tuple[Any, ...]]],
    worker_num_warps: Sequence[int],
    worker_num_regs: Sequence[int] | None = None,
) -> None:
    block = _here.block
    warps = [block.warps, *worker_num_warps]
    assert len(warps) == len(parts)
    assert worker_num_regs is None or len(worker_num_regs) == len(worker_num_warps)

    places = [{"rank": rank(), "role": i, "warps": count} for i, count in enumerate(warps)]
    _all([(block.run, *part, place) for part, place in zip(parts, places, strict=True)])
    if block.faults:
        raise block.faults[0]


def _allocate_shared(dtype: object, shape: Sequence[int], layout: object) -> Memory | Barriers:
    del dtype
    block = _here.block
    if layout == "barriers":
        return cast(Barriers, block.once(lambda: Barriers.make(shape[0], block.ranks)))
    return cast(Memory, block.once(lambda: Memory(np.full(shape, np.nan))))


def _allocate_barriers(batch: int, two_ctas: bool = False) -> Barriers:
    block = _here.block
    return cast(Barriers, block.once(lambda: Barriers.make(batch, block.ranks, shared=two_ctas)))


def _load_box(desc: Descriptor, corner: Any, bar: Barriers, into: Memory, pred: Any = True) -> None:
    block, half, own = _here.block, _half(into.shape), bar.own
    size = desc.nbytes_per_cta

    def copy() -> None:
        block.pause()
        Memory(into.view(into.array)[half]).write(desc.fetch(corner)[half])
        own.add(came=size)

    if pred:
        block.copies.submit(copy)


def _store_box(desc: Descriptor, corner: Sequence[int], source: Memory) -> None:
    block, half = _here.block, _half(source.shape)
    place = [corner[0] + half.start, *corner[1:]]

    def copy() -> None:
        block.pause()
        desc.put(place, source.read()[half])

    block.stores[rank()].append(block.copies.submit(copy))


def _store_wait(pendings: int) -> None:
    stores = _here.block.stores[rank()]
    for store in stores[: len(stores) - pendings]:
        store.result(PATIENCE)


def _mma(
    a: Memory, b: Memory, acc: Memory, *, use_acc: Any = True, mbarriers: Any = (), **_: Any
) -> None:
    def multiply() -> None:
        total = a.read() @ b.read()
        acc.write(acc.read() + total if use_acc else total)

    _issue(multiply)
    for barrier in mbarriers:
        _commit(barrier)


def _mma_scaled(
    a: Memory,
    b: Memory,
    acc: Memory,
    a_scale: Memory,
    b_scale: Memory,
    a_type: str,
    b_type: str,
    *,
    use_acc: Any,
) -> None:
    def scaled(rows: np.ndarray, kind: str, scale: Memory) -> np.ndarray:
        """[rows][K] of numbers, from rows of bytes where two values share one."""
        if kind == "e2m1":
            codes = rows.astype(np.int64)
            codes = np.stack((codes & 15, codes >> 4), axis=2).reshape(len(rows), -1)
            rows = E2M1[codes & 7] * (1 - 2 * (codes >> 3))
        factors: np.ndarray = scale.read()
        if scale.dtype == "uint8":  # E8M0
            factors = 2.0 ** (factors - 127)
        spread = np.repeat(factors, rows.shape[1] // factors.shape[1], axis=1)
        return np.asarray(rows * spread)

    def multiply() -> None:
        left = scaled(a.read(), a_type, a_scale)
        right = scaled(b.read().T, b_type, b_scale).T
        acc.write(acc.read() + left @ right if use_acc else left @ right)

    _issue(multiply)


def _copy(source: Memory, into: Memory) -> None:
    def copy() -> None:
        into.write(source.read())

    _issue(copy)


def _commit(barrier: Barriers, descs: Sequence[Memory] = ()) -> None:
    del descs  # whether the second block of a pair is signalled too: in a pair it always is
    _issue(barrier.commit)


def _issue(work: Callable[[], None]) -> None:
    """Add to the queue of the tensor core; in a pair only the call of the first block counts."""
    if rank() == 0:
        _here.block.tensor_work.put(work)


class _Layout:
    def __init__(self, *args: Any, **fields: Any):
        pass

    @staticmethod
    def get_default_for(box: Sequence[int], dtype: object, cga_layout: object = None) -> None:
        return None


def _static_assert(holds: Any) -> None:
    assert holds, "gl.static_assert"


def _where(chosen: Any, yes: Any, no: Any) -> Values:
    return _values(np.where(chosen, yes, no))


LANGUAGE = SimpleNamespace(
    constexpr=lambda value: value,
    program_id=lambda axis: _here.block.place[axis],
    num_programs=lambda axis: _here.block.grid[axis],
    num_warps=lambda: getattr(_here, "warps", _here.block.warps),
    num_ctas=lambda: _here.block.ranks,
    static_assert=_static_assert,
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
    load=lambda pointer: float(pointer.item()),
    barrier=lambda: None,
    **{name: name for name in ("int64", "float32", "bfloat16", "float16", "uint8", "float8e4nv")},
)

NAMES: dict[str, Any] = {
    "gluon": SimpleNamespace(jit=Kernel, constexpr_function=lambda function: function),
    "gl": LANGUAGE,
    "TensorDescriptor": Descriptor,
    "TensorMemoryLayout": _Layout,
    "TensorMemoryScalesLayout": _Layout,
    "get_tmem_reg_layout": lambda *args, **cut: None,
    "fence_async_shared": lambda: None,
    "allocate_tensor_memory": lambda dtype, shape, layout: _here.block.once(
        lambda: TensorMemory.empty(shape, dtype)
    ),
    "tcgen05_mma": _mma,
    "tcgen05_mma_scaled": _mma_scaled,
    "tcgen05_copy": _copy,
    "tcgen05_commit": _commit,
    "mbarrier": SimpleNamespace(
        MBarrierLayout=lambda: "barriers",
        allocate_mbarrier=_allocate_barriers,
        init=lambda bar, count: bar.init(count),
        sync_cluster_init=lambda: _here.block.together.wait(),
        invalidate=lambda bar: None,
        expect=lambda bar, size: bar.expect(size, _here.block.ranks),
        arrive=lambda bar, count=1: bar.arrive(count),
        wait=lambda bar, phase, pred=True: bar.wait(phase) if pred else None,
    ),
    "tma": SimpleNamespace(
        async_copy_global_to_shared=_load_box,
        async_copy_shared_to_global=_store_box,
        store_wait=_store_wait,
    ),
}


def sample(path: Path, units: int = 2) -> SimpleNamespace:
    """The names of a sample, with its Gluon imports simulated. `units`: the number of
    multiprocessors for persistent kernels.
    """
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
    names |= {"uint8": torch.uint8, "float8_e4m3fn": torch.float8_e4m3fn}
    space: dict[str, Any] = {**NAMES, "torch": SimpleNamespace(cuda=cuda, **names)}
    exec(compile(tree, str(path), "exec"), space)
    return SimpleNamespace(**space)
