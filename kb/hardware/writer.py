"""Writes hardware.toml: a `HardwareSpec` as text, and the commented file that a team fills in for a
new chip.

Reading the text of a spec back gives the same spec. The template is a valid description as it
stands: lines of the form `#key = ...` (no space after `#`) are entries to fill in and uncomment;
all other comments are explanations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import tomli_w

from kb.errors import InvalidKnowledge
from kb.hardware.facts import fact_keys
from kb.hardware.spec import HARDWARE_ID, HardwareSpec, ScalarSpec, ToolchainSpec

_TEMPLATE = """\
# Description of one accelerator for Kernlore. It is valid as it is; every entry you fill in makes
# answers better. Lines starting with "#" and a name are entries to fill in and uncomment. Register
# it with `kernlore hardware add FILE` (or POST /hardware), again after each change.

# How requests name it: 1-64 of a-z 0-9 . _ -, starting with a letter or digit.
id = "{id}"
name = "{id}"
# Whose chip it is: the id of the vendor, such as "nvidia".
vendor = "custom"
# The family above it, already registered: its facts and manuals then hold here too.
#parent = "custom-family"
# Other names in logs, manuals and device listings; a heading "On Xyz 2 ..." is scoped by them.
#aliases = ["xyz-2", "XYZ 2 PCIe"]
# What kernels are written in for it.
#languages = ["mylang"]
# accelerator | family | vendor
kind = "accelerator"
#summary = "One sentence: what it is and what it is good at."

# ---- Facts: numbers with their source, in the unit of the key and without prefixes
# (80 GB of memory are 85899345920 B, 2 TB/s are 2.0e12 B/s).
# kind: datasheet (title, publisher, locator, date) | measured (title, date) | derived (formula).
# A number that is not published is left out. Known keys:
#
{keys}
#
# Any other lower_case key is accepted as your own. Start with these, they bound and prune the most:

{facts}

#[[facts]]
#key = "x_my_own_fact"
#value = 42
#unit = "count"
#kind = "measured"
#title = "Micro-benchmark xyz, 20 runs"
#date = "2026-01-31"

# ---- Error texts of its own compiler or runtime. Single quotes keep backslashes as they are. A
# pattern needs four ordinary characters in a row: 'E\\d+' has none, 'E\\d+: no such register' has.

#[[signatures]]
#pattern = 'out of local memory: requested (\\d+)'
#signal = "shared_memory_limit"
#title = "The kernel asks for more on-chip memory than a block may have"
#remedy = "Use smaller tiles or fewer pipeline stages."

# ---- What the counters of its profiler mean. `when` names them as the report does; metrics.X and
# facts.X as well. `kernlore hardware check {id}` shows which counters lead to which signals.

#[[rules]]
#id = "xyz-waits-on-memory"
#when = "xyz_stall_memory_cycles / xyz_cycles > 0.4"
#signal = "memory_latency"
#title = "The core waits for memory"
#why = "A second buffer lets the transfer run beside the arithmetic."
# A (documented), B (published) or C (heuristic, the default).
#confidence = "C"

# A counter that is a metric which the built-in rules know: its name, and the factor to its unit.
#[metrics.xyz_dram_beats]
#canonical = "dram_bytes"
#scale = 64

# ---- Toolchain per language: a built-in one by name, or commands that are run without a shell.
# {{source}} the kernel, {{output}} what compile writes, {{input}} the JSON manifest of .npy files
# to read and to write, {{report}} what the profiler writes, {{arch}} the fact compute_capability;
# {{workdir}}, {{hardware}} and {{entry}} (the kernel's function) wherever you need them.

#[toolchains.mylang]
#compile = "xyzcc -O3 --target={{arch}} {{source}} -o {{output}}"
#run = "xyzsim {{output}} --manifest {{input}}"
#profile = "xyzsim --profile={{report}} {{output}} --manifest {{input}}"
# "simulator" when run reports a simulator's time; it is never mixed with wall time. "wall" when the
# program measures its own time and writes it into the report that the manifest names, in time_us.
#timing = "simulator"
#suffix = ".xyz"
# What the program wants a kernel to be called; without it, kernlore_run.
#entry = "main"
# For whoever writes a kernel: how it is launched, what its arguments are.
#interface = '''
#The kernel runs once on each core; in0 .. inN and out are row-major arrays in device memory.
#'''
# A whole kernel that compiles and runs, what it is run with, and a torch expression of its result.
# Inputs first, then weights (role = "weight"), then outputs. `kernlore hardware check` runs it.
#sample = '''
#kernel main(in0, out) {{ ... }}
#'''
#sample_arguments = [
#{{name = "x", role = "input", dtype = "float32", shape = [64, 64]}},
#{{name = "y", role = "output", dtype = "float32", shape = [64, 64]}},
#]
#sample_reference = "x * 2 + 1"

