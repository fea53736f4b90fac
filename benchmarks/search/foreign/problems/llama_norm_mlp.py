"""A block of transformers, with weights drawn at random: llama norm mlp."""

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

BATCH = 1


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_attention_heads=16,
            num_key_value_heads=4,
            attn_implementation="sdpa",
        )
        self.block = torch.nn.Sequential(LlamaRMSNorm(1024), LlamaMLP(config))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 256, 1024)]


def get_init_inputs():
    return []
