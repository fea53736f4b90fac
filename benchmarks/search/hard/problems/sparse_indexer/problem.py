"""Scores of an indexer for sparse attention, and the largest of them for each query."""

import torch
import torch.nn as nn

queries = 16
places = 64
heads = 4
width = 16
chosen = 8


class Model(nn.Module):
    """`score[q, p] = sum over heads of weight[q, h] * relu(query[q, h] . key[p])`; the
    result is the `chosen` largest scores of each query, in descending order."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        score = query.new_zeros(query.shape[0], key.shape[0])
        for head in range(query.shape[1]):
            score = score + weight[:, head, None] * torch.relu(query[:, head] @ key.T)
        return score.topk(chosen, -1).values


def get_inputs() -> list[torch.Tensor]:
    query = torch.randn(queries, heads, width) * width**-0.5
    return [query, torch.randn(places, width), torch.rand(queries, heads) / heads]


def get_init_inputs() -> list[int]:
    return []
