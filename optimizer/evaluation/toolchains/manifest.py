"""The ABI as files: `.npy` arrays, the JSON manifest that names them, and the report of a run.

    {"format": 1, "entry": NAME, "hardware": ID, "report": FILE,
     "tensors": [{"name", "role", "dtype", "stored", "shape", "file"}, ...]}

A toolchain that names its arguments adds `argument` to each tensor, one with scalars the key
`"scalars": {NAME: number}`.

Tensors stand in ABI order; files are relative to the manifest. `stored` is the dtype of the file
where `.npy` has no word for `dtype`: bfloat16 lies in uint16, its bits unchanged. Outputs are
written by the program, named as the manifest says. Nothing here trusts what a program wrote.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kb.errors import InvalidRequest
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.toolchains.base import Metric

if TYPE_CHECKING:
    import torch

FORMAT = 1
MANIFEST = "manifest.json"
REPORT = "report.json"
STORED: Mapping[str, str] = {"bfloat16": "uint16"}
HEADER_ROOM = 64 * 1024  # the longest header of a version 1 file
MAX_REPORT = 1 << 20
MAX_METRICS = 1000


class BadOutput(Exception):
    """What a program wrote does not follow the manifest; the message explains how."""


@dataclass(frozen=True)
class Report:
    """A program's report. `cycles` and `time_us` are those of one call, None where the report has
    none."""

    cycles: int | None = None
    time_us: float | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)


def file_of(number: int, tensor: TensorSpec) -> str:
    """The file name of a tensor. Names come from arguments and state_dict keys; only their letters
    and digits are kept."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in tensor.name)[:60]
    return f"{number:03d}_{plain}.npy"


def write_manifest(
    tensors: Sequence[torch.Tensor],
    signature: Signature,
    folder: Path,
    *,
    entry: str,
    hardware: str,
    arguments: Sequence[str] = (),
    scalars: Mapping[str, int | float] | None = None,
) -> Path:
    """Write what the program reads, and return the manifest's path. `tensors` are inputs,
    parameters and buffers in ABI order. `arguments` are the program's own names of all tensors,
    outputs included; `scalars` are handed over where they are not None. Raises InvalidRequest where
    the tensors do not fit the signature."""
    specs = signature.of("input", "parameter", "buffer")
    if len(tensors) != len(specs):
        raise InvalidRequest(
            f"{len(tensors)} tensors for {len(specs)} inputs and parameters",
            hint="Pass inputs, then parameters and buffers, without the outputs.",
        )
    waiting = iter(tensors)
    rows = []
    for number, spec in enumerate(signature.tensors):
        name = file_of(number, spec)
        stored = STORED.get(spec.dtype, spec.dtype)
        if spec.role != "output":
            _write_array(next(waiting), spec, folder / name)
        own = {"argument": arguments[number]} if arguments else {}
        rows.append({**spec.as_json(), **own, "stored": stored, "file": name})
    header: dict[str, Any] = {
        "format": FORMAT,
        "entry": entry,
        "hardware": hardware,
        "report": REPORT,
    }
    if scalars is not None:
        header["scalars"] = dict(scalars)
    path = folder / MANIFEST
    path.write_text(json.dumps({**header, "tensors": rows}, indent=1) + "\n", encoding="utf-8")
    return path


def _write_array(tensor: torch.Tensor, spec: TensorSpec, path: Path) -> None:
    import numpy
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if (dtype, tuple(tensor.shape)) != (spec.dtype, spec.shape):
        raise InvalidRequest(
            f"{spec.name} is {dtype} {tuple(tensor.shape)}, not {spec.dtype} {spec.shape}",
            hint="Pass the tensors of the case that the signature belongs to.",
        )
    plain = tensor.detach().cpu().contiguous()
    if dtype in STORED:
        plain = plain.view(torch.uint16)
    numpy.save(path, plain.numpy(), allow_pickle=False)


# ---------------------------------------------------------------- outputs


def read_outputs(signature: Signature, folder: Path) -> list[torch.Tensor]:
    """The outputs in ABI order. Raises BadOutput when one is missing or not as the manifest
    asks."""
    return [
        _read_array(spec, folder / file_of(number, spec))
        for number, spec in enumerate(signature.tensors)
        if spec.role == "output"
    ]


