"""What a problem.toml declares, checked as a whole: every mistake is reported at once.

Knows the keys and their types, not the problem file's meaning.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest, nearest
from kb.problem_terms import canonical_dtype, canonical_op
from optimizer.evaluation.problem.spec import DISTRIBUTIONS, OUTPUT_KINDS, Case, Policy

DTYPES = ("float32", "float64", "float16", "bfloat16")
DEVICES = ("cpu", "cuda")
_TOP = ("name", "op", "summary", "policy", "cases")


@dataclass(frozen=True)
class Declaration:
    """The toml's part of a problem; what it leaves out is None or empty."""

    name: str = ""
    op: str = ""
    summary: str = ""
    policy: Policy | None = None
    cases: tuple[Case, ...] = ()


def read_declaration(path: Path, text: str, constants: Collection[str]) -> Declaration:
    """Read the toml. `constants` are the names that a case of this problem file may set. Raises
    InvalidRequest with every mistake."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{path.name}: {error}", hint="Correct the TOML syntax.") from error
    reader = _Reader()
    top = reader.table(raw, _TOP, path.name)
    cases = top.get("cases", [])
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        reader.problems.append("cases: must be written as [[cases]] tables")
        cases = []
    policy = reader.policy(top.get("policy", {}))
    declared = tuple(reader.case(row, n, constants) for n, row in enumerate(cases, 1))
    reader.whole(declared)
    declaration = Declaration(
        name=reader.value(top, "name", str, "", "name"),
        op=canonical_op(reader.value(top, "op", str, "", "op")),
        summary=reader.value(top, "summary", str, "", "summary"),
        policy=policy,
        cases=declared,
    )
    if reader.problems:
        raise InvalidRequest(
            f"{path.name}: " + "; ".join(reader.problems),
            hint=f"Correct {'this' if len(reader.problems) == 1 else 'these'} in {path}.",
            details={"problems": reader.problems},
        )
    return declaration


class _Reader:
    """Takes values out of tables and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def table(self, raw: Any, keys: Collection[str], where: str) -> Mapping[str, Any]:
        if not isinstance(raw, dict):
            self.problems.append(f"{where}: must be a table")
            return {}
        for key in raw:
            if key not in keys:
                near = nearest(key, keys, 1)
                guess = f", did you mean {near[0]}?" if near else f"; known: {', '.join(keys)}"
                self.problems.append(f"{where}: unknown key {key!r}{guess}")
        return raw

    def value(
        self, row: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any, at: str
    ) -> Any:
        if key not in row:
            return default
        value = row[key]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(k.__name__ for k in kinds)
            self.problems.append(f"{at}: must be {names}, is {value!r}")
            return default
        return value

    def choice(
        self, row: Mapping[str, Any], key: str, allowed: Collection[str], default: Any, at: str
    ) -> Any:
        choice = self.value(row, key, str, default, at)
        if choice is not default and choice not in allowed:
            near = nearest(choice, allowed, 1)
            guess = f", did you mean {near[0]}?" if near else ""
            self.problems.append(f"{at}: {choice!r} is none of {', '.join(allowed)}{guess}")
            return default
        return choice

    def names(self, row: Mapping[str, Any], key: str, at: str) -> tuple[str, ...]:
        names = self.value(row, key, list, [], at)
        if not all(isinstance(part, str) for part in names):
            self.problems.append(f"{at}: must be a list of names")
            return ()
        return tuple(names)

    def policy(self, raw: Any) -> Policy:
        row = self.table(raw, tuple(Policy.__dataclass_fields__), "policy")
        outputs = self.names(row, "outputs", "policy.outputs")
        for kind in outputs:
            if kind not in OUTPUT_KINDS:
                self.problems.append(
                    f"policy.outputs: {kind!r} is none of {', '.join(OUTPUT_KINDS)}"
                )
        into = self.value(row, "index_into", dict, {}, "policy.index_into")
        if not all(isinstance(dim, int) for dim in into.values()):
            self.problems.append("policy.index_into: write {input = dimension}")
        length = self.value(row, "reduction_length", (int, str), None, "policy.reduction_length")
        return Policy(
            precision=self.choice(
                row, "precision", ("strict", "relaxed"), "strict", "policy.precision"
            ),
            library=self.choice(
                row, "library", ("allowed", "forbidden"), "allowed", "policy.library"
            ),
            weights=self.choice(row, "weights", ("varying", "frozen"), "varying", "policy.weights"),
            outputs=tuple(kind for name in outputs for kind in OUTPUT_KINDS if kind == name),
            index_into=into,
            reduction_length=length,
            perturb=self.names(row, "perturb", "policy.perturb"),
            fixed=self.names(row, "fixed", "policy.fixed"),
        )

    def case(self, raw: Mapping[str, Any], number: int, constants: Collection[str]) -> Case:
        label = raw.get("name") if isinstance(raw.get("name"), str) else f"number {number}"
        at = f"case {label}"
        row = self.table(raw, tuple(Case.__dataclass_fields__), at)
        if "name" not in row:
            self.problems.append(f"{at}: has no name")
        values = self.value(row, "constants", dict, {}, f"{at}.constants")
        for name in values:
            if name not in constants:
                near = nearest(name, constants, 1)
                guess = f", did you mean {near[0]}?" if near else ""
                self.problems.append(
                    f"{at}: the file has no constant {name!r}{guess} "
                    f"(it has {', '.join(sorted(constants)) or 'none'})"
                )
        dtype = self.value(row, "dtype", str, None, f"{at}.dtype")
        devices = self.names(row, "devices", f"{at}.devices")
        for device in devices:
            if device not in DEVICES:
                self.problems.append(f"{at}.devices: {device!r} is none of {', '.join(DEVICES)}")
        weight = float(self.value(row, "weight", (int, float), 1.0, f"{at}.weight"))
        if weight < 0:
            self.problems.append(f"{at}.weight: must not be negative")
        return Case(
            name=str(label),
            constants=values,
            dtype=self._dtype(dtype, at),
            distribution=self.choice(
                row, "distribution", DISTRIBUTIONS, "as_given", f"{at}.distribution"
            ),
            weight=weight,
            timed=self.value(row, "timed", bool, True, f"{at}.timed"),
            held_out=self.value(row, "held_out", bool, False, f"{at}.held_out"),
            devices=devices,
        )

    def _dtype(self, dtype: str | None, at: str) -> str | None:
        if dtype is None:
            return None
        canonical = canonical_dtype(dtype)
        if canonical not in DTYPES:
            self.problems.append(f"{at}.dtype: {dtype!r} is none of {', '.join(DTYPES)}")
            return None
        return canonical

    def whole(self, cases: tuple[Case, ...]) -> None:
        names = [case.name for case in cases]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.problems.append(f"two cases are called {name!r}")
        if cases and all(case.held_out for case in cases):
            self.problems.append("every case is held out: a search would see none")
