"""`kernlore hardware check`: what a description lacks, and the line to add. The tools are small
real programs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.cli.target import CommandTarget, read_settings
from optimizer.evaluation.hardware_check import (
    CheckedPart,
    HardwareCheck,
    LanguageCheck,
    check_hardware,
    first_prompt_parts,
)
from tests.api.cli_process import kernlore
from tests.catalogs import builtin_data_dir

pytestmark = pytest.mark.slow(seconds=5)

# A kernel is a Python file that reads the manifest.
KERNEL = """
import json, sys
from pathlib import Path
import numpy as np
path = Path(sys.argv[1])
manifest = json.loads(path.read_text())
named = {row["argument"]: row for row in manifest["tensors"]}
x, w = (np.load(path.parent / named[name]["file"]) for name in ("in0", "w0"))
assert manifest["entry"] == "main"
out = x * w + manifest["scalars"]["columns"]
np.save(path.parent / named["out"]["file"], out.astype(np.float32))
report = {"time_us": 5.0, "metrics": {"toy_stalls": 3, "toy_beats": 4, "toy_other": 1}}
(path.parent / manifest["report"]).write_text(json.dumps(report))
"""
NAMED = 'assert manifest["entry"] == "main"\n'
TENSOR = {"dtype": "float32", "shape": [4, 8]}
TOY: dict[str, Any] = {
    "id": "toy",
    "languages": ["toyc"],
    "rules": [
        {"id": "toy-waits", "when": "toy_stalls > 2", "signal": "memory_latency", "title": "Waits"}
    ],
    "metrics": {"toy_beats": {"canonical": "dram_bytes", "scale": 64}},
    "toolchains": {
        "toyc": {
            "run": "python {source} {input}",
            "suffix": ".py",
            "entry": "main",
            "interface": "Runs once.",
            "arguments": {"input": "in{index}", "weight": "w{index}", "output": "out"},
            "scalars": {"columns": "x.shape[1]"},
            "sample": KERNEL,
            "sample_arguments": [
                {"name": "x", "role": "input", **TENSOR},
                {"name": "w", "role": "weight", "dtype": "float32", "shape": [8]},
                {"name": "y", "role": "output", **TENSOR},
            ],
            "sample_reference": "x * w + 8",
        }
    },
}
TOY["toolchains"]["toyc"]["arguments"]["output"] = "out{index}"
TOY["toolchains"]["toyc"]["arguments"]["single_output"] = "out"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[CommandTarget]:
    target = CommandTarget(read_settings(builtin_data_dir(tmp_path / "data")))
    yield target
    target.close()


def checked(local: CommandTarget, **changes: Any) -> HardwareCheck:
    """`changes` of the toolchain; None removes a key."""
    chain = {**TOY["toolchains"]["toyc"], **changes}
    chain = {key: value for key, value in chain.items() if value is not None}
    local.services.register_hardware({**TOY, "toolchains": {"toyc": chain}}, "toy.toml")
    return check_hardware(local.services, "toy")


def part(check: LanguageCheck, name: str) -> CheckedPart:
    return next(p for p in (*check.tools, *check.sample, *check.prompt) if p.name == name)


def test_complete_description(local: CommandTarget) -> None:
    check = checked(local)
    [toyc] = check.languages
    assert check.ok, toyc
    assert [(p.name, p.state) for p in toyc.sample] == [
        ("compiles", "present"),
        ("runs", "present"),
        ("right", "present"),
    ]
    leads = {counter.name: counter.leads_to for counter in toyc.counters}
    assert leads["toy_stalls"] == (("toy-waits", "memory_latency"),)
    assert leads["toy_other"] == () and "memory_bound" in {s for _, s in leads["toy_beats"]}
    assert part(toyc, "manual documents").state == "missing"


@pytest.mark.parametrize(
    ("changes", "name", "state", "fix"),
    [
        ({"interface": None}, "interface", "missing", "interface = "),
        ({"sample_reference": "x + w"}, "right", "failed", "Correct the sample"),
        ({"sample_reference": "x.sum()"}, "right", "failed", "Correct the sample"),
        ({"sample": KERNEL + "sys.exit(3)"}, "runs", "failed", "Correct the sample"),
        ({"scalars": {"columns": "epsilon"}}, "runs", "failed", "Correct the sample"),
        (
            {"sample_arguments": None, "sample_reference": None},
            "runs",
            "missing",
            "sample_arguments = ",
        ),
        (
            {"sample": None, "sample_arguments": None, "sample_reference": None},
            "sample",
            "missing",
            'sample = """',
        ),
        ({"run": "no-such-runner {source} {input}"}, "tools", "failed", "Install it"),
    ],
)
def test_missing_or_failing_part_has_line_to_add(
    local: CommandTarget, changes: dict[str, Any], name: str, state: str, fix: str
) -> None:
    check = checked(local, **changes)
    found = part(check.languages[0], name)
    assert not check.ok
    assert (found.state, found.needed) == (state, True) and fix in found.fix


def test_toolchain_without_entry_is_complete(local: CommandTarget) -> None:
    called = NAMED.replace('"main"', '"kernlore_run"')  # also in a file of Python
    check = checked(local, entry=None, sample=KERNEL.replace(NAMED, called))
    found = part(check.languages[0], "entry")
    one = check.languages[0]
    rows = (*one.tools, *one.sample, *one.prompt)
    wrong = [p for p in rows if p.needed and p.state != "present"]
    assert check.ok and not found.needed, wrong
    assert "optional" in found.message and "kernlore_run" in found.message


def test_sample_without_reference_runs_unjudged(local: CommandTarget) -> None:
    check = checked(local, sample_reference=None)
    right = part(check.languages[0], "right")
    assert check.ok and (right.state, right.needed) == ("missing", False)
    assert part(check.languages[0], "runs").message == "5.00 us"


def test_chip_without_toolchain(local: CommandTarget) -> None:
    local.services.register_hardware({"id": "bare", "languages": ["barec"]}, "bare.toml")
    check = check_hardware(local.services, "bare")
    assert not check.ok and check.parts[0].fix.startswith("[toolchains.barec]")


def test_parts_of_first_prompt_are_named(local: CommandTarget) -> None:
    checked(local)
    chain = local.services.registry.get("toy").toolchains["toyc"]
    names = [p.name for p in first_prompt_parts(local.services, "toy", "toyc", chain)]
    assert names[:2] == ["entry", "interface"]
    assert names[-6:] == [
        "manual documents",
        "names with cards",
        "error codes with cards",
        "names with limits",
        "whole kernels",
        "recipes",
    ]


def test_command(local: CommandTarget, tmp_path: Path) -> None:
    checked(local)
    done = kernlore("hardware", "check", "toy", data=tmp_path / "data")
    assert done.code == 0, done.err
    assert "toy_stalls -> memory_latency (toy-waits)" in done.out
    checked(local, interface=None, suffix=None)
    done = kernlore("hardware", "check", "toy", data=tmp_path / "data")
    assert "suffix            missing: not stated (optional)\n" in done.out
    assert "interface         needed, missing: not stated\n" in done.out
    done = kernlore("hardware", "check", "toy", "--json", data=tmp_path / "data")
    assert done.code == 1 and json.loads(done.out)["ok"] is False