def _read_array(spec: TensorSpec, path: Path) -> torch.Tensor:
    import numpy
    import torch

    stored = numpy.dtype(STORED.get(spec.dtype, spec.dtype))
    with _plain_file(path, f"output {spec.name}", spec.bytes + HEADER_ROOM) as stream:
        shape, column_major, dtype = _header(stream, spec.name)
        if dtype != stored:
            raise BadOutput(f"output {spec.name} has dtype {dtype}, expected {stored}")
        if shape != spec.shape:
            raise BadOutput(f"output {spec.name} has shape {shape}, expected {spec.shape}")
        data = bytearray(stream.read(spec.bytes + 1))
    if len(data) != spec.bytes:
        held = "more" if len(data) > spec.bytes else f"{len(data):,}"
        raise BadOutput(f"output {spec.name} holds {held} bytes of data, expected {spec.bytes:,}")
    flat = numpy.frombuffer(data, stored)
    array = flat.reshape(shape, order="F" if column_major else "C")
    tensor = torch.from_numpy(numpy.ascontiguousarray(array).reshape(shape))
    return tensor.view(torch.bfloat16) if spec.dtype == "bfloat16" else tensor


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, Any]:
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(stream)
        if version not in readers:
            raise BadOutput(f"output {name} is .npy of version {version}, expected 1.0")
        shape, column_major, dtype = readers[version](stream)
    except (ValueError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as problem:
        raise BadOutput(f"output {name} is not a .npy file: {str(problem)[:200]}") from problem
    return tuple(shape), bool(column_major), dtype


@contextmanager
def _plain_file(path: Path, label: str, limit: int) -> Iterator[IO[bytes]]:
    """Open a regular file of at most `limit` bytes: no link, and no pipe that would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BadOutput(f"{label} was not written: there is no {path.name}") from None
    except OSError as problem:
        raise BadOutput(f"{label} cannot be read: {problem.strerror}") from problem
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise BadOutput(f"{label}: {path.name} is not a regular file")
    with os.fdopen(descriptor, "rb") as stream:
        if status.st_size > limit:
            raise BadOutput(f"{label} is too large: {status.st_size:,} bytes, at most {limit:,}")
        yield stream


# ---------------------------------------------------------------- report


def read_report(path: Path) -> Report:
    """The report of a run. Raises BadOutput when it is missing or garbled."""
    with _plain_file(path, "the report", MAX_REPORT) as stream:
        data = stream.read(MAX_REPORT + 1)
    try:
        report = json.loads(data, parse_constant=_not_finite)
    except (ValueError, RecursionError) as problem:
        raise BadOutput(f"the report is not JSON: {str(problem)[:200]}") from problem
    if not isinstance(report, dict):
        raise BadOutput("the report is not a JSON object with cycles or time_us, and metrics")
    cycles = _positive(report, "cycles")
    return Report(
        cycles=None if cycles is None else int(cycles),
        time_us=_positive(report, "time_us"),
        metrics=_metrics(report.get("metrics", {})),
    )


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _positive(report: Mapping[str, Any], key: str) -> float | None:
    value = report.get(key)
    if value is None:
        return None
    number = _number(value)
    if number is None or number <= 0:
        raise BadOutput(f"the report's {key} is {str(value)[:40]!r}, expected a positive number")
    return number


def _number(value: object) -> float | None:
    """A finite number; JSON's integers have no upper bound and 1e999 reads as infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and value.bit_length() > 1000:
        return None
    return float(value) if math.isfinite(value) else None


def _metrics(reported: object) -> Mapping[str, Metric]:
    if not isinstance(reported, dict) or len(reported) > MAX_METRICS:
        raise BadOutput(f"the report's metrics are not an object of at most {MAX_METRICS} entries")
    metrics: dict[str, Metric] = {}
    for name, value in reported.items():
        if isinstance(value, bool):
            metrics[name] = float(value)
        elif isinstance(value, str) and len(value) <= 200:
            metrics[name] = value
        elif (number := _number(value)) is not None:
            metrics[name] = number
        else:
            raise BadOutput(f"the report's metric {name[:60]!r} is neither number nor short text")
    return metrics
