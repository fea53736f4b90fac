"""One matrix product for each expert, over the rows that belong to it."""

from itertools import pairwise

import torch
import torch.nn as nn

experts = 4
total = 48
columns = 32
depth = 64


class Model(nn.Module):
    """Rows `offsets[e]` to `offsets[e + 1]` of `x` are multiplied by the weights of expert e."""

    def forward(
        self, x: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        result = x.new_zeros(x.shape[0], weights.shape[1])
        ends = offsets.tolist()
        for expert, (first, last) in enumerate(pairwise(ends)):
            result[first:last] = x[first:last] @ weights[expert].T
        return result


def get_inputs() -> list[torch.Tensor]:
    cuts = torch.randint(0, total + 1, (experts - 1,)).sort().values
    offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([total])]).to(torch.int32)
    return [torch.randn(total, depth), torch.randn(experts, columns, depth) * 0.05, offsets]


def get_init_inputs() -> list[int]:
    return []
