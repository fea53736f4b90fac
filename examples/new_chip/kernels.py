"""Write the sample kernels for one chip: its opcode names, and tiles as large as it allows.

    python kernels.py CHIP_FOLDER [FOLDER]

Standard library only. Each file is a candidate with the entry `kernlore_run` for the problem that
its name starts with (`problems/`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from chip import words

HERE = Path(__file__).resolve().parent
SUFFIX = ".nv"
SIZE = 64  # of the square matrices of problems/matmul.py
ROW = 128  # columns of problems/elementwise.py and problems/softmax.py


def tiles(chip: Mapping[str, Any]) -> dict[str, int]:
    """Tile sizes that this chip can hold, by the names of the templates."""
    lanes, pad = chip["lanes"], chip["bank_width"] // 4
    tall = [rows for rows in (64, 32, 16, 8) if 2 * rows * ROW * 4 <= chip["scratchpad_bytes"]]
    return {
        **matmul_tiles(chip),
        "pad": pad,
        "rows": tall[0],
        "soft_rows": _softmax_rows(chip),
        "odd_columns": lanes + 1,
    }


def matmul_tiles(chip: Mapping[str, Any]) -> dict[str, int]:
    """Of all tilings that fit, the one with the most vector registers; then the deepest."""
    lanes, registers = chip["lanes"], chip["vector_registers"]
    pad = chip["bank_width"] // 4
    sizes = (8, 16, 32, 64)
    fitting = [
        (m * n // lanes, k, m, n)
        for m in sizes
        for n in sizes
        for k in (16, 32, 64)
        if n % lanes == 0 and k % lanes == 0 and m * n // lanes <= registers
        if matmul_bytes(m, n, k, pad) <= chip["scratchpad_bytes"]
    ]
    _, k, m, n = max(fitting)
    return {"tile_m": m, "tile_n": n, "tile_k": k}


def matmul_bytes(m: int, n: int, k: int, pad: int) -> int:
    """Scratchpad of the tiles of matmul_good."""
    return 4 * (m * (k + pad) + k * n + m * n)


def _softmax_rows(chip: Mapping[str, Any]) -> int:
    width = (ROW * 4 + chip["bank_width"]) + chip["bank_width"]
    return next(rows for rows in (64, 32, 16, 8) if rows * width <= chip["scratchpad_bytes"])


def write(chip: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every template of kernels/ with this chip's names and sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    report = {**words(chip), **tiles(chip)}
    written = []
    for template in sorted((HERE / "kernels").glob(f"*{SUFFIX}.template")):
        path = folder / template.name.removesuffix(".template")
        text = Template(template.read_text(encoding="utf-8")).substitute(report)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("chip", type=Path, help="the folder that chip.py wrote")
    parser.add_argument("folder", type=Path, nargs="?", help="default: CHIP/kernels")
    asked = parser.parse_args()
    chip = json.loads((asked.chip / "chip.json").read_text(encoding="utf-8"))
    for path in write(chip, asked.folder or asked.chip / "kernels"):
        print(path)


if __name__ == "__main__":
    main()
