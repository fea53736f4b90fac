"""Twenty problems as users have them, one file each in `problems`: a block of a published model
with random weights, so that nothing is downloaded. They are read as text here: their packages
(torchvision, timm, transformers) need to be importable only where a problem is searched."""

from __future__ import annotations

import re
from pathlib import Path

# A batch that keeps two cores busy for milliseconds keeps a GPU busy for as long when it is this
# many times as large.
GPU_BATCHES = 32
BATCH = re.compile(r"^BATCH = (\d+)$", re.MULTILINE)


def write_modules(size: str, out: Path) -> list[str]:
    """Writes the problem files into a folder that exists; `size` is "cpu" or "gpu". Returns their
    names. Raises OSError where the folder cannot be written."""
    factor = GPU_BATCHES if size == "gpu" else 1
    names = []
    for path in sorted((Path(__file__).parent / "problems").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        larger = BATCH.sub(lambda match: f"BATCH = {int(match[1]) * factor}", text)
        (out / path.name).write_text(larger, encoding="utf-8")
        names.append(path.stem)
    return names
