"""Draw a fictional accelerator from a seed: its programming manual, its description for Kernlore
and the configuration of its two tools.

    python chip.py SEED [FOLDER]

Standard library only. The same seed draws the same chip.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

HERE = Path(__file__).resolve().parent
DATE = "2026-11-21"
PUBLISHER = "Nova Devices (fictional)"

# canonical operation -> names it may have on one chip; no name occurs in two rows
OPCODES: Mapping[str, Sequence[str]] = {
    "load": ("dmain", "fetch", "tld", "pull"),
    "store": ("dmaout", "flush", "tst", "push"),
    "fill": ("splat", "vset", "fillt", "bcast"),
    "copy": ("drain", "movt", "vcopy", "unacc"),
    "add": ("vadd", "addt", "plus", "fadd"),
    "sub": ("vsub", "subt", "minus", "fsub"),
    "mul": ("vmul", "mult", "times", "fmul"),
    "div": ("vdiv", "divt", "over", "fdiv"),
    "max": ("vmax", "maxt", "upper", "fmax"),
    "min": ("vmin", "mint", "lower", "fmin"),
    "exp": ("vexp", "expt", "sfexp", "fexp"),
    "log": ("vlog", "logt", "sflog", "flog"),
    "sqrt": ("vsqrt", "sqrtt", "sfroot", "fsqrt"),
    "rcp": ("vrcp", "inv", "sfrcp", "frecip"),
    "tanh": ("vtanh", "tanht", "sftanh", "ftanh"),
    "rowsum": ("rsum", "hadd", "redsum", "foldadd"),
    "rowmax": ("rmax", "hmax", "redmax", "foldmax"),
    "mac": ("mac", "fmacc", "mmul", "dotacc"),
}
COMPILE_ERRORS = (
    "syntax",
    "undeclared",
    "scratchpad",
    "registers",
    "width",
    "opcode",
    "alignment",
    "range",
    "shape",
    "operand",
    "entry",
)
TRAPS = ("bounds", "misaligned", "argument")
ENTRY = "kernlore_run"  # the manual's word for a kernel

INTERFACE = """\
The simulator runs the kernel once, on one core. `kernel {entry}(in A[R][C], ..., out B[R][C])`
declares every array: `in` takes inputs and weights in the order of the interface, `out` the
outputs. Sizes are literal integers of the case; an array of one dimension is declared [1][N].
Nothing is initialised: a tile holds NaN until a transfer or an instruction writes it."""
SAMPLE_ROWS, SAMPLE_COLUMNS = 16, 128
# y = x * 2 + x, one block of rows
SAMPLE = """\
kernel {entry}(in X[16][128], out Y[16][128]) {{
  tile x[8][128];
  tile y[8][128];
  for i in 0..16 step 8 {{
    {load} x, X[i][0];
    {mul} y, x, 2.0;
    {add} y, y, x;
    {store} Y[i][0], y;
  }}
}}
"""
# Meaning of the simulator's counters: id, condition, signal, title, why
RULES: Sequence[tuple[str, str, str, str, str]] = (
    (
        "nova-waits-on-memory",
        "(nova_stall_dram_cycles + nova_stall_drain_cycles) / cycles > 0.4",
        "memory_latency",
        "The core waits for tiles that are still on their way",
        "A second set of tiles lets transfers run beside the arithmetic.",
    ),
    (
        "nova-transfer-queue-is-full",
        "nova_stall_dma_queue_cycles / cycles > 0.1",
        "memory_bound",
        "Transfers are issued faster than the queue takes them",
        "Fewer, larger transfers fill the queue less.",
    ),
    (
        "nova-banks-conflict",
        "nova_stall_bank_cycles / cycles > 0.1",
        "bank_conflict",
        "Rows that are read together lie in one bank",
        "A pad of one word for each row of the tile spreads them.",
    ),
    (
        "nova-multiply-add-waits",
        "nova_stall_dependency_cycles / cycles > 0.2",
        "latency_bound",
        "A multiply-add waits for the one before it",
        "A larger accumulator has more independent sums.",
    ),
)

# kind -> signal, the words that follow the code in a message, title, remedy
MEANINGS: Mapping[str, tuple[str, str, str, str]] = {
    "syntax": (
        "compile_error",
        "syntax error",
        "The compiler cannot read the source",
        "Compare the line with the grammar in the manual.",
    ),
    "undeclared": (
        "compile_error",
        "undeclared name",
        "A tile, accumulator, argument or variable is used before it is declared",
        "Declare it in the kernel, before its first use.",
    ),
    "scratchpad": (
        "shared_memory_limit",
        "scratchpad overflow",
        "The tiles of the kernel do not fit the scratchpad together",
        "Use smaller tiles or fewer of them, and reuse a tile once its contents are stored.",
    ),
    "registers": (
        "register_limit",
        "accumulator overflow",
        "The accumulators need more vector registers than there are",
        "Use a smaller accumulator: its rows times its columns over the lanes is the count.",
    ),
    "width": (
        "compile_error",
        "vector width mismatch",
        "A row of a tile is no whole number of vectors",
        "Make the columns a multiple of the vector width, or exactly one.",
    ),
    "opcode": (
        "compile_error",
        "unknown opcode",
        "There is no such instruction on this chip",
        "Take the name from the instruction table of this chip's manual.",
    ),
    "alignment": (
        "misaligned_access",
        "misaligned",
        "A tile pitch or a transfer does not start at its boundary",
        "Pad a tile by whole banks; start transfers at whole bursts.",
    ),
    "range": (
        "illegal_memory_access",
        "access out of range",
        "A transfer reaches beyond its argument, found while compiling",
        "Correct the loop bound or the tile so that the last block ends at the edge.",
    ),
    "shape": (
        "compile_error",
        "shapes do not agree",
        "The tiles of one instruction have shapes that do not fit each other",
        "Compare with the shape rule of the instruction.",
    ),
    "operand": (
        "compile_error",
        "wrong operand",
        "An instruction was given the wrong number or kind of operands",
        "Compare with the operands in the instruction table.",
    ),
    "entry": (
        "link_error",
        "no such kernel",
        "The entry that was asked for is not in the file",
        "Name the kernel as the harness calls it.",
    ),
    "bounds": (
        "illegal_memory_access",
        "access outside argument",
        "A transfer left its argument while the kernel ran",
        "Check the variable that indexes it: its loop runs once too often.",
    ),
    "misaligned": (
        "misaligned_access",
        "misaligned transfer",
        "A transfer started inside a burst while the kernel ran",
        "Step the index by whole bursts.",
    ),
    "argument": (
        "launch_error",
        "argument mismatch",
        "The arrays handed over are not those that the kernel declares",
        "Declare as many inputs and outputs as there are arrays, with as many elements each.",
    ),
}


def draw(seed: int) -> dict[str, Any]:
    """The parameters of one chip."""
    dice = random.Random(f"nova {seed}")  # neighbouring integers would draw alike
    lanes = dice.choice((8, 16, 32))
    base, prefix = dice.randrange(1000, 8000, 10), dice.choice(("NVC", "NOC", "NXC", "NCE"))
    codes = dice.sample(range(base, base + 90), len(COMPILE_ERRORS) + len(TRAPS))
    named = dict(zip((*COMPILE_ERRORS, *TRAPS), codes, strict=True))
    return {
        "format": 1,
        "id": f"nova-{seed}",
        "seed": seed,
        "clock_hz": dice.randrange(600, 1700, 50) * 1_000_000,
        "memory_bytes": dice.choice((64, 128, 256, 512)) << 20,
        "scratchpad_bytes": dice.choice((16, 20, 24, 32, 40, 48, 64, 96)) << 10,
        "lanes": lanes,
        "vector_registers": dice.choice((16, 24, 32, 48, 64)),
        "banks": lanes * dice.choice((1, 2)),
        "bank_width": dice.choice((4, 8)),
        "burst_bytes": min(4 * lanes, dice.choice((32, 64))),
        "dram_bytes_per_cycle": dice.choice((8, 16, 32, 64)),
        "dram_latency": dice.randrange(60, 420, 5),
        "dma_queue": dice.choice((2, 3, 4, 6)),
        "mac_latency": dice.randrange(4, 13),
        "special_cycles": dice.choice((4, 6, 8, 12)),
        "opcodes": {operation: dice.choice(names) for operation, names in OPCODES.items()},
        "errors": {kind: f"{prefix}{named[kind]}" for kind in COMPILE_ERRORS},
        "traps": {kind: f"{prefix}{named[kind]}" for kind in TRAPS},
    }


def title_of(chip: Mapping[str, Any]) -> str:
    return f"Nova {chip['seed']} Programming Manual"


def manual(chip: Mapping[str, Any]) -> str:
    """The programming manual with this chip's numbers and names."""
    template = (HERE / "manual.template.md").read_text(encoding="utf-8")
    return Template(template).substitute(words(chip))


