"""A block of transformers, with weights drawn at random: mixtral experts."""

import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

BATCH = 1


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = MixtralConfig(hidden_size=512, intermediate_size=896, num_local_experts=8)
        self.block = MixtralSparseMoeBlock(config)
        for weight in self.block.parameters():
            torch.nn.init.normal_(weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.block(x)
        return result if torch.is_tensor(result) else result[0]


def get_inputs():
    return [torch.randn(BATCH, 128, 512)]


def get_init_inputs():
    return []
