"""The commented hardware.toml that a team fills in for a new chip.

The text is a valid description as it stands. Lines of the form `#key = ...` (no space after `#`)
are entries to fill in and uncomment; all other comments are explanations.
"""

from __future__ import annotations

from kb.errors import InvalidKnowledge
from kb.hardware.emit import toml_value
from kb.hardware.fact_keys import fact_keys
from kb.hardware.spec import HARDWARE_ID

_HEAD = """\
# Description of one accelerator for Kernlore. It is valid as it is; every entry you fill in makes
# answers better. Lines starting with "#" and a name are entries to fill in and uncomment. Register
# it with POST /hardware or by placing it in hw_manuals/hardware/{id}/hardware.toml.

# How requests name it: 1-64 of a-z 0-9 . _ -, starting with a letter or digit.
id = {quoted_id}
name = {quoted_id}
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

# ---- Error texts of its own compiler or runtime. Single quotes keep backslashes as they are.

#[[signatures]]
#pattern = 'out of local memory: requested (\\d+)'
#signal = "shared_memory_limit"
#title = "The kernel asks for more on-chip memory than a block may have"
#remedy = "Use smaller tiles or fewer pipeline stages."

# ---- Toolchain per language: a built-in one by name, or commands that are run without a shell.
# {{source}} the kernel, {{output}} what compile writes, {{input}} the JSON manifest of .npy files
# to read and to write, {{report}} what the profiler writes, {{arch}} the fact compute_capability;
# {{workdir}}, {{hardware}} and {{entry}} (the kernel's function) wherever you need them.

#[toolchains.mylang]
#compile = "xyzcc -O3 --target={{arch}} {{source}} -o {{output}}"
#run = "xyzsim {{output}} --manifest {{input}}"
#profile = "xyzsim --profile={{report}} {{output}} --manifest {{input}}"
# "simulator" when run reports a simulator's time; it is never mixed with wall time.
#timing = "simulator"
#suffix = ".xyz"

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


def hardware_template(hardware_id: str) -> str:
    """A hardware.toml to start from."""
    if not HARDWARE_ID.fullmatch(hardware_id):
        raise InvalidKnowledge(
            f"{hardware_id!r} is not a hardware id",
            hint="Use 1-64 of a-z 0-9 . _ -, starting with a letter or digit, like my-chip-2.",
            details={"hardware": hardware_id},
        )
    return _HEAD.format(
        id=hardware_id,
        quoted_id=toml_value(hardware_id),
        keys="\n".join(
            f"#   {known.key:26} {known.unit:8} {known.meaning}" for known in fact_keys().values()
        ),
        facts="\n\n".join(_fact_block(key, value) for key, value in _EXAMPLES.items()),
    )


def _fact_block(key: str, value: int | float | str) -> str:
    return "\n".join(
        [
            "#[[facts]]",
            f'#key = "{key}"',
            f"#value = {toml_value(value)}",
            f'#unit = "{fact_keys()[key].unit}"',
            '#kind = "datasheet"',
            '#title = "XYZ-2 datasheet"',
            '#publisher = "My company"',
            '#locator = "Table 1"',
            '#date = "2026-01-31"',
        ]
    )
