"""What the harness says of a good, a wrong, a crashing, a hanging and a non-compiling candidate,
and what the knowledge service then offers to read.

`python -m benchmarks.evaluation.outcomes` does this for C++ on this CPU, for Triton without a GPU
(compiled for a H100, checked in the interpreter) and for the fictional chip of examples/new_chip,
and writes benchmarks/results/outcomes.md. It also evaluates a good candidate while other processes
occupy every core. The exit code is 1 when any verdict is not the expected one.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.services import Services
from benchmarks.knowledge.builtin import builtin_services
from benchmarks.report import ended, say, table, write_result
from ingestion.uploads import Upload
from kb.hardware.schema import parse_hardware
from optimizer.evaluation.bundle import read_bundle
from optimizer.evaluation.evaluate import ask_for, evaluate_files, known_about
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Evaluation, Stage, TimingState, Validity
from optimizer.evaluation.settings import EvaluationSettings

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "outcomes.md"
FOLDER = ROOT / "benchmarks" / "evaluation" / "outcomes"
HONEST = ROOT / "tests" / "exploits" / "honest"
CHIP = ROOT / "examples" / "new_chip"
TITLE = "Outcomes: every kind of candidate, its verdict and what there is to read"
PROBLEM = "elementwise_chain"
SEED = 7
CALL_SECONDS = 5.0  # a hanging call is given up after this
SETTINGS = EvaluationSettings(call_seconds=CALL_SECONDS)
ROUNDS = 5
HOGS_A_CORE = 2
READ = 3  # places to read shown
SHOWN = 110  # characters of a message


@dataclass(frozen=True)
class Expected:
    """timing: any of these. A good candidate of a CPU has a figure or has to be repeated: which of
    the two depends on who else uses the machine."""

    validity: Validity
    reached: Stage
    timing: tuple[TimingState, ...] = ("none",)

    def __str__(self) -> str:
        timed = f", {' or '.join(self.timing)}" if self.timing != ("none",) else ""
        return f"{self.validity} at {self.reached}{timed}"


@dataclass(frozen=True)
class Trial:
    """One candidate on one toolchain."""

    toolchain: str
    kind: str
    candidate: Path
    problem: Path
    hardware: str
    cases: tuple[str, ...]
    expected: Expected


@dataclass(frozen=True)
class Outcome:
    trial: Trial
    evaluation: Evaluation
    knowledge: Mapping[str, Any]
    seconds: float

    @property
    def as_expected(self) -> bool:
        result, wanted = self.evaluation, self.trial.expected
        same = (result.validity, result.reached) == (wanted.validity, wanted.reached)
        return same and result.timing in wanted.timing

    @property
    def signals(self) -> list[str]:
        return list(self.evaluation.verdict.signal_ids)

    def cells(self) -> list[str]:
        result = self.evaluation
        return [
            self.trial.toolchain,
            self.trial.kind,
            str(self.trial.expected),
            f"{result.validity} at {result.reached}, timing {result.timing}",
            _cell(result.message),
            ", ".join(self.signals) or "none",
            "; ".join(self.read()) or "nothing",
            "yes" if self.as_expected else "NO",
            f"{self.seconds:.1f}",
        ]

    def read(self) -> list[str]:
        """Where the first excerpts are from: title of the document and last heading."""
        places = (
            f"{excerpt['document']['title']}: {excerpt['section'].split(' > ')[-1]}"
            for excerpt in self.knowledge.get("excerpts", ())
        )
        return [_cell(place) for place in dict.fromkeys(places)][:READ]


def _cell(text: str) -> str:
    """On one line of a table, without the folder that one run has to itself."""
    report = " ".join(text.split()).replace("|", "/").replace(tempfile.gettempdir(), "")
    return report if len(report) <= SHOWN else report[: SHOWN - 3] + "..."


# -- the candidates


def this_cpu() -> str:
    return "neoverse-v2" if platform.machine() in ("aarch64", "arm64") else "x86-64"


def expectations(timing: tuple[TimingState, ...], last: Stage) -> dict[str, Expected]:
    """timing, last: of the good one; the stage at which its evaluation ends."""
    return {
        "good": Expected("correct", last, timing),
        "wrong": Expected("incorrect", "correctness"),
        "crashing": Expected("crashed", "correctness"),
        "hanging": Expected("timed_out", "correctness"),
        "not_compiling": Expected("not_compiled", "compile"),
    }


def trials_of(chip: Path) -> list[Trial]:
    """C++ on the cases in float32, for which it is written; Triton on small ones, since the
    interpreter takes minutes for what a GPU does in a moment."""
    shipped, own = Path(PROBLEM), CHIP / "problems" / "elementwise.py"
    timed = expectations(("measured", "repeat"), "benchmark")
    checked = expectations(("none",), "correctness")
    simulated = expectations(("simulator",), "correctness")
    cpp, triton, small = this_cpu(), "h100", ("odd", "offset")
    return [
        *(
            Trial("C++", kind, _kernel(kind, "cpp"), shipped, cpp, ("main", *small), expected)
            for kind, expected in timed.items()
        ),
        *(
            Trial("Triton", kind, _kernel(kind, "py"), shipped, triton, small, expected)
            for kind, expected in checked.items()
        ),
        *(
            Trial("new chip", kind, _sample(chip, kind), own, f"nova-{SEED}", (), expected)
            for kind, expected in simulated.items()
        ),
    ]


def _kernel(kind: str, suffix: str) -> Path:
    good = {"cpp": "chain_one_pass.cpp", "py": "chain_triton.py"}[suffix]
    return HONEST / good if kind == "good" else FOLDER / f"{kind}.{suffix}"


def _sample(chip: Path, kind: str) -> Path:
    return chip / "kernels" / f"elementwise_{kind}.nv"


def draw_chip(folder: Path) -> Path:
    """The chip with its manual, tools' configuration and sample kernels, as its README does it."""
    for script, *arguments in (("chip.py", str(SEED), str(folder)), ("kernels.py", str(folder))):
        command = [sys.executable, str(CHIP / script), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def describe_chip(services: Services, folder: Path) -> None:
    """Register it and read its manual."""
    path = folder / "hardware.toml"
    services.registry.put(parse_hardware(path.read_text(encoding="utf-8"), str(path)), "api")
    manual = folder / "manual.md"
    services.uploads.submit(
        Upload(
            manual.name,
            manual.read_bytes(),
            category="hardware",
            hardware=(f"nova-{SEED}",),
            languages=("novac",),
        )
    )
    with services.parser_pool() as parsers:
        services.worker(parsers).drain()


# -- asking


def outcome_of(services: Services, trial: Trial) -> Outcome:
    began = time.perf_counter()
    result = evaluate_files(
        services,
        trial.problem,
        trial.candidate,
        hardware=trial.hardware,
        cases=trial.cases,
        settings=SETTINGS,
    )
    took = time.perf_counter() - began
    say(f"{trial.toolchain}, {trial.kind}: {result.validity} at {result.reached}, {took:.1f} s")
    return Outcome(trial, result, known_about(services, result), took)


@contextmanager
def busy_cores() -> Iterator[int]:
    """Processes that do nothing but spin; their number."""
    count = HOGS_A_CORE * (os.cpu_count() or 1)
    hogs: list[subprocess.Popen[bytes]] = []
    try:
        hogs += (subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(count))
        yield count
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def busy_rounds(services: Services, rounds: int) -> list[Evaluation]:
    """A good candidate, each time anew: nothing is looked up in the catalog."""
    bundle = read_bundle(HONEST / "chain_one_pass.cpp")
    problem = load_problem(Path(PROBLEM))
    asked = ask_for(services, problem, bundle, hardware=this_cpu(), cases=("main",))
    result = []
    for number in range(rounds):
        with Evaluator(problem, asked.chosen.target, EvaluationSettings()) as evaluator:
            result.append(evaluator.evaluate(bundle, asked.toolchain, asked.cases))
        say(f"busy round {number + 1}: {result[-1].validity}, timing {result[-1].timing}")
    return result


def without_figure(result: Evaluation) -> bool:
    """Correct, to be repeated, and no number that could be taken for one."""
    figures = [result.speedup, *(timing.speedup for timing in result.timings)]
    text = all("timing must be repeated" in timing.reason for timing in result.timings)
    repeat = (result.validity, result.timing) == ("correct", "repeat")
    return repeat and text and not any(figures)


def busy_part(result: Sequence[Evaluation], hogs: int) -> list[str]:
    rows = [
        [number, each.validity, each.timing, each.speedup or "none", _cell(each.timings[0].reason)]
        for number, each in enumerate(result, 1)
        if each.timings
    ]
    text = sum(map(without_figure, result))
    return [
        "## A busy machine",
        f"`chain_one_pass.cpp`, which is correct, while {hogs} other processes spin"
        f" ({HOGS_A_CORE} a core). Timing must be repeated, without a figure: {text} of"
        f" {len(result)} rounds.",
        table(["round", "validity", "timing", "speed-up", "reason"], rows),
    ]


# -- the result


HEADER = (
    "toolchain",
    "candidate",
    "expected",
    "found",
    "message",
    "signals",
    "read first",
    "as expected",
    "seconds",
)


def run(rounds: int, data_dir: Path | None) -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kernlore-outcomes-") as place:
        chip = draw_chip(Path(place) / f"nova-{SEED}")
        with builtin_services(data_dir) as services:
            describe_chip(services, chip)
            say(f"knowledge is loaded, {time.perf_counter() - began:.0f} s")
            outcomes = [outcome_of(services, trial) for trial in trials_of(chip)]
            with busy_cores() as hogs:
                busy = busy_rounds(services, rounds)
    right = sum(outcome.as_expected for outcome in outcomes)
    parts = [
        "`python -m benchmarks.evaluation.outcomes`",
        f"Verdicts as expected: {right} of {len(outcomes)}. A hanging call is given up after"
        f" {CALL_SECONDS:g} s; the whole run took {time.perf_counter() - began:.0f} s.",
        table(HEADER, [outcome.cells() for outcome in outcomes]),
        "`read first`: document and heading of the first excerpts that the service returns for the"
        " verdict, as `kernlore evaluate` asks it.",
        *busy_part(busy, hogs),
    ]
    write_result(RESULT, TITLE, parts)
    wrong = len(outcomes) - right + sum(not without_figure(result) for result in busy)
    if wrong:
        sys.exit(f"{wrong} verdicts are not the expected ones")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evaluation.outcomes", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="On the busy machine.")
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="A store to use, whose evaluations are not done again; default a fresh one.",
    )
    given = parser.parse_args()
    ended(lambda: run(given.rounds, given.data_dir))


if __name__ == "__main__":
    main()
