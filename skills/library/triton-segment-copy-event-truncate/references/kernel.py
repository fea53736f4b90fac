import torch
import triton
import triton.language as tl


@triton.jit
def row_sizes(
    row_lengths_ptr,
    row_ends_ptr,
    event_ends_ptr,
    kept_ptr,
    begin_ptr,
    taken_ptr,
    rows,
    limit,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = row < rows
    length = tl.load(row_lengths_ptr + row, mask=given, other=0)
    first = tl.load(row_ends_ptr + row, mask=given, other=0) - length
    kept = tl.minimum(length, limit)
    begin = tl.load(event_ends_ptr + first - 1, mask=given & (first > 0), other=0)
    end = tl.load(event_ends_ptr + first + kept - 1, mask=given & (kept > 0), other=0)
    tl.store(kept_ptr + row, kept, mask=given)
    tl.store(begin_ptr + row, begin, mask=given)
    tl.store(taken_ptr + row, tl.where(kept > 0, end - begin, 0), mask=given)


@triton.jit
def copy_rows(
    values_ptr,
    event_lengths_ptr,
    row_lengths_ptr,
    row_ends_ptr,
    kept_ptr,
    kept_ends_ptr,
    begin_ptr,
    taken_ptr,
    taken_ends_ptr,
    out_values_ptr,
    out_events_ptr,
    rows,
    events,
    values,
    copies,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVENTS: tl.constexpr,
    TAIL: tl.constexpr,
):
    program = tl.program_id(0)
    if program < copies:
        row = program * ROWS + tl.arange(0, ROWS)
        given = row < rows
        taken = tl.load(taken_ptr + row, mask=given, other=0)
        begin = tl.load(begin_ptr + row, mask=given, other=0)
        put = tl.load(taken_ends_ptr + row, mask=given, other=0) - taken
        lane = tl.arange(0, BLOCK)
        longest = tl.max(taken)
        start = longest * 0
        while start < longest:
            step = start + lane
            inside = step[None, :] < taken[:, None]
            part = tl.load(values_ptr + begin[:, None] + step[None, :], mask=inside)
            tl.store(out_values_ptr + put[:, None] + step[None, :], part, mask=inside)
            start += BLOCK
        kept = tl.load(kept_ptr + row, mask=given, other=0)
        first = tl.load(row_ends_ptr + row, mask=given, other=0)
        first -= tl.load(row_lengths_ptr + row, mask=given, other=0)
        put = tl.load(kept_ends_ptr + row, mask=given, other=0) - kept
        lane = tl.arange(0, EVENTS)
        longest = tl.max(kept)
        start = longest * 0
        while start < longest:
            step = start + lane
            inside = step[None, :] < kept[:, None]
            part = tl.load(event_lengths_ptr + first[:, None] + step[None, :], mask=inside)
            tl.store(out_events_ptr + put[:, None] + step[None, :], part, mask=inside)
            start += EVENTS
    else:
        # What no row fills is zeros; no other program writes there.
        place = (program - copies).to(tl.int64) * TAIL + tl.arange(0, TAIL)
        zeros = tl.zeros((TAIL,), dtype=tl.int64)
        used = tl.load(taken_ends_ptr + rows - 1)
        empty = (place >= used) & (place < values)
        tl.store(out_values_ptr + place, zeros.to(out_values_ptr.dtype.element_ty), mask=empty)
        used = tl.load(kept_ends_ptr + rows - 1)
        tl.store(out_events_ptr + place, zeros, mask=(place >= used) & (place < events))


def run(values, event_lengths, row_lengths):
    rows, events, size = row_lengths.numel(), event_lengths.numel(), values.numel()
    row_ends, event_ends = row_lengths.cumsum(0), event_lengths.cumsum(0)
    kept, begin, taken = (torch.empty_like(row_lengths) for _ in range(3))
    row_sizes[(triton.cdiv(rows, 256),)](
        row_lengths, row_ends, event_ends, kept, begin, taken, rows, @{limit}, BLOCK=256
    )
    kept_ends, taken_ends = kept.cumsum(0), taken.cumsum(0)
    out_values, out_events = torch.empty_like(values), torch.empty_like(event_lengths)
    copies = triton.cdiv(rows, @{rows})
    tails = triton.cdiv(max(size, events), 4096)
    copy_rows[(copies + tails,)](
        values,
        event_lengths,
        row_lengths,
        row_ends,
        kept,
        kept_ends,
        begin,
        taken,
        taken_ends,
        out_values,
        out_events,
        rows,
        events,
        size,
        copies,
        ROWS=@{rows},
        BLOCK=@{block},
        EVENTS=min(128, triton.next_power_of_2(@{limit})),
        TAIL=4096,
        num_warps=@{warps},
    )
    return out_values, out_events, kept
