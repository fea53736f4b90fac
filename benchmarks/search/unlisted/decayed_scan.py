"""Running sum along time in which the past decays by a factor for each channel."""

import torch


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[:, 0])
        steps = []
        for t in range(x.shape[1]):
            total = total * decay + x[:, t]
            steps.append(total)
        return torch.stack(steps, dim=1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(16, 256, 768), torch.rand(768) * 0.9]


def get_init_inputs() -> list[object]:
    return []
