"""A block of torchvision, with weights drawn at random: vit encoder."""

import torch
from torchvision.models.vision_transformer import EncoderBlock

BATCH = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = EncoderBlock(6, 384, 1536, 0.0, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 197, 384)]


def get_init_inputs():
    return []
