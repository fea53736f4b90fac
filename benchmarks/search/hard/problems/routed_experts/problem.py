"""A mixture of experts: each token visits two of them, gathered and added up by weight."""

import torch
import torch.nn as nn
import torch.nn.functional as F

tokens = 24
experts = 4
chosen = 2
hidden = 32
inner = 48


class Model(nn.Module):
    """`up` holds gate and projection of an expert, `down` the way back. Expert ids may repeat."""

    def forward(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        shares: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor:
        result = torch.zeros_like(x)
        expert_ids = ids % up.shape[0]
        for expert in range(up.shape[0]):
            token, place = torch.where(expert_ids == expert)
            gate, value = (x[token] @ up[expert].T).chunk(2, -1)
            made = (F.silu(gate) * value) @ down[expert].T
            result.index_add_(0, token, made * shares[token, place, None])
        return result


def get_inputs() -> list[torch.Tensor]:
    ids = torch.rand(tokens, experts).topk(chosen, -1).indices.to(torch.int32)
    return [
        torch.randn(tokens, hidden),
        ids,
        torch.softmax(torch.randn(tokens, chosen), -1),
        torch.randn(experts, 2 * inner, hidden) * 0.05,
        torch.randn(experts, hidden, inner) * 0.05,
    ]


def get_init_inputs() -> list[int]:
    return []
