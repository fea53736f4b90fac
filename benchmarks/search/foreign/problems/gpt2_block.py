"""A block of transformers, with weights drawn at random: gpt2 block."""

import torch
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

BATCH = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(n_embd=384, n_head=6, attn_implementation="sdpa")
        self.block = GPT2Block(config, layer_idx=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.block(x)
        return result if torch.is_tensor(result) else result[0]


def get_inputs():
    return [torch.randn(BATCH, 256, 384)]


def get_init_inputs():
    return []
