"""Runs the CuTe DSL decoding that `cute_build.py` built, on a machine with a Hopper GPU and torch.

    python -m benchmarks.samples.nvidia.cute_decode_run FOLDER

Compares with float64 at odd lengths, with NaN in every row of the caches that belongs to no key
and nonsense in every entry of the table that names no page; asks for equal bits in 20 launches,
caches as they were and guards around all that is written. Then times CUDA graphs of rotating
inputs in turn with scaled_dot_product_attention on dense caches and with the Triton sample, where
Triton is installed. Needs no CuTe DSL.
"""

import ctypes
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.samples.nvidia.cute_run import BOUND, ROTATION, graph_of, library, medians

TRITON = Path(__file__).parents[3] / "hw_manuals/samples/hopper/paged-decode-attention.py"
D, KEYS = 128, 64  # the width of a head, and the keys of a stage
PEAKS = {"H100": 3.35e12, "H200": 4.8e12}  # bytes a second of the SXM cards
NOWHERE = 2**30  # an entry of the table that names no page
# keys a page, queries a head, heads of keys, stages a part, lengths of the sequences
CASES = (
    (64, 8, 1, 1, (1,)),
    (64, 8, 8, 2, (1, 63, 64, 65, 128, 500, 1000, 4097)),
    (16, 8, 8, 1, (1, 15, 16, 17, 33, 100, 777, 2049)),
    (16, 8, 3, 5, (2048, 3, 0, 641)),
    (64, 1, 2, 4, (5, 300, 0, 64)),
    (32, 4, 5, 3, (31, 32, 95, 1234)),
    (16, 16, 2, 2, (48, 1, 999)),
    (64, 8, 8, 16, (8192, 8192, 7, 5000)),
)
STAGES_A_PART = (4, 8, 16, 32, 43, 64)


@dataclass(frozen=True)
class Held:
    """A graph with the tensors that it reads and writes, which have to live as long."""

    graph: Any
    tensors: Any

    def replay(self) -> None:
        self.graph.replay()


@dataclass(frozen=True)
class Batch:
    """One batch of sequences: queries, paged caches, the table and the lengths."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor


def batch_of(page: int, share: int, heads: int, lengths: Sequence[int]) -> Batch:
    """Random queries and caches with pages in random order; what belongs to no key is NaN."""
    counts = [math.ceil(length / page) for length in lengths]
    order = torch.randperm(sum(counts) + 3, device="cuda").int()
    table = torch.full((len(lengths), max(counts) + 1), NOWHERE, device="cuda", dtype=torch.int32)
    caches = [
        torch.full((len(order), page, heads, D), math.nan, device="cuda").bfloat16()
        for _ in range(2)
    ]
    start = 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        numbers = order[start : start + count]
        table[row, :count] = numbers
        for cache in caches:
            filled = torch.full((count * page, heads, D), math.nan, device="cuda")
            filled[:length] = torch.randn(length, heads, D, device="cuda")
            cache[numbers.long()] = filled.view(count, page, heads, D).bfloat16()
        start += count
    query = torch.randn(len(lengths), heads * share, D, device="cuda").bfloat16()
    known = torch.tensor(lengths, device="cuda", dtype=torch.int32)
    return Batch(query, caches[0], caches[1], table, known)


def dense(batch: Batch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values [heads][length][D] of every sequence."""
    rows = []
    for row, length in zip(batch.table, batch.lengths.tolist(), strict=True):
        numbers = row[: math.ceil(length / batch.keys.shape[1])].long()
        both = (cache[numbers].flatten(0, 1)[:length] for cache in (batch.keys, batch.values))
        keys, values = (cache.transpose(0, 1) for cache in both)
        rows.append((keys, values))
    return rows


def expected(batch: Batch) -> torch.Tensor:
    """Attention in float64; zeros for a sequence without keys."""
    result = torch.zeros(batch.query.shape, device="cuda", dtype=torch.float64)
    for row, (keys, values) in enumerate(dense(batch)):
        if not keys.shape[1]:
            continue
        query = batch.query[row].view(keys.shape[0], -1, D).double()
        weights = (query @ keys.double().mT / math.sqrt(D)).softmax(-1)
        result[row] = (weights @ values.double()).flatten(0, 1)
    return result


Decode = Callable[..., torch.Tensor]


def decoding(folder: Path) -> Decode:
    """A function of a batch, room for sums, logarithms and the result, and stages a part."""
    loaded = library(folder / "paged_decode.so")
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    functions: dict[tuple[int, int], Any] = {}

    def decode(
        batch: Batch, sums: torch.Tensor, logs: torch.Tensor, out: torch.Tensor, each: int
    ) -> torch.Tensor:
        pages, page, heads, _ = batch.keys.shape
        share = batch.query.shape[1] // heads
        if (page, share) not in functions:
            name = f"paged_decode_{page}_{share}"
            getattr(loaded, f"{name}_load")()
            functions[page, share] = getattr(loaded, name)
            types = [pointer] * 8 + [integer] * 6 + [ctypes.c_float, pointer]
            functions[page, share].argtypes = types
        tensors = (batch.query, batch.keys, batch.values, batch.table, batch.lengths)
        addresses = [tensor.data_ptr() for tensor in (*tensors, sums, logs, out)]
        most = batch.table.shape[1]
        sizes = (len(batch.query), heads, pages, most, parts_of(batch, each), each)
        scale = math.log2(math.e) / math.sqrt(D)
        stream = torch.cuda.current_stream().cuda_stream
        failed = functions[page, share](*addresses, *sizes, scale, stream)
        if failed:
            raise RuntimeError(f"the launch failed with CUDA error {failed}")
        return out

    return decode


