"""Run a kernel in QEMU's user-mode emulation on the arrays of a manifest, and count what it
executes.

    python run.py --emulator "qemu-riscv64 -cpu rv64,v=true" --classes rvv.toml --cost instructions
        PROGRAM MANIFEST

Writes the outputs and the report that the manifest names. The cost is the number of executed
instructions of the kernel (on a VLIW chip: packets), without those of the harness; metrics are
counts by the classes of `--classes`. Needs cc, llvm-nm-19, llvm-readelf-19 and llvm-objdump-19.
Arrays are read and written without numpy, whose import takes a third of a run.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import tomllib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Exit statuses of harness.c.
STATUSES = {
    3: "the arrays do not fit the memory of the emulated program (128 MiB, 64 arrays)",
    4: "the program could not read its arrays",
}
MOST_DIMENSIONS = 8
ORDERS = {"little": "<", "big": ">"}


def main() -> int:
    options = _options()
    manifest = json.loads(options.manifest.read_text(encoding="utf-8"))
    folder = options.manifest.parent
    order = ORDERS[options.byte_order]
    stream = b"".join(_input(manifest["tensors"], folder, order))
    sections = _sections(options.program)
    counts = folder / "counts.bin"
    plugin = ",".join(
        [
            str(_plugin()),
            f"out={counts}",
            *(f"{name}={value:#x}" for name, value in sections.items()),
        ]
    )
    emulator = shlex.split(options.emulator)
    command = [emulator[0], "-plugin", plugin, *emulator[1:], str(options.program)]
    ended = subprocess.run(command, input=stream, capture_output=True, check=False)
    if ended.returncode:
        sys.stderr.write(ended.stderr.decode(errors="replace")[-4000:])
        sys.stderr.write(f"{_why(ended.returncode)}\n")
        return 1
    _write_outputs(manifest["tensors"], folder, ended.stdout, order)
    executed = _executed(counts)
    metrics = _by_class(executed, options)
    total = sum(executed.values())
    report = {options.cost: total, "metrics": {options.cost: total, **metrics}}
    (folder / manifest["report"]).write_text(json.dumps(report), encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulator", required=True, help="command before the program")
    parser.add_argument("--classes", type=Path, required=True, help="TOML: name -> pattern")
    parser.add_argument("--cost", default="instructions", choices=("instructions", "packets"))
    parser.add_argument("--objdump", default="", help="options of llvm-objdump-19")
    parser.add_argument("--byte-order", default="little", choices=tuple(ORDERS))
    parser.add_argument("program", type=Path)
    parser.add_argument("manifest", type=Path)
    return parser.parse_args()


def _why(code: int) -> str:
    if code in STATUSES:
        return STATUSES[code]
    return f"the emulator ended with status {code}" + (
        ": an instruction that this chip lacks, or memory that is not mapped" if code < 0 else ""
    )


# -- arrays


def _input(tensors: Sequence[Mapping[str, Any]], folder: Path, order: str) -> Iterator[bytes]:
    yield struct.pack(f"{order}i", len(tensors))
    for tensor in tensors:
        shape, stored = tensor["shape"], tensor["stored"]
        if len(shape) > MOST_DIMENSIONS:
            raise SystemExit(f"{tensor['name']} has {len(shape)} dimensions; at most 8")
        elements = math.prod(shape)
        padded = [*shape, *[1] * (MOST_DIMENSIONS - len(shape))]
        output = tensor["role"] == "output"
        head = (output, len(shape), elements, elements * _item_bytes(stored), *padded)
        yield struct.pack(f"{order}12i", *head)
        if not output:
            yield _reordered(_elements(folder / tensor["file"], stored), stored, order)


def _write_outputs(
    tensors: Sequence[Mapping[str, Any]], folder: Path, data: bytes, order: str
) -> None:
    at = 0
    for tensor in tensors:
        if tensor["role"] != "output":
            continue
        stored = tensor["stored"]
        end = at + math.prod(tensor["shape"]) * _item_bytes(stored)
        if end > len(data):
            raise SystemExit("the program did not write all of its outputs")
        described = {
            "descr": _descr(stored),
            "fortran_order": False,
            "shape": tuple(tensor["shape"]),
        }
        head = f"{described}".encode()
        head += b" " * (-(len(NPY) + 2 + len(head) + 1) % 64) + b"\n"
        written = _reordered(data[at:end], stored, order)
        (folder / tensor["file"]).write_bytes(NPY + struct.pack("<H", len(head)) + head + written)
        at = end


# The start of a .npy file of version 1.0; the length and the text of its header follow.
# https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
NPY = b"\x93NUMPY\x01\x00"
_DTYPE = re.compile(r"(bool|u?int|float|complex)(\d*)")
_KINDS = {"bool": "b", "int": "i", "uint": "u", "float": "f", "complex": "c"}
_WORDS = {2: "H", 4: "I", 8: "Q"}


def _item_bytes(stored: str) -> int:
    match = _DTYPE.fullmatch(stored)
    if match is None:
        raise SystemExit(f"arrays of {stored} are not read here")
    return int(match[2] or 8) // 8


def _descr(stored: str) -> str:
    """The name of a data type in the header of a .npy file, in the byte order of this machine."""
    size, kind = _item_bytes(stored), _KINDS[_DTYPE.sub(r"\1", stored)]
    return f"{'|' if size == 1 else '<' if sys.byteorder == 'little' else '>'}{kind}{size}"


def _elements(path: Path, stored: str) -> bytes:
    """The elements of a .npy file, row by row."""
    data = path.read_bytes()
    if data[: len(NPY)] != NPY:
        raise SystemExit(f"{path.name} is no .npy file of version 1.0")
    (length,) = struct.unpack_from("<H", data, len(NPY))
    start = len(NPY) + 2 + length
    described = ast.literal_eval(data[len(NPY) + 2 : start].decode("latin-1"))
    if described["fortran_order"] or described["descr"] != _descr(stored):
        raise SystemExit(f"{path.name} does not hold {stored} row by row")
    return data[start:]


def _reordered(data: bytes, stored: str, order: str) -> bytes:
    """Elements between the byte order of this machine and that of the chip."""
    size = _item_bytes(stored) // (2 if stored.startswith("complex") else 1)
    if order == ORDERS[sys.byteorder] or size == 1:
        return data
    words = array(_WORDS[size])
    words.frombytes(data)
    words.byteswap()
    return words.tobytes()


# -- counts


def _plugin() -> Path:
    """The compiled plug-in, built once for each content of count.c."""
    source = HERE / "count.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"emulated-chips-{os.getuid()}" / f"count-{digest}.so"
    if not library.exists():
        library.parent.mkdir(mode=0o700, exist_ok=True)
        scratch = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", source, "-o", scratch], check=True)
        scratch.replace(library)
    return library


def _sections(program: Path) -> dict[str, int]:
    """Bounds of the text and of the harness in it, as options of the plug-in."""
    text = _tool("llvm-readelf-19", "-S", "--wide", str(program))
    rows = re.findall(r"\]\s+(\.\S+)\s+PROGBITS\s+([0-9a-f]+)\s+[0-9a-f]+\s+([0-9a-f]+)", text)
    bounds = {name: (int(at, 16), int(at, 16) + int(size, 16)) for name, at, size in rows}
    if ".text" not in bounds or ".harness" not in bounds:
        raise SystemExit("the program has no section .text or .harness: link harness.c into it")
    (lo, hi), (skip_lo, skip_hi) = bounds[".text"], bounds[".harness"]
    return {"lo": lo, "hi": hi, "skiplo": skip_lo, "skiphi": skip_hi}


def _executed(path: Path) -> dict[int, int]:
    """Executions by address; those outside the text under the address 0."""
    if not path.exists():
        raise SystemExit("the emulator wrote no counts: its plug-ins are disabled")
    data = array("Q", path.read_bytes())
    found = dict(zip(data[1::2], data[2::2], strict=True))
    return {**found, 0: data[0]} if data[0] else found


def _by_class(executed: Mapping[int, int], options: argparse.Namespace) -> dict[str, int]:
    """Executions by class. An instruction counts in each class whose pattern its text contains."""
    classes = tomllib.loads(options.classes.read_text(encoding="utf-8"))
    patterns = {name: re.compile(pattern) for name, pattern in classes.items()}
    counts = Counter(dict.fromkeys(classes, 0))
    texts = _disassembly(options)
    for address, times in executed.items():
        for name, pattern in patterns.items():
            counts[name] += times * len(pattern.findall(texts.get(address, "")))
    return dict(counts)


def _disassembly(options: argparse.Namespace) -> dict[int, str]:
    """The text of each instruction by address; of a packet, all of its instructions."""
    words = ["-d", "--no-show-raw-insn", "-j", ".text", *shlex.split(options.objdump)]
    texts: dict[int, str] = {}
    first, in_packet = 0, False
    for line in _tool("llvm-objdump-19", *words, str(options.program)).splitlines():
        match = re.match(r"\s*([0-9a-f]+):\s+(.*)", line)
        if match is None:
            continue
        address, text = int(match[1], 16), match[2].strip()
        first = first if in_packet else address
        texts[first] = f"{texts.get(first, '')} {text}".strip()
        in_packet = (in_packet or text.startswith("{")) and "}" not in text
    return texts


def _tool(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