def words(chip: Mapping[str, Any]) -> dict[str, Any]:
    """Values that the templates of manual and kernels may name."""
    plain = {key: value for key, value in chip.items() if isinstance(value, int | str)}
    clock, lanes = chip["clock_hz"], chip["lanes"]
    return {
        **plain,
        **{f"op_{operation}": name for operation, name in chip["opcodes"].items()},
        **{f"code_{kind}": code for kind, code in {**chip["errors"], **chip["traps"]}.items()},
        "title": title_of(chip),
        "clock_mhz": clock // 1_000_000,
        "bandwidth_gb": f"{clock * chip['dram_bytes_per_cycle'] / 1e9:g}",
        "peak_gflops": f"{2 * lanes * clock / 1e9:g}",
        "memory_mib": chip["memory_bytes"] >> 20,
        "scratchpad_kib": f"{chip['scratchpad_bytes'] / 1024:g}",
        "vector_bits": lanes * 32,
        "row_bytes": chip["banks"] * chip["bank_width"],
        "pad": chip["bank_width"] // 4,
        "burst_words": chip["burst_bytes"] // 4,
        "sample_m": sample_rows(chip),
        "sample_registers": sample_rows(chip),
        "sample_bytes": _sample_bytes(chip),
        "error_rows": "\n".join(_error_row(kind, code) for kind, code in _codes(chip)),
    }


