"""Causal depthwise convolution with SiLU, then the selective scan of a state space (Mamba), in one
kernel: state = exp(step * decay) * state + step * input_gate * x, out = sum(state * output_gate)
+ skip * x, with decay = -exp(log_decay) and a softplus of the step. float32.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def join(decay_before, value_before, decay, value):
    return decay_before * decay, decay * value_before + value


@triton.jit
def scan_rows(
    x_ptr,
    taps_ptr,
    step_ptr,
    log_decay_ptr,
    input_gate_ptr,
    output_gate_ptr,
    skip_ptr,
    out_ptr,
    channels,
    length,
    STATES: tl.constexpr,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TIMES: tl.constexpr,
):
    batch = tl.program_id(1)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    state_of = tl.arange(0, STATES)
    known = channel < channels
    decay = -tl.exp(
        tl.load(
            log_decay_ptr + channel[:, None] * STATES + state_of[None, :],
            mask=known[:, None],
            other=0.0,
        )
    )
    skip = tl.load(skip_ptr + channel, mask=known, other=0.0)
    rows = (batch * channels + channel).to(tl.int64)[:, None] * length
    gates = (batch * STATES + state_of).to(tl.int64)[None, :] * length
    state = tl.zeros((CHANNELS, STATES), tl.float32)
    for start in range(0, length, TIMES):
        time = start + tl.arange(0, TIMES)
        inside = known[:, None] & (time < length)[None, :]
        x = tl.zeros((CHANNELS, TIMES), tl.float32)
        for tap in tl.static_range(TAPS):
            at = time[None, :] - (TAPS - 1 - tap)
            weight = tl.load(taps_ptr + channel * TAPS + tap, mask=known, other=0.0)
            x += weight[:, None] * tl.load(x_ptr + rows + at, mask=inside & (at >= 0), other=0.0)
        x = x * tl.sigmoid(x)
        step = tl.load(step_ptr + rows + time[None, :], mask=inside, other=0.0)
        step = tl.where(step > 20.0, step, tl.log(1.0 + tl.exp(step)))
        step = tl.where(inside, step, 0.0)  # then the state passes unchanged
        gate_at = gates + time[:, None]
        gate_in = (time < length)[:, None]
        gate = tl.load(input_gate_ptr + gate_at, mask=gate_in, other=0.0)
        away = tl.load(output_gate_ptr + gate_at, mask=gate_in, other=0.0)
        decays = tl.exp(step[:, :, None] * decay[:, None, :])
        values = (step * x)[:, :, None] * gate[None, :, :]
        decays, values = tl.associative_scan((decays, values), 1, join)
        values += decays * state[:, None, :]
        y = tl.sum(values * away[None, :, :], 2) + skip[:, None] * x
        tl.store(out_ptr + rows + time[None, :], y, mask=inside)
        last = (tl.arange(0, TIMES) == TIMES - 1)[None, :, None]
        state = tl.sum(tl.where(last, values, 0.0), 1)


def selective_scan(
    x, taps, step, log_decay, input_gate, output_gate, skip, CHANNELS=2, TIMES=32, num_warps=1
):
    """x, step [batch, channels, length]; taps [channels, n]; log_decay [channels, states];
    gates [batch, states, length]; float32, contiguous, states a power of two."""
    batch, channels, length = x.shape
    out = torch.empty_like(x)
    grid = (triton.cdiv(channels, CHANNELS), batch)
    scan_rows[grid](
        x,
        taps,
        step,
        log_decay,
        input_gate,
        output_gate,
        skip,
        out,
        channels,
        length,
        STATES=log_decay.shape[1],
        TAPS=taps.shape[1],
        CHANNELS=CHANNELS,
        TIMES=TIMES,
        num_warps=num_warps,
    )
    return out
