"""Weighted sums of gathered rows by sorted destination: a product with a sparse matrix."""

import torch
import torch.nn as nn

nodes = 32
edges = 200
width = 16


class Model(nn.Module):
    """`result[d] = sum over edges to d of weight[edge] * features[source[edge]]`; edges are
    sorted by destination, of which some have none and some have many."""

    def forward(
        self,
        features: torch.Tensor,
        source: torch.Tensor,
        destination: torch.Tensor,
        weight: torch.Tensor,
    ) -> torch.Tensor:
        count = features.shape[0]
        gathered = features[source.long() % count] * weight[:, None]
        return torch.zeros_like(features).index_add(0, destination.long() % count, gathered)


def get_inputs() -> list[torch.Tensor]:
    destination = (torch.rand(edges) ** 2 * nodes).to(torch.int32).clamp(max=nodes - 1)
    return [
        torch.randn(nodes, width),
        torch.randint(0, nodes, (edges,), dtype=torch.int32),
        destination.sort().values,
        torch.rand(edges),
    ]


def get_init_inputs() -> list[int]:
    return []
