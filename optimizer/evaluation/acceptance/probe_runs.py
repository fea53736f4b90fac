"""Runs probes: small programs that measure a figure or a behaviour of a chip, and print it.

A library is a folder with `HARDWARE/probes.toml` and the sources that it names. Each source is a
unit, which is compiled once and reports several probes, one line for each repeat:

    probe NAME 29.0          a number in the unit of the probe
    probe NAME = yes         a text
    probe NAME ! REASON      nothing was decided, and why
    waited 0.02              the share of the time in which the program waited for a processor

Does not know what manuals state about a probe's figure; `probes` compares them. Standard library
only, because it also runs from a pack: `python probes.zip --out FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, cast, get_args

from kb.hardware.table_reader import Problems, TableReader, names_of
from kb.plain import plain
from optimizer.evaluation.collectors.probe import DeviceKind, identify
from optimizer.evaluation.toolchains.cuda import code_for, find_nvcc
from optimizer.evaluation.toolchains.processes import CommandLimits, FinishedCommand, clean_env, run

LIBRARY_FILE, RESULTS = "probes.toml", "probes.json"
PACKED = (
    "pack.json"  # of a pack: the hardware, the architecture, the command that reads its results
)
COMPILE = CommandLimits(seconds=120.0)
MOST_LOG = 300  # characters of a program's messages in a reason
# The rank of the lower end of a 95 % interval of the median, by the number of repeats.
_RANKS = ((17, 5), (15, 4), (12, 3), (9, 2), (6, 1))

# equal: the statement is the value; ceiling: a peak that a measurement approaches from below;
# floor: the least that is promised.
Relation = Literal["equal", "ceiling", "floor"]
Value = float | str


@dataclass(frozen=True)
class ManualClaim:
    """A statement of a manual that a probe decides: `text` is in the section, word for word."""

    value: Value
    text: str
    document: str
    section: str


@dataclass(frozen=True)
class Probe:
    """What one figure of a unit means.

    `fact` is the key of the facts that it decides, "" for none; `tolerance` is relative. `timed`:
    other programs on the machine change it.
    """

    name: str
    measures: str
    unit: str = ""
    fact: str = ""
    relation: Relation = "equal"
    tolerance: float = 0.0
    timed: bool = False
    claims: tuple[ManualClaim, ...] = ()


@dataclass(frozen=True)
class ProbeUnit:
    """A source of probes. `folder` holds it, `hardware` is the widest id that it holds for."""

    hardware: str
    folder: Path
    file: str
    language: str
    probes: tuple[Probe, ...]
    flags: tuple[str, ...] = ()
    seconds: float = 60.0

    @property
    def source(self) -> Path:
        return self.folder / self.file

    @property
    def name(self) -> str:
        """The path within the library."""
        return f"{self.hardware}/{self.file}"


@dataclass(frozen=True)
class Measured:
    """The repeats of one probe, or why there are none. `waited` is that of its unit."""

    probe: str
    values: tuple[Value, ...] = ()
    reason: str = ""
    waited: float = 0.0

    @property
    def numbers(self) -> list[float]:
        """The repeats that are numbers, in order of size."""
        return sorted(value for value in self.values if not isinstance(value, str))

    @property
    def value(self) -> Value | None:
        """The median, or the text that all repeats gave."""
        if self.numbers:
            return statistics.median(self.numbers)
        return self.values[0] if len(set(self.values)) == 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper end of the 95 % interval of the median; the least and the greatest value
        of fewer than six repeats."""
        numbers = self.numbers
        if not numbers:
            return None
        rank = next((rank for least, rank in _RANKS if len(numbers) >= least), 1)
        return numbers[rank - 1], numbers[-rank]


@dataclass(frozen=True)
class ProbeRun:
    """The measurements of one machine. `tools` are versions by language, `missing` the reasons why
    probes of a language did not run, `command` the call."""

    hardware: str
    device: str
    driver: str
    made_at: str
    command: str
    tools: Mapping[str, str]
    missing: Mapping[str, str]
    measured: tuple[Measured, ...]


# -- the library


def read_library(folder: Path) -> tuple[ProbeUnit, ...]:
    """Every unit of a library. Raises InvalidKnowledge with all mistakes of its files."""
    units: list[ProbeUnit] = []
    for path in sorted(folder.glob(f"*/{LIBRARY_FILE}")):
        problems = Problems(f"{path.parent.name}/{path.name}")
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            problems.add("(file)", f"not TOML: {error}", "correct the syntax at that line")
            table = {}
        units += [
            _unit(reader, path.parent)
            for reader in TableReader(table, "", problems).tables("units")
        ]
        names = [probe.name for unit in units for probe in unit.probes]
        for name in {name for name in names if names.count(name) > 1}:
            problems.add("units", f"{name} is the name of two probes", "rename one of them")
        problems.raise_if_any()
    return tuple(units)


