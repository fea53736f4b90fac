"""Run a kernel on core B of a simulated Tensix tile on the arrays of a manifest, and report cycles.

    python run_tensix.py PROGRAM MANIFEST

PROGRAM is an ELF file that is linked at address 0. Needs numpy, llvm-objcopy-19, and the PyPI
package wolfpine, in this interpreter or in that of the installed program `wolfpine`. Its cycles are
approximate, at the least those that the chip takes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy

os.environ.setdefault("TT_SIM_COST_MODEL", "1")
TABLE, ARRAYS, L1_BYTES = 0x20000, 0x21000, 1464 * 1024
BOUNDARY, STEP, MOST_CYCLES = 256, 50, 20_000_000
TILE = (18, 18)
DONE = 0x600D


def main(program: Path, manifest_path: Path) -> int:
    manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
    folder = manifest_path.parent
    image = folder / "program.bin"
    subprocess.run(["llvm-objcopy-19", "-O", "binary", program, image], check=True)
    code = image.read_bytes()
    if len(code) > TABLE:
        raise SystemExit(f"the program has {len(code)} bytes; at most {TABLE}")
    table, arrays = _memory(manifest["tensors"], folder)
    device = _device()
    device.write(TILE, 0, code)
    device.write(TILE, TABLE, table)
    for address, data in arrays:
        device.write(TILE, address, data)
    cycles = _run(device)
    _write_outputs(device, manifest["tensors"], arrays, folder)
    report = {"cycles": cycles, "metrics": {"tensix_cycles": cycles}}
    (folder / manifest["report"]).write_text(json.dumps(report), encoding="utf-8")
    return 0


def _memory(tensors: list[dict[str, Any]], folder: Path) -> tuple[bytes, list[tuple[int, bytes]]]:
    """The table of the tensors, and the address and bytes of each."""
    rows, arrays, at = [], [], ARRAYS
    for tensor in tensors:
        dtype = numpy.dtype(tensor["stored"])
        elements = int(numpy.prod(tensor["shape"])) if tensor["shape"] else 1
        data = bytes(elements * dtype.itemsize)
        if tensor["role"] != "output":
            data = numpy.ascontiguousarray(numpy.load(folder / tensor["file"])).tobytes()
        shape = [*tensor["shape"], *[1] * (8 - len(tensor["shape"]))]
        rows.append(struct.pack("<Iii8i", at, len(tensor["shape"]), elements, *shape))
        arrays.append((at, data))
        at = (at + len(data) + 2 * BOUNDARY - 1) // BOUNDARY * BOUNDARY
    if at > L1_BYTES or len(tensors) > 16:
        raise SystemExit(f"the arrays need {at} bytes of L1 with the program; it has {L1_BYTES}")
    return struct.pack("<3I", 0, 0, len(rows)) + b"".join(rows), arrays


def _device() -> Any:
    import yaml  # which wolfpine needs

    # The simulator reads two large files with `yaml.safe_load`; its cache is below the home folder,
    # which an evaluation lacks. The parser in C gives the same objects in a tenth of the time.
    yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]
    from framework.device.wormhole import Wormhole  # type: ignore[import, unused-ignore]

    device = Wormhole(tensix_coords=[TILE])
    device.reset()
    device.assert_soft_reset(TILE)
    return device


def _run(device: Any) -> int:
    from framework.pe.rv.babyriscv import (  # type: ignore[import, unused-ignore]
        BabyRISCVCoreType,
    )

    device.deassert_soft_reset(TILE, BabyRISCVCoreType.BRISC)
    for _ in range(0, MOST_CYCLES, STEP):
        try:
            device.run(STEP)
        except Exception as problem:  # the simulator has no error class for a fault of the kernel
            raise SystemExit(f"the simulated core stopped: {problem}") from problem
        done, cycles = struct.unpack("<2I", bytes(device.read(TILE, TABLE, 8)))
        if done == DONE:
            return int(cycles)
    raise SystemExit(f"the kernel did not end within {MOST_CYCLES} cycles")


def _write_outputs(
    device: Any, tensors: list[dict[str, Any]], arrays: list[tuple[int, bytes]], folder: Path
) -> None:
    for tensor, (address, data) in zip(tensors, arrays, strict=True):
        if tensor["role"] == "output":
            read = bytes(device.read(TILE, address, len(data)))
            array = numpy.frombuffer(read, numpy.dtype(tensor["stored"]))
            numpy.save(folder / tensor["file"], array.reshape(tensor["shape"]))


def _with_wolfpine() -> None:
    """Continue in the interpreter of the installed `wolfpine`, if this one lacks the package."""
    if importlib.util.find_spec("framework") is not None:
        return
    program = shutil.which("wolfpine")
    if program is None:
        raise SystemExit("wolfpine is not installed: pip install wolfpine")
    interpreter = Path(program).read_text(encoding="utf-8").partition("\n")[0].removeprefix("#!")
    os.execv(interpreter, [interpreter, *sys.argv])


if __name__ == "__main__":
    _with_wolfpine()
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
