"""Draw a fictional accelerator that is programmed in assembly, from a seed: its documentation, its
description for Kernlore and the configuration of its two tools.

    python chip.py SEED [FOLDER]

Standard library only. The same seed draws the same chip.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a program finds its neighbours by their bare names
    from examples.assembly_chip.documents import documents, filled
else:
    from documents import documents, filled

HERE = Path(__file__).resolve().parent
DATE = "2026-11-22"
FAMILIES = ("tarn", "skerry", "brindle", "halyard", "corbel", "lintel")

DIRECTIVES: Mapping[str, Sequence[str]] = {
    "part": ("part", "target", "device", "chip"),
    "kernel": ("kernel", "entry", "program", "func"),
    "end": ("end", "endk", "close", "fin"),
    "input": ("in", "src", "reads", "tensor_in"),
    "output": ("out", "dst", "writes", "tensor_out"),
    "scratch": ("scratch", "local", "spad", "reserve"),
    "const": ("const", "equ", "define", "value"),
    "repeat": ("repeat", "rept", "unroll", "times"),
    "endrepeat": ("endr", "endrept", "endunroll", "close_rep"),
}
FIELDS: Mapping[str, Sequence[str]] = {
    "rows": ("rows", "height", "n0", "outer"),
    "cols": ("cols", "width", "n1", "inner"),
    "count": ("count", "total", "numel", "volume"),
}
# Sign or word -> its variants on chips.
SIGNS: Mapping[str, Sequence[str]] = {
    "comment": (";", "//", "#", "!"),
    "immediate": ("#", "$", "=", "&"),
    "sigil": ("", "%", "~"),
    "leader": (".", "@"),
    "place": ("@", ":", "^", "!"),
    "label": ("{}:", ":{}", "<{}>"),
    "address": ("bracket", "paren", "angle", "index"),
    "order": ("first", "last"),
    "s": ("s", "r", "x", "i", "g"),
    "v": ("v", "w", "z", "q"),
    "a": ("a", "c", "k", "acc"),
    "t": ("t", "ch", "tag"),
}


def draw(seed: int) -> dict[str, Any]:
    """The parameters of one chip."""
    dice = random.Random(f"assembly chip {seed}")  # neighbouring integers would draw alike
    family = dice.choice(FAMILIES)
    return {
        "format": 1,
        "id": f"{family}-{seed}",
        "seed": seed,
        "family": family,
        "language": f"{family}asm",
        "suffix": f".{family[0]}as",
        **_resources(dice),
        **_behaviour(dice),
        "syntax": _syntax(dice),
        "directives": {name: dice.choice(words) for name, words in DIRECTIVES.items()},
        "fields": {name: dice.choice(words) for name, words in FIELDS.items()},
        "operations": _operations(dice),
        "errors": _errors(dice),
    }


def _resources(dice: random.Random) -> dict[str, int]:
    lanes = dice.choice((8, 16, 32))
    return {
        "clock_hz": dice.randrange(500, 1900, 50) * 1_000_000,
        "memory_bytes": dice.choice((64, 128, 256, 512)) << 20,
        "scratch_bytes": dice.choice((32, 40, 48, 64)) << 10,
        "code_limit": dice.choice((768, 1024, 1536, 2048)),
        "lanes": lanes,
        "scalars": dice.choice((16, 20, 24, 28)),
        "vectors": dice.choice((16, 20, 24, 32)),
        "accs": dice.choice((6, 8, 12, 16)),
        "tags": dice.choice((5, 6, 8)),
        "unit_bytes": dice.choice((1, 4)),
        "vector_align": lanes * dice.choice((2, 4)),
        "imm_bits": dice.choice((14, 15, 16, 18)),
        "disp_max": dice.choice((4095, 8191, 16383)),
        "repeat_max": dice.choice((64, 96, 128)),
        "dma_align": dice.choice((16, 32, 64)),
        "max_transfer": dice.choice((4096, 8192, 16384)),
        "max_rows": dice.choice((64, 100, 128, 255)),
        "outstanding": dice.choice((8, 10, 12, 16)),
        "dma_bytes_per_cycle": dice.choice((16, 24, 32)),
        "dma_latency": dice.randrange(60, 300, 4),
        "dma_issue": dice.randrange(2, 9),
        "dma_row": dice.randrange(2, 9),
        "watchdog": dice.randrange(600_000, 1_000_001, 50_000),
    }


def _behaviour(dice: random.Random) -> dict[str, int | str]:
    """Latencies, and differences of instructions with the same meaning between chips."""
    return {
        "scalar_latency": 1,
        "scalar_mul_latency": dice.randrange(2, 6),
        "branch_cycles": dice.randrange(4, 8),
        "loop_cycles": dice.randrange(2, 4),
        "load_latency": dice.randrange(3, 8),
        "arith_latency": dice.randrange(2, 6),
        "lane_latency": dice.randrange(3, 6),
        "special_latency": dice.randrange(8, 16),
        "special_cycles": dice.randrange(2, 7),
        "reduce_latency": dice.randrange(7, 16),
        "mac_latency": dice.randrange(3, 8),
        "aread_latency": dice.randrange(2, 5),
        "approx_bits": dice.choice((12, 13, 14)),
        "exp_base": dice.choice(("2", "e")),
        "reduce_to": dice.choice(("all", "first")),
        "aread_clears": dice.choice((0, 1)),
        "shape_stays": dice.choice((0, 1)),
        "duplex": dice.choice((0, 1)),
    }


def _syntax(dice: random.Random) -> dict[str, str]:
    """Signs that stay distinguishable next to each other."""
    while True:
        drawn = {name: dice.choice(signs) for name, signs in SIGNS.items()}
        clash = drawn["comment"] in (drawn["immediate"], drawn["place"])
        if not clash and drawn["leader"] != drawn["place"]:
            return drawn


def _operations(dice: random.Random) -> dict[str, dict[str, Any]]:
    described = read_data("instructions.toml")
    return {
        operation: {
            "name": dice.choice(row["names"]),
            "to": row.get("to", []),
            "from": row.get("from", []),
            "last": row.get("last", []),
            "cycles": row["cycles"],
        }
        for operation, row in described.items()
    }


def _errors(dice: random.Random) -> dict[str, dict[str, str]]:
    """A code for each kind: numbers of the assembler and of the running chip lie apart."""
    described = read_data("errors.toml")
    prefix = "".join(dice.sample("BDFGHJKLMNPQRSTVWXZ", 2)) + dice.choice(("", "-"))
    bases = dict(zip(("assembler", "run"), dice.sample(range(100, 900, 100), 2), strict=True))
    numbers = {stage: dice.sample(range(base, base + 95), 40) for stage, base in bases.items()}
    return {
        kind: {
            "code": f"{prefix}{numbers[row['stage']].pop()}",
            "text": row["text"],
            "stage": row["stage"],
        }
        for kind, row in described.items()
    }


def read_data(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


# ---------------------------------------------------------------- hardware.toml


def hardware_toml(chip: Mapping[str, Any], folder: Path) -> str:
    """The description for Kernlore; its commands name the tools and the chip by absolute path."""
    family = chip["family"].capitalize()
    head = {
        "id": chip["id"],
        "name": f"{family} {chip['seed']}",
        "vendor": chip["family"],
        "aliases": [f"{chip['family']}{chip['seed']}"],
        "languages": [chip["language"]],
        "kind": "accelerator",
        "summary": "A fictional vector accelerator that is programmed in assembly.",
    }
    facts = [_table("[[facts]]", _fact(chip, *row)) for row in _facts(chip)]
    signatures = [_table("[[signatures]]", row) for row in _signatures(chip)]
    toolchain = _table(f"[toolchains.{chip['language']}]", _toolchain(chip, folder))
    return "\n\n".join([_table("", head).lstrip(), *facts, *signatures, toolchain]) + "\n"


def _facts(chip: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    clock, lanes = chip["clock_hz"], chip["lanes"]
    return [
        ("compute_units", 1, "count"),
        ("clock_boost", clock, "Hz"),
        ("peak_fp32", 2 * lanes * clock, "flop/s"),
        ("vector_bits", lanes * 32, "bit"),
        ("shared_memory_per_block", chip["scratch_bytes"], "B"),
        ("memory_size", chip["memory_bytes"], "B"),
        ("memory_bandwidth", clock * chip["dma_bytes_per_cycle"] * (1 + chip["duplex"]), "B/s"),
        ("memory_transaction", chip["dma_align"], "B"),
        ("vector_registers", chip["vectors"], "count"),
        ("x_accumulators", chip["accs"], "count"),
        ("x_instruction_memory", chip["code_limit"], "count"),
    ]


def _fact(chip: Mapping[str, Any], key: str, value: int, unit: str) -> dict[str, Any]:
    family = chip["family"].capitalize()
    return {
        "key": key,
        "value": value,
        "unit": unit,
        "kind": "datasheet",
        "title": f"{family} {chip['seed']} Overview",
        "publisher": f"{family} Devices (fictional)",
        "locator": "Table: Resources of the part",
        "date": DATE,
    }


def _signatures(chip: Mapping[str, Any]) -> list[dict[str, str]]:
    described = read_data("errors.toml")
    return [
        {
            "pattern": f"{error['code']} {error['text']}",
            "signal": described[kind]["signal"],
            "title": error["text"].capitalize(),
            "remedy": filled(described[kind]["remedy"], chip),
        }
        for kind, error in chip["errors"].items()
    ]


def _toolchain(chip: Mapping[str, Any], folder: Path) -> dict[str, str]:
    assembler, simulator = (_word(HERE / name) for name in ("assembler.py", "simulator.py"))
    numbers = _word(folder.resolve() / "chip.json")
    run = f"python {simulator} {{output}} --chip {numbers} --manifest {{input}}"
    compile_ = f"python {assembler} {{source}} -o {{output}} --chip {numbers} --entry {{entry}}"
    return {
        "compile": compile_,
        "run": run,
        "profile": f"{run} --report {{report}}",
        "timing": "simulator",
        "suffix": chip["suffix"],
    }


def _word(path: Path) -> str:
    """As one word of a command template, in which braces are placeholders."""
    return shlex.quote(str(path)).replace("{", "{{").replace("}", "}}")


def _table(head: str, row: Mapping[str, Any]) -> str:
    """JSON strings, lists and integers are TOML as well."""
    return "\n".join([head, *(f"{name} = {json.dumps(value)}" for name, value in row.items())])


# ---------------------------------------------------------------- the folder


def write(seed: int, folder: Path) -> Path:
    """The chip's folder: docs/, hardware.toml, chip.json."""
    chip = draw(seed)
    (folder / "docs").mkdir(parents=True, exist_ok=True)
    (folder / "chip.json").write_text(json.dumps(chip, indent=2) + "\n", encoding="utf-8")
    (folder / "hardware.toml").write_text(hardware_toml(chip, folder), encoding="utf-8")
    instructions, errors = read_data("instructions.toml"), read_data("errors.toml")
    for name, text in documents(chip, instructions, errors).items():
        (folder / "docs" / name).write_text(text, encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path, nargs="?", help="default: FAMILY-SEED")
    asked = parser.parse_args()
    folder = write(asked.seed, asked.folder or Path(draw(asked.seed)["id"]))
    print(f"wrote {folder}/docs, hardware.toml and chip.json")


if __name__ == "__main__":
    main()