# The names that tensors have in the program, `argument` in the manifest. {{index}} counts from 0,
# {{number}} from 1, {{name}} is the reference's own; single_... is for the only one of its role.
#[toolchains.mylang.arguments]
#input = "in{{index}}"
#weight = "w{{index}}"
#output = "out{{index}}"
#single_output = "out"

# Numbers that the program gets, `scalars` in the manifest: shapes of tensors by name (x.shape[0])
# or by place (input[0], weight[0], output[0]; also .ndim, .elements), constants of the reference.
# An optional one is left out where a problem has no such name.
#[toolchains.mylang.scalars]
#rows = "input[0].shape[0]"
#inverse_columns = "1 / input[0].shape[-1]"
#eps = {{value = "eps", optional = true}}

#[toolchains.mylang.env]
#XYZ_CACHE = "{{workdir}}/cache"
"""

# key -> example value; the keys whose absence hurts most
_EXAMPLES: dict[str, int | float | str] = {
    "memory_bandwidth": 2.0e12,
    "memory_size": 85899345920,
    "compute_units": 64,
    "shared_memory_per_block": 65536,
    "peak_fp32": 5.0e13,
    "peak_matrix_bf16": 4.0e14,
    "compute_capability": "xyz2",
}


def dump_hardware(spec: HardwareSpec) -> str:
    """The hardware.toml that `parse_hardware` reads back as `spec`; empty entries are left out."""
    return tomli_w.dumps(
        _without_empty(
            {
                **_fields(spec),
                "facts": [_without_empty(_fields(fact)) for fact in spec.facts],
                "signatures": [_without_empty(_fields(item)) for item in spec.signatures],
                "rules": [_without_empty(_fields(rule)) for rule in spec.rules],
                "metrics": {name: _fields(alias) for name, alias in spec.metrics.items()},
                "toolchains": {
                    language: _toolchain(toolchain)
                    for language, toolchain in spec.toolchains.items()
                },
            }
        )
    )


def _fields(item: Any) -> dict[str, Any]:
    """Of a dataclass, one level deep."""
    return {entry.name: getattr(item, entry.name) for entry in fields(item)}


def _without_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in table.items()
        if value is not None and (isinstance(value, int | float) or len(value) > 0)
    }


def _toolchain(toolchain: ToolchainSpec) -> dict[str, Any]:
    arguments = [{**_fields(row), "shape": list(row.shape)} for row in toolchain.sample_arguments]
    table = _without_empty(
        {
            **_fields(toolchain),
            "env": dict(toolchain.env),
            "sample_arguments": arguments,
            "arguments": dict(toolchain.arguments),
            "scalars": {name: _scalar(scalar) for name, scalar in toolchain.scalars.items()},
        }
    )
    if toolchain.timing == "wall":
        del table["timing"]
    return table


def _scalar(scalar: ScalarSpec) -> str | dict[str, Any]:
    return _fields(scalar) if scalar.optional else scalar.value


def hardware_template(hardware_id: str) -> str:
    """The commented hardware.toml to start from. Raises InvalidKnowledge for a malformed id."""
    if not HARDWARE_ID.fullmatch(hardware_id):
        raise InvalidKnowledge(
            f"{hardware_id!r} is not a hardware id",
            hint="Use 1-64 of a-z 0-9 . _ -, starting with a letter or digit, like my-chip-2.",
            details={"hardware": hardware_id},
        )
    return _TEMPLATE.format(
        id=hardware_id,
        keys="\n".join(
            f"#   {known.key:26} {known.unit:8} {known.meaning}" for known in fact_keys().values()
        ),
        facts="\n\n".join(_commented_fact(key, value) for key, value in _EXAMPLES.items()),
    )


def _commented_fact(key: str, value: int | float | str) -> str:
    entries = {
        "key": key,
        "value": value,
        "unit": fact_keys()[key].unit,
        "kind": "datasheet",
        "title": "XYZ-2 datasheet",
        "publisher": "My company",
        "locator": "Table 1",
        "date": "2026-01-31",
    }
    lines = ["[[facts]]", *tomli_w.dumps(entries).splitlines()]
    return "\n".join(f"#{line}" for line in lines)
