"""`python -P THIS_FILE FOLDER TARGET`: export the model of a sentence-transformers folder to ONNX.

Runs as a separate process, because it imports torch, and ends when its standard input is closed.
Imports nothing of Kernlore.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any


def export_onnx(folder: Path, target: Path) -> None:
    """Write `target` from the model in `folder`, in about 3 s after importing torch. Its inputs are
    `input_ids` and `attention_mask`, both (batch, tokens) int64; its output `embedding` (batch,
    dimension) float32 is the mean over the tokens, of unit length.
    """
    gc.disable()  # there is hardly any garbage
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    class Pooled(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask)[0]
            weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    model = AutoModel.from_pretrained(str(folder), attn_implementation="eager").eval()
    example = torch.ones(2, 8, dtype=torch.long)
    axes = {0: "batch", 1: "tokens"}
    partial = _partial(target)
    with warnings.catch_warnings():
        # The tracing exporter is deprecated, but takes 2 s instead of 7.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Pooled(model),
            (example, example),
            str(partial),
            input_names=["input_ids", "attention_mask"],
            output_names=["embedding"],
            dynamic_axes={"input_ids": axes, "attention_mask": axes, "embedding": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )
    partial.replace(target)


def _partial(target: Path) -> Path:
    """The name of the incomplete file."""
    return target.with_suffix(f".{os.getpid()}.part")


def _end_with_the_parent(target: Path) -> None:
    while os.read(0, 4096):
        pass
    _partial(target).unlink(missing_ok=True)
    os._exit(1)


if __name__ == "__main__":
    folder, target = map(Path, sys.argv[1:])
    threading.Thread(target=_end_with_the_parent, args=(target,), daemon=True).start()
    export_onnx(folder, target)
