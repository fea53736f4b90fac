"""Fresh values in the same buffers before every call, the same on both sides of a comparison.

A candidate that keeps results by address, by version counter or by a fingerprint of its inputs is
then wrong, because no call sees what an earlier one saw. The supervisor replays the changes on its
own copy, so it knows the inputs of any call without shipping them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

CHUNK = 16_384  # elements replaced in each tensor before a call, half of a small one


def refresh(
    tensors: Sequence[torch.Tensor | None],
    banks: Sequence[torch.Tensor | None],
    seed: int,
    call: int,
) -> None:
    """Replace a random stretch of every tensor that has a bank by a random stretch of that bank.

    A bank is a second draw of the same tensor, so replaced values follow its distribution. `seed`
    is the block's, `call` counts from 0 within it.
    """
    chosen = random.Random(seed * 1_000_003 + call)
    for tensor, bank in zip(tensors, banks, strict=True):
        if tensor is None or bank is None:
            continue
        # Never all of it: then every call would see the same values, those of the bank.
        count = min(CHUNK, max(1, tensor.numel() // 2))
        to = chosen.randrange(tensor.numel() - count + 1)
        source = chosen.randrange(bank.numel() - count + 1)
        tensor.view(-1)[to : to + count].copy_(bank.view(-1)[source : source + count])