def sample_rows(chip: Mapping[str, Any]) -> int:
    """Rows of the accumulator in the manual's sample: it is one vector wide."""
    return 16 if chip["vector_registers"] < 32 else 32


def _sample_bytes(chip: Mapping[str, Any]) -> int:
    lanes, width, rows = int(chip["lanes"]), int(chip["bank_width"]), sample_rows(chip)
    return rows * (32 * 4 + width) + 32 * lanes * 4 + rows * lanes * 4


def _codes(chip: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted({**chip["errors"], **chip["traps"]}.items(), key=lambda pair: str(pair[1]))


def _error_row(kind: str, code: str) -> str:
    _, text, title, remedy = MEANINGS[kind]
    when = "run" if kind in TRAPS else "compile"
    return f"| {code} | {when} | {text} | {title}. {remedy} |"


def hardware_toml(chip: Mapping[str, Any], folder: Path) -> str:
    """The description for Kernlore; its commands name the tools and the chip by absolute path."""
    title = title_of(chip)
    head = [
        f"id = {_toml(chip['id'])}",
        f"name = {_toml('Nova ' + str(chip['seed']))}",
        'vendor = "nova"',
        f"aliases = [{_toml('nova' + str(chip['seed']))}]",
        'languages = ["novac"]',
        'kind = "accelerator"',
        'summary = "A fictional single-core vector accelerator with a banked scratchpad."',
    ]
    facts = [_fact(title, *row) for row in _facts(chip)]
    signatures = [_signature(kind, code) for kind, code in _codes(chip)]
    rules = [_rule(*row) for row in RULES]
    parts = ["\n".join(head), *facts, *signatures, *rules, _toolchain(chip, folder)]
    return "\n\n".join(parts) + "\n"


def _facts(chip: Mapping[str, Any]) -> list[tuple[str, int, str, str]]:
    clock, lanes = chip["clock_hz"], chip["lanes"]
    core, memory = "Table 1", "Table 2"
    return [
        ("compute_units", 1, "count", core),
        ("clock_boost", clock, "Hz", core),
        ("peak_fp32", 2 * lanes * clock, "flop/s", core),
        ("vector_bits", lanes * 32, "bit", core),
        ("vector_registers", chip["vector_registers"], "count", core),
        ("x_multiply_add_latency", chip["mac_latency"], "count", core),
        ("x_special_function_cycles", chip["special_cycles"], "count", core),
        ("shared_memory_per_block", chip["scratchpad_bytes"], "B", memory),
        ("shared_memory_banks", chip["banks"], "count", memory),
        ("shared_memory_bank_width", chip["bank_width"], "B", memory),
        ("memory_size", chip["memory_bytes"], "B", memory),
        ("memory_bandwidth", clock * chip["dram_bytes_per_cycle"], "B/s", memory),
        ("memory_transaction", chip["burst_bytes"], "B", memory),
        ("x_memory_latency_cycles", chip["dram_latency"], "count", memory),
        ("x_dma_queue", chip["dma_queue"], "count", memory),
    ]


def _fact(title: str, key: str, value: int, unit: str, locator: str) -> str:
    report: dict[str, int | str] = {
        "key": key,
        "value": value,
        "unit": unit,
        "kind": "datasheet",
        "title": title,
        "publisher": PUBLISHER,
        "locator": locator,
        "date": DATE,
    }
    return "[[facts]]\n" + "\n".join(f"{name} = {_toml(text)}" for name, text in report.items())


def _signature(kind: str, code: str) -> str:
    signal, text, title, remedy = MEANINGS[kind]
    report = {"pattern": f"{code}: {text}", "signal": signal, "title": title, "remedy": remedy}
    return "[[signatures]]\n" + "\n".join(
        f"{name} = {_toml(message)}" for name, message in report.items()
    )


def _rule(identity: str, when: str, signal: str, title: str, why: str) -> str:
    report = {"id": identity, "when": when, "signal": signal, "title": title, "why": why}
    return "[[rules]]\n" + "\n".join(f"{name} = {_toml(text)}" for name, text in report.items())


def sample(chip: Mapping[str, Any]) -> str:
    """A small kernel that runs on this chip."""
    names = {operation: chip["opcodes"][operation] for operation in ("load", "mul", "add", "store")}
    return SAMPLE.format(entry=ENTRY, **names)


def _toolchain(chip: Mapping[str, Any], folder: Path) -> str:
    compiler, simulator = (_word(HERE / name) for name in ("novac.py", "novasim.py"))
    numbers = _word(folder.resolve() / "chip.json")
    compile_ = f"python {compiler} {{source}} -o {{output}} --chip {numbers} --entry {{entry}}"
    run = f"python {simulator} {{output}} --chip {numbers} --manifest {{input}}"
    report = {
        "compile": compile_,
        "run": run,
        "profile": f"{run} --report {{report}}",
        "timing": "simulator",
        "suffix": ".nv",
        "entry": ENTRY,
        "interface": INTERFACE.format(entry=ENTRY),
        "sample": sample(chip),
        "sample_reference": "x * 2 + x",
    }
    lines = [f"{name} = {_toml(text)}" for name, text in report.items()]
    shape = [SAMPLE_ROWS, SAMPLE_COLUMNS]
    arguments = [
        f'{{name = "{name}", role = "{role}", dtype = "float32", shape = {shape}}}'
        for name, role in (("x", "input"), ("y", "output"))
    ]
    lines.append(f"sample_arguments = [{', '.join(arguments)}]")
    return "[toolchains.novac]\n" + "\n".join(lines)


def _word(path: Path) -> str:
    """As one word of a command template, in which braces are placeholders."""
    return shlex.quote(str(path)).replace("{", "{{").replace("}", "}}")


def _toml(value: int | str) -> str:
    """JSON strings and integers are TOML as well."""
    return json.dumps(value)


def write(seed: int, folder: Path) -> Path:
    """The chip's folder: manual.md, hardware.toml, chip.json."""
    chip = draw(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chip.json").write_text(json.dumps(chip, indent=2) + "\n", encoding="utf-8")
    (folder / "manual.md").write_text(manual(chip), encoding="utf-8")
    (folder / "hardware.toml").write_text(hardware_toml(chip, folder), encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path, nargs="?", help="default: nova-SEED")
    asked = parser.parse_args()
    folder = write(asked.seed, asked.folder or Path(f"nova-{asked.seed}"))
    print(f"wrote {folder}/manual.md, hardware.toml and chip.json")


if __name__ == "__main__":
    main()
