"""What a Python candidate is constructed with, beside the signature: init arguments, constants, the
values of plain numbers. Handed to the Triton toolchains as a file in the working directory.

Without the file they use the candidate's own `get_init_inputs`, if it has one. Standard library
only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optimizer.evaluation.abi import Signature

SETUPS = "setups.json"


@dataclass(frozen=True)
class CaseSetup:
    """Of one case, beside its signature. Everything is JSON.

    dtype: of the floating weights, None as the candidate makes them. scalars: values of inputs that
    are plain numbers, by name.
    """

    init_args: Sequence[Any] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    scalars: Mapping[str, int | float | bool] = field(default_factory=dict)


def write_setups(workdir: Path, setups: Sequence[CaseSetup]) -> None:
    """One for each signature, in the same order."""
    text = json.dumps([asdict(setup) for setup in setups])
    (workdir / SETUPS).write_text(text, encoding="utf-8")


def case_requests(workdir: Path, signatures: Sequence[Signature]) -> list[dict[str, Any]]:
    """Each signature with its setup, as the compiling process reads them."""
    path = workdir / SETUPS
    setups = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    setups += [{}] * (len(signatures) - len(setups))
    return [
        {**setup, "tensors": [tensor.as_json() for tensor in signature.tensors]}
        for setup, signature in zip(setups, signatures, strict=False)
    ]