def parts_of(batch: Batch, each: int) -> int:
    """Parts of the longest sequence that the table has room for."""
    return math.ceil(batch.table.shape[1] * batch.keys.shape[1] / (each * KEYS))


def room(batch: Batch, each: int, guard: int = 0) -> list[torch.Tensor]:
    """Guarded flat tensors for sums, logarithms and the result."""
    rows = batch.query.shape[0] * batch.query.shape[1]
    parts = parts_of(batch, each)
    sizes = [(rows * parts * D, torch.float32), (rows * parts, torch.float32)]
    sizes.append((rows * D, torch.bfloat16))
    return [
        torch.full((size + 2 * guard,), 7.0, device="cuda", dtype=dtype) for size, dtype in sizes
    ]


def compare(decode: Decode) -> None:
    """Raise SystemExit for a wrong value, unequal bits or a byte written outside."""
    guard = 1024
    for page, share, heads, each, lengths in CASES:
        batch = batch_of(page, share, heads, lengths)
        before = [cache.view(torch.int16).clone() for cache in (batch.keys, batch.values)]
        guarded = room(batch, each, guard)
        inner = [tensor[guard:-guard] for tensor in guarded]
        out = decode(batch, *inner, each).view(batch.query.shape).clone()
        wanted = expected(batch)
        off = (out.double() - wanted).flatten(1).norm(dim=1)
        worst = (off / wanted.flatten(1).norm(dim=1).clamp(min=1e-9)).max().item()
        again = all(torch.equal(decode(batch, *inner, each).view_as(out), out) for _ in range(20))
        untouched = all(bool((t[:guard] == 7).all() and (t[-guard:] == 7).all()) for t in guarded)
        after = [cache.view(torch.int16) for cache in (batch.keys, batch.values)]
        untouched &= all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
        row = {"page": page, "share": share, "heads": heads, "each": each, "lengths": lengths}
        row |= {"error": worst, "equal_bits": again, "neighbours_kept": untouched}
        print(json.dumps(row), flush=True)
        if not (worst <= BOUND and again and untouched):  # NaN is no less either
            raise SystemExit(f"wrong at {row}")


def triton_sample() -> Any:
    """The Triton sample's function, or None without Triton."""
    if importlib.util.find_spec("triton") is None or not TRITON.exists():
        return None
    spec = importlib.util.spec_from_file_location("triton_sample", TRITON)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.paged_decode


def dense_sets(batches: Sequence[Batch]) -> list[tuple[torch.Tensor, ...]]:
    """Queries [batch][heads][1][D] and caches [batch][kv_heads][length][D], of equal lengths."""
    sets = []
    for batch in batches:
        rows = dense(batch)
        caches = [torch.stack([row[i] for row in rows]).contiguous() for i in range(2)]
        sets.append((batch.query.unsqueeze(2), *caches))
    return sets


def graphs_of(decode: Decode, batches: Sequence[Batch], equal: bool) -> dict[str, Any]:
    """The timed calls by name."""
    graphs: dict[str, Any] = {}
    for each in STAGES_A_PART:
        calls = [(batch, *room(batch, each)) for batch in batches]

        def sample(*call: Any, each: int = each) -> None:
            decode(*call, each)

        graphs[f"sample, {each} stages a part"] = Held(graph_of(sample, calls), calls)
    other = triton_sample()
    if other is not None:
        tables = [
            (b.query, b.keys, b.values, b.table[:, :-1].contiguous(), b.lengths) for b in batches
        ]
        graphs["triton"] = Held(graph_of(other, tables), tables)
    if equal:
        attention = torch.nn.functional.scaled_dot_product_attention
        sets = dense_sets(batches)
        folded = [(q.view(len(q), k.shape[1], -1, D), k, v) for q, k, v in sets]
        grouped = graph_of(lambda q, k, v: attention(q, k, v, enable_gqa=True), sets)
        graphs["sdpa, dense, grouped"] = Held(grouped, sets)
        graphs["sdpa, dense, a group as one head"] = Held(graph_of(attention, folded), folded)
    return graphs


def timed(decode: Decode, page: int, lengths: Sequence[int]) -> None:
    """Print TB/s of the caches' bytes, the share of the peak, and the ratio to the faster SDPA
    where the lengths are equal, for several sizes of a part."""
    batches = [batch_of(page, 8, 8, lengths) for _ in range(ROTATION)]
    seconds = medians(graphs_of(decode, batches, len(set(lengths)) == 1), ROTATION)
    library = min((time for name, time in seconds.items() if "sdpa" in name), default=math.nan)
    size = sum(lengths) * 8 * D * 2 * 2
    card = torch.cuda.get_device_name()
    peak = next((value for name, value in PEAKS.items() if name in card), math.nan)
    for name, time in seconds.items():
        row: dict[str, Any] = {"page": page, "keys": sum(lengths), "of": name}
        row |= {"us": round(time * 1e6, 1), "TB/s": round(size / time / 1e12, 3)}
        row |= {"of_peak": round(size / time / peak, 3), "of_sdpa": round(library / time, 3)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    torch.manual_seed(0)
    decoded = decoding(Path(sys.argv[1]))
    compare(decoded)
    uneven = [int(length) for length in torch.randint(1, 8193, (16,)).tolist()]
    for keys_a_page, sequence_lengths in ((64, [8192] * 16), (16, [8192] * 16), (64, uneven)):
        timed(decoded, keys_a_page, sequence_lengths)
        torch.cuda.empty_cache()
