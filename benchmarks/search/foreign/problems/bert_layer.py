"""A block of transformers, with weights drawn at random: bert layer."""

import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

BATCH = 4


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            hidden_size=384,
            num_attention_heads=6,
            intermediate_size=1536,
            attn_implementation="sdpa",
        )
        self.block = BertLayer(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.block(x)
        return result if torch.is_tensor(result) else result[0]


def get_inputs():
    return [torch.randn(BATCH, 128, 384)]


def get_init_inputs():
    return []
