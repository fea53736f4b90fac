"""Sum of looked-up rows of a table, bag by bag."""

import torch
import torch.nn as nn

bags = 16_384
pooling = 32
table = 100_000
width = 64


class Model(nn.Module):
    """Bags of equal size: gathers that no prefetcher foresees."""

    def __init__(self, table: int, width: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(table, width, mode="sum")

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.bag(indices)
        return result


def get_inputs() -> list[torch.Tensor]:
    return [torch.randint(0, table, (bags, pooling))]


def get_init_inputs() -> list[int]:
    return [table, width]
