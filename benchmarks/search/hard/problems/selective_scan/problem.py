"""A causal depthwise convolution with SiLU, followed by a selective scan of a state space."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 1
channels = 8
length = 32
states = 4
taps = 4


class Model(nn.Module):
    """`state = exp(step * decay) * state + step * input_gate * x`; the result is the state weighted
    by `output_gate`, plus `skip * x`, with x the convolved input."""

    def forward(
        self,
        x: torch.Tensor,
        kernel: torch.Tensor,
        step: torch.Tensor,
        log_decay: torch.Tensor,
        input_gate: torch.Tensor,
        output_gate: torch.Tensor,
        skip: torch.Tensor,
    ) -> torch.Tensor:
        size = kernel.shape[-1]
        x = F.silu(F.conv1d(F.pad(x, (size - 1, 0)), kernel[:, None], groups=x.shape[1]))
        step, decay = F.softplus(step), -torch.exp(log_decay)
        state = x.new_zeros(x.shape[0], x.shape[1], decay.shape[1])
        results = []
        for place in range(x.shape[2]):
            now = step[:, :, place, None]
            state = torch.exp(now * decay) * state
            state = state + now * input_gate[:, None, :, place] * x[:, :, place, None]
            results.append((state * output_gate[:, None, :, place]).sum(-1))
        return torch.stack(results, -1) + skip[:, None] * x


def get_inputs() -> list[torch.Tensor]:
    return [
        torch.randn(batch, channels, length),
        torch.randn(channels, taps) * 0.5,
        torch.randn(batch, channels, length) - 2,
        torch.randn(channels, states) * 0.5,
        torch.randn(batch, states, length),
        torch.randn(batch, states, length),
        torch.randn(channels),
    ]


def get_init_inputs() -> list[int]:
    return []
