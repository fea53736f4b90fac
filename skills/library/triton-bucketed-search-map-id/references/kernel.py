import torch
import triton
import triton.language as tl


@triton.jit
def bucket_starts(
    table_ptr, starts_ptr, shift_ptr, size, buckets, BLOCK: tl.constexpr, STEPS: tl.constexpr
):
    # starts[b] is the first place of the table that is not below bucket b's first id.
    first = tl.load(table_ptr)
    span = (tl.load(table_ptr + size - 1) - first).to(tl.uint64, bitcast=True)
    shift = (span * 0).to(tl.int64)
    for _ in range(64):
        shift += ((span >> shift.to(tl.uint64)) >= buckets).to(tl.int64)
    if tl.program_id(0) == 0:
        tl.store(shift_ptr, shift)
    bucket = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offset = bucket.to(tl.uint64) << shift.to(tl.uint64)
    beyond = (offset > span) | (bucket >= buckets)
    lowest = first + tl.where(beyond, 0, offset).to(tl.int64, bitcast=True)
    low = tl.zeros((BLOCK,), dtype=tl.int32)
    high = tl.zeros((BLOCK,), dtype=tl.int32) + size
    for _ in range(STEPS):
        middle = (low + high) // 2
        open_ = low < high
        less = open_ & (tl.load(table_ptr + middle, mask=open_, other=0) < lowest)
        high = tl.where(open_ & (less == 0), middle, high)
        low = tl.where(less, middle + 1, low)
    tl.store(starts_ptr + bucket, tl.where(beyond, size, low), mask=bucket <= buckets)


@triton.jit
def look_up(ids_ptr, table_ptr, starts_ptr, shift_ptr, out_ptr, count, size, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    given = place < count
    ids = tl.load(ids_ptr + place, mask=given, other=0)
    first = tl.load(table_ptr)
    last = tl.load(table_ptr + size - 1)
    shift = tl.load(shift_ptr)
    known = given & (ids >= first) & (ids <= last)
    offset = tl.where(known, ids - first, 0).to(tl.uint64, bitcast=True)
    bucket = (offset >> shift.to(tl.uint64)).to(tl.int32)
    low = tl.load(starts_ptr + bucket, mask=known, other=0)
    end = tl.load(starts_ptr + bucket + 1, mask=known, other=0)
    known = known & (low < end)
    # The last of the bucket is only compared at the end: it needs no further step.
    high = end - 1
    gap = tl.max(tl.where(known, high - low, 0))
    while gap > 0:
        middle = (low + high) // 2
        open_ = known & (low < high)
        less = open_ & (tl.load(table_ptr + middle, mask=open_, other=0) < ids)
        high = tl.where(open_ & (less == 0), middle, high)
        low = tl.where(less, middle + 1, low)
        gap = gap // 2
    found = known & (tl.load(table_ptr + low, mask=known, other=0) == ids)
    tl.store(out_ptr + place, tl.where(found, low + 1, 0).to(tl.int64), mask=given)


def run(ids, table):
    count, size = ids.numel(), table.numel()
    buckets = triton.next_power_of_2(size) * @{ratio}
    starts = torch.empty(buckets + 1, device=ids.device, dtype=torch.int32)
    shift = torch.empty(1, device=ids.device, dtype=torch.int64)
    out = torch.empty_like(ids)
    bucket_starts[(triton.cdiv(buckets + 1, 256),)](
        table, starts, shift, size, buckets, BLOCK=256, STEPS=size.bit_length(), num_warps=4
    )
    look_up[(triton.cdiv(count, @{block}),)](
        ids, table, starts, shift, out, count, size, BLOCK=@{block}, num_warps=@{warps}
    )
    return out
