"""A block of transformers, with weights drawn at random: t5 feed forward."""

import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5LayerFF

BATCH = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = T5Config(d_model=512, d_ff=1408, feed_forward_proj="gated-gelu")
        self.block = T5LayerFF(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 256, 512)]


def get_init_inputs():
    return []
