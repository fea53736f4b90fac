"""A block of transformers, with weights drawn at random: llama decoder layer."""

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRotaryEmbedding,
)

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
        self.block = LlamaDecoderLayer(config, 0)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return self.block(x, position_embeddings=self.rotary(x, positions))


def get_inputs():
    return [torch.randn(BATCH, 256, 1024)]


def get_init_inputs():
    return []
