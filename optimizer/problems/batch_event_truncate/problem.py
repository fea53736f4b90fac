"""Keep the first events of every user in nested ragged features."""

import torch
import torch.nn as nn
import torch.nn.functional as F

rows = 2048
events = 32_768
values = 524_288
limit = 12


class Model(nn.Module):
    """A row (one user in one feature) has some events, an event has some values.

    The first `limit` events of every row stay, for all rows at once. What stays moves to the front,
    in order; the rest of each result is zeros, so that its size does not depend on the data.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def forward(
        self, values: torch.Tensor, event_lengths: torch.Tensor, row_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = row_lengths.cumsum(0) - row_lengths
        event = torch.arange(event_lengths.numel(), device=values.device)
        place = event - torch.repeat_interleave(first, row_lengths, output_size=event.numel())
        kept_event = place < self.limit
        kept_value = torch.repeat_interleave(kept_event, event_lengths, output_size=values.numel())
        return (
            _to_front(values, kept_value),
            _to_front(event_lengths, kept_event),
            row_lengths.clamp(max=self.limit),
        )


def _to_front(values: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    chosen = values[kept]
    return F.pad(chosen, (0, values.numel() - chosen.numel()))


def _lengths(parts: int, total: int) -> torch.Tensor:
    """Random lengths that add up to the same total for every seed."""
    cuts = torch.randint(0, total + 1, (parts - 1,)).sort().values
    ends = torch.cat([cuts, torch.tensor([total])])
    return ends.diff(prepend=torch.tensor([0]))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(values), _lengths(events, values), _lengths(rows, events)]


def get_init_inputs() -> list[int]:
    return [limit]
