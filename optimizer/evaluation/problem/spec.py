"""What is to be optimized, as data: a reference in the KernelBench convention, its named cases and
what is allowed.

Knows neither torch nor how a case becomes tensors. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

OutputKind = Literal["float", "exact", "index"]
Distribution = Literal["as_given", "mean_zero", "offset", "wide"]
HELD_OUT = "held out: "  # how a note on derived held-out cases begins
OUTPUT_KINDS: tuple[OutputKind, ...] = ("float", "exact", "index")
DISTRIBUTIONS: tuple[Distribution, ...] = ("as_given", "mean_zero", "offset", "wide")


@dataclass(frozen=True)
class Case:
    """One shape, dtype and distribution of a problem.

    `constants` are module-level names of the problem file (batch_size, ...) that are set before its
    inputs are made. `dtype` is that of the floating inputs and weights, None as the file makes
    them. `weight` counts in means over cases. `timed` says whether the case is measured, or only
    checked. `held_out` cases are only seen when a winner is measured again. `devices` are the kinds
    that the case is meant for ("cpu", "cuda"), empty for any; a size for a GPU is no use on two
    cores.
    """

    name: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    distribution: Distribution = "as_given"
    weight: float = 1.0
    timed: bool = True
    held_out: bool = False
    devices: tuple[str, ...] = ()

    def fits(self, device: str) -> bool:
        """Whether the case is meant for this kind of device."""
        return not self.devices or device in self.devices


@dataclass(frozen=True)
class Policy:
    """What a candidate may do.

    * `precision`: `strict` computes floats at least as precisely as the inputs' dtype, `relaxed`
      may use tf32 or 16-bit matrix units inside.
    * `library`: whether ready-made operators of torch may do the work.
    * `weights`: `varying` weights change between calls, `frozen` weights may be packed once.
    * `outputs`: how each output is compared: float within the error bound, exact bitwise, index by
      the value it points to; one entry, or one per output.
    * `index_into`: for an index output, the input it points into and the dimension.
    * `reduction_length`: terms in one output element; None where it follows from the shapes.
    * `perturb`: names of integer inputs whose elements may be replaced independently.
    * `fixed`: names of floating inputs and weights whose values belong together (sorted borders,
      lookup tables, probabilities): no distribution is applied to them and no element is replaced.
    """

    precision: Literal["strict", "relaxed"] = "strict"
    library: Literal["allowed", "forbidden"] = "allowed"
    weights: Literal["varying", "frozen"] = "varying"
    outputs: tuple[OutputKind, ...] = ()
    index_into: Mapping[str, int] = field(default_factory=dict)
    reduction_length: int | str | None = None
    perturb: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A problem file and what its toml declares.

    `source` is the text of the file; `sha256` is of it and of the whole toml. `op` is a canonical
    operator of kb/problem_terms.toml. `declared` says whether a problem.toml stands beside the
    file; without a toml only the shape that the file itself makes is claimed.
    """

    name: str
    path: Path
    source: str
    sha256: str
    op: str
    cases: tuple[Case, ...]
    policy: Policy = Policy()
    declared: bool = False
    summary: str = ""

    @property
    def searched(self) -> tuple[Case, ...]:
        """The cases a search may see."""
        return tuple(case for case in self.cases if not case.held_out)

    @property
    def held_out(self) -> tuple[Case, ...]:
        """The cases that only a winner is measured on."""
        return tuple(case for case in self.cases if case.held_out)