def _unit(row: TableReader, folder: Path) -> ProbeUnit:
    row.only(("file", "language", "flags", "seconds", "probes"))
    file = row.text("file", required=True, limit=100)
    if file and not (folder / file).is_file():
        row.add("file", f"{file} does not exist", "name a file of the same folder")
    return ProbeUnit(
        hardware=folder.name,
        folder=folder,
        file=file,
        language=row.text("language", required=True, limit=40),
        probes=tuple(_probe(reader) for reader in row.tables("probes")),
        flags=row.texts("flags"),
        seconds=float(row.raw.get("seconds", 60.0)),
    )


def _probe(row: TableReader) -> Probe:
    row.only(names_of(Probe))
    return Probe(
        name=row.text("name", required=True, limit=64),
        measures=row.text("measures", required=True, limit=200),
        unit=row.text("unit", limit=40),
        fact=row.text("fact", limit=64),
        relation=cast(Relation, row.choice("relation", get_args(Relation), "equal")),
        tolerance=float(row.raw.get("tolerance", 0.0)),
        timed=row.flag("timed"),
        claims=tuple(_claim(reader) for reader in row.tables("claims")),
    )


def _claim(row: TableReader) -> ManualClaim:
    row.only(names_of(ManualClaim))
    value = row.raw.get("value", "")
    return ManualClaim(
        value=value if isinstance(value, str) else float(value),
        text=row.text("text", required=True, limit=200),
        document=row.text("document", required=True, limit=200),
        section=row.text("section", required=True, limit=200),
    )


# -- running


class _Missing(Exception):
    """The machine lacks what a language needs; the message says what."""


@dataclass(frozen=True)
class Machine:
    """The tools of this machine for the probes of a chip. `arch` is the architecture that nvcc and
    ptxas compile for, such as "90a"; `devices` are the kinds of devices of the chip that are here;
    `others` run the units of further languages, by language; `absent` is why others cannot."""

    arch: str = ""
    devices: frozenset[DeviceKind] = frozenset()
    others: Mapping[str, Callable[[ProbeUnit], FinishedCommand]] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    def command(self, unit: ProbeUnit, program: Path) -> tuple[list[str], list[str]]:
        """The commands that compile a unit, [] for none, and run it. Raises _Missing."""
        makers = {"cuda": self._cuda, "triton": self._triton, "ptx": self._ptx, "cpp": self._cpp}
        if unit.language not in makers:
            raise _Missing(self.absent.get(unit.language, f"nothing here runs {unit.language}"))
        return makers[unit.language](unit, program)

    def _gpu(self) -> None:
        if "cuda" not in self.devices:
            raise _Missing(
                "this machine has no such GPU; write a pack with --pack and run it there"
            )

    def _cuda(self, unit: ProbeUnit, program: Path) -> tuple[list[str], list[str]]:
        nvcc = find_nvcc()
        self._gpu()
        if nvcc is None:
            raise _Missing("nvcc is not installed; install the CUDA toolkit")
        options = ["-O3", "-std=c++17", code_for(self.arch), f"-I{unit.folder.parent}", *unit.flags]
        return [nvcc, *options, "-o", str(program), str(unit.source)], [str(program)]

    def _triton(self, unit: ProbeUnit, program: Path) -> tuple[list[str], list[str]]:
        del program
        self._gpu()
        return [], [sys.executable, str(unit.source)]

    def _ptx(self, unit: ProbeUnit, program: Path) -> tuple[list[str], list[str]]:
        del program
        if find_ptxas() is None:
            raise _Missing("ptxas is not installed; install the CUDA toolkit")
        return [], [sys.executable, str(unit.source)]

    def _cpp(self, unit: ProbeUnit, program: Path) -> tuple[list[str], list[str]]:
        if "cpu" not in self.devices:
            raise _Missing("this machine has another processor")
        compiler = shutil.which("g++")
        if compiler is None:
            raise _Missing("g++ is not installed")
        options = ["-O2", "-march=native", "-std=c++17", "-pthread", f"-I{unit.folder.parent}"]
        return [compiler, *options, *unit.flags, "-o", str(program), str(unit.source)], [
            str(program)
        ]


def find_ptxas() -> str | None:
    """The path of ptxas: that of TRITON_PTXAS_PATH, of nvcc's folder, or of the PATH."""
    nvcc = find_nvcc()
    beside = shutil.which("ptxas", path=str(Path(nvcc).resolve().parent)) if nvcc else None
    return os.environ.get("TRITON_PTXAS_PATH") or beside or shutil.which("ptxas")


def run_units(
    units: Sequence[ProbeUnit], machine: Machine, say: Callable[[str], None] = lambda line: None
) -> tuple[list[Measured], dict[str, str]]:
    """Compile all units concurrently and run them in sequence. Returns the result of each probe,
    and the reasons why units of a language did not run. `say` gets a line for each unit."""
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="kernlore-probes-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            runs = [
                pool.submit(_compiled, unit, machine, folder / str(n))
                for n, unit in enumerate(units)
            ]
            built = [made.result() for made in runs]
        measured: list[Measured] = []
        for unit, runner in zip(units, built, strict=True):
            if isinstance(runner, str):
                missing.setdefault(unit.language, runner)
                measured += [Measured(probe.name, reason=runner) for probe in unit.probes]
                continue
            done = runner()
            found = read_output(unit, done)
            measured += found
            decided = sum(not entry.reason for entry in found)
            say(f"{unit.name}: {decided} of {len(found)} probes measured in {done.seconds:.1f} s")
    return measured, missing


def _compiled(
    unit: ProbeUnit, machine: Machine, folder: Path
) -> Callable[[], FinishedCommand] | str:
    """What runs a unit, or why it cannot run here. A compiler's error is a run that failed."""
    folder.mkdir()
    if unit.language in machine.others:
        return lambda: machine.others[unit.language](unit)
    try:
        compile_, command = machine.command(unit, folder / "program")
    except _Missing as missing:
        return str(missing)
    env = clean_env(folder, PTXAS=find_ptxas() or "")
    if compile_:
        done = run(compile_, cwd=folder, limits=COMPILE, env=env)
        if not done.ok:
            return lambda: done
    # A CUDA context maps far more address space than it uses.
    limits = CommandLimits(seconds=unit.seconds, memory_bytes=None)
    return lambda: run(command, cwd=folder, limits=limits, env=env)


def read_output(unit: ProbeUnit, done: FinishedCommand) -> list[Measured]:
    """What each probe of a unit measured, by the lines that the unit printed."""
    values: dict[str, list[Value]] = {probe.name: [] for probe in unit.probes}
    reasons: dict[str, str] = {}
    waited = 0.0
    for line in done.stdout.splitlines():
        words = line.split(maxsplit=2)
        if len(words) == 2 and words[0] == "waited":
            waited = float(words[1])
        if len(words) < 3 or words[0] != "probe" or words[1] not in values:
            continue
        _, name, rest = words
        if rest.startswith("! "):
            reasons[name] = rest[2:]
        else:
            values[name].append(rest[2:] if rest.startswith("= ") else float(rest))
    end = "" if done.ok else f": {_why(done)}"
    silent = f"{unit.file} ended without a result{end}"
    return [
        Measured(name, tuple(found), "" if found else reasons.get(name, silent), waited)
        for name, found in values.items()
    ]


def _why(done: FinishedCommand) -> str:
    if done.timed_out:
        return f"it took more than {done.seconds:.0f} s"
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    return (lines or [f"exit status {done.code}"])[0][:MOST_LOG]


def probe_run(
    hardware: str,
    units: Sequence[ProbeUnit],
    machine: Machine,
    command: str,
    say: Callable[[str], None] = lambda line: None,
) -> ProbeRun:
    measured, missing = run_units(units, machine, say)
    kind: DeviceKind = "cuda" if "cuda" in machine.devices else "cpu"
    identity = identify(kind)
    device = identity.name if machine.devices else ""
    if {unit.language for unit in units} & set(machine.others):
        device = f"the simulator of {hardware}"
    return ProbeRun(
        hardware=hardware,
        device=device,
        driver=identity.driver or "",
        made_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=command,
        tools=identity.versions,
        missing=missing,
        measured=tuple(measured),
    )


# -- a pack


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Run the packed probes on this machine's device; returns the exit code."""
    parser = argparse.ArgumentParser(prog="probes.zip", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path(), help="Folder for the results.")
    options = parser.parse_args(arguments)
    packed = json.loads((folder / PACKED).read_text(encoding="utf-8"))
    device: DeviceKind = packed["device"]
    machine = Machine(packed["arch"], frozenset({device}))
    units = [unit for unit in read_library(folder / "library") if unit.name in packed["units"]]
    result = probe_run(packed["hardware"], units, machine, packed["command"], _say)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / RESULTS).write_text(json.dumps(plain(result), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.out / RESULTS}")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
