"""`kernlore hardware probe`: figures and behaviours of a chip, measured and compared with its facts
and with the statements of its manuals.

A statement is confirmed or contradicted only if the whole 95 % interval of the median is inside or
outside its tolerance. Statements that differ are compared one by one; nothing is averaged.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from kb.catalog import meta
from kb.catalog.facts import Fact
from kb.errors import InvalidRequest, NotFound
from kb.hardware.facts import readable
from kb.plain import from_json, plain
from optimizer.evaluation.acceptance.probe_runs import (
    PACKED,
    Machine,
    Measured,
    Probe,
    ProbeRun,
    ProbeUnit,
    Value,
    probe_run,
    read_library,
)
from optimizer.evaluation.acceptance.records import Finding, Outcome
from optimizer.evaluation.collectors.ceilings import MAX_WAITED
from optimizer.evaluation.toolchains.cuda import SPECIFIC
from optimizer.evaluation.toolchains.processes import FinishedCommand
from retrieval.knowledge_base import KnowledgeBase

if TYPE_CHECKING:
    from optimizer.evaluation.acceptance.tool import ProbedTool

KEY = "probes:"  # of the catalog's named values, with the id of the chip
LIBRARY, SHIPPED_RESULTS = "probes", "results"  # folders of the built-in knowledge
COMMAND = "kernlore hardware probe"  # in the locator of facts that come from probes
MOST_VALUES = 64  # figures of a unit in the language of a command toolchain
FEW = 3  # repeats below which a time decides nothing
REACHED = 0.8  # share of a peak that confirms it
_LOCAL_LANGUAGES = frozenset({"cuda", "triton", "ptx", "cpp"})

# measured: nothing is stated about it; not run: the machine lacks what it needs.
State = Literal["contradicted", "confirmed", "not decidable", "measured", "not run"]
_STATES: Mapping[Outcome, State] = {
    "contradicted": "contradicted",
    "right": "confirmed",
    "unchecked": "not decidable",
}


@dataclass(frozen=True)
class ProbeResult:
    """One probe on one device: the median of `repeats` with its 95 % interval `low` to `high`, or a
    text; `reason` is why there is none. `findings` has one entry for each statement."""

    probe: str
    state: State
    measures: str
    unit: str
    language: str
    source: str
    value: Value | None
    low: float | None
    high: float | None
    repeats: int
    reason: str
    fact: str
    device: str
    made_at: str
    findings: tuple[Finding, ...]

    @property
    def text(self) -> str:
        """The value with its interval."""
        if self.value is None:
            return self.reason
        return measured_text(self.value, self.low, self.high, self.unit)


@dataclass(frozen=True)
class ProbeReport:
    """The probes of a chip: `counts` by state, `devices` that were measured, `missing` why the
    probes of a language did not run at the last call."""

    hardware: str
    counts: Mapping[str, int]
    devices: tuple[str, ...]
    missing: Mapping[str, str]
    results: tuple[ProbeResult, ...]


def units_of(
    base: KnowledgeBase,
    hardware: str,
    language: str = "",
    only: Collection[str] = (),
    library: Path | None = None,
) -> tuple[ProbeUnit, ...]:
    """The units of a chip and its ancestors that have probes of these names. Raises NotFound."""
    lineage = base.registry.lineage(hardware)
    folder = library or base.settings.knowledge_dir / LIBRARY
    units = [
        unit
        for unit in read_library(folder)
        if unit.hardware in lineage and language in ("", unit.language)
    ]
    unknown = set(only) - {probe.name for unit in units for probe in unit.probes}
    if unknown or not units:
        what = f"no probe of {hardware} is called {', '.join(sorted(unknown))}"
        raise NotFound(
            what if unknown else f"there are no probes of {hardware}",
            hint=f"Probes are in {folder}; --library names another folder.",
        )
    return tuple(
        unit for unit in units if not only or any(probe.name in only for probe in unit.probes)
    )


def probe_hardware(
    base: KnowledgeBase,
    hardware_id: str,
    *,
    language: str = "",
    only: Collection[str] = (),
    library: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> ProbeReport:
    """Run those probes of a chip that this machine can run; store and compare the results."""
    hardware = base.registry.resolve(hardware_id)
    units = units_of(base, hardware, language, only, library)
    with tempfile.TemporaryDirectory(prefix="kernlore-probe-") as folder:
        machine = _machine(base, hardware, {unit.language for unit in units}, Path(folder))
        command = " ".join([COMMAND, hardware, *(f"--only {name}" for name in only)])
        run = probe_run(hardware, units, machine, command, say)
    if only:
        run = replace(run, measured=tuple(m for m in run.measured if m.probe in only))
    store(base, run)
    return compare(base, hardware, [run], units)


def _machine(base: KnowledgeBase, hardware: str, languages: set[str], folder: Path) -> Machine:
    from optimizer.evaluation.acceptance.tool import ProbedTool  # loads torch, as `evaluate` does
    from optimizer.evaluation.evaluate import choose_target
    from optimizer.evaluation.targets import command_toolchains

    devices = set()
    for language in sorted(languages & {"cuda", "triton", "cpp"}):
        device = choose_target(base, hardware, language).target.device
        devices |= {device} if device is not None else set()
    lineage = base.registry.lineage(hardware)
    others, absent = {}, {}
    chains = command_toolchains(base.registry.all(), lineage)
    for language in sorted(languages - _LOCAL_LANGUAGES):
        if language not in chains:
            absent[language] = f"{hardware} has no command toolchain for {language}"
            continue
        chosen = choose_target(base, hardware, language)
        tool = ProbedTool(language, chains[language], chosen.target, folder)
        available = tool.chain.available(chosen.target)
        if available.ok:
            others[language] = partial(_with_toolchain, tool)
        else:
            absent[language] = f"{available.reason}. {available.hint}"
    return Machine(arch_of(base, hardware), frozenset(devices), others, absent)


def arch_of(base: KnowledgeBase, hardware: str) -> str:
    """The architecture that nvcc and ptxas compile for, such as "90a"; "" without one."""
    from optimizer.evaluation.evaluate import choose_target

    capability = choose_target(base, hardware, "cuda").target.capability
    if capability is None:
        return ""
    return f"{capability}a" if capability in SPECIFIC else str(capability)


def _with_toolchain(tool: ProbedTool, unit: ProbeUnit) -> FinishedCommand:
    """Run a unit whose kernel writes the value of its n-th probe into element n of its output."""
    from optimizer.evaluation.acceptance.tool import guessed

    ran = tool.run(unit.source.read_text(encoding="utf-8"), guessed(1, (MOST_VALUES,)))
    if not ran.ok:
        return FinishedCommand(1, "", f"error: {ran.message}", ran.seconds)
    values = ran.outputs[0].flatten().tolist()
    lines = [f"probe {p.name} {value!r}" for p, value in zip(unit.probes, values, strict=False)]
    return FinishedCommand(0, "\n".join(lines), "", ran.seconds)


# -- packs and stored results


def pack_files(
    base: KnowledgeBase, hardware_id: str, only: Collection[str] = (), library: Path | None = None
) -> Iterator[tuple[str, bytes]]:
    """The files of a pack beside the program: the library and what to run. A pack has the probes of
    languages that need the device."""
    hardware = base.registry.resolve(hardware_id)
    units = [
        unit
        for unit in units_of(base, hardware, "", only, library)
        if unit.language in _LOCAL_LANGUAGES
    ]
    arch = arch_of(base, hardware)
    packed = {
        "hardware": hardware,
        "arch": arch,
        "device": "cuda" if arch else "cpu",
        "command": f"{COMMAND} {hardware}",
        "units": [unit.name for unit in units],
    }
    yield PACKED, json.dumps(packed).encode()
    folder = library or base.settings.knowledge_dir / LIBRARY
    for path in sorted(folder.rglob("*")):  # a source may include a header of another folder
        if path.is_file() and path.suffix not in (".json", ".pyc"):
            yield f"library/{path.relative_to(folder).as_posix()}", path.read_bytes()


def import_results(base: KnowledgeBase, hardware_id: str, path: Path) -> ProbeReport:
    """Store the results of a pack. Raises InvalidRequest for another chip's or a broken file."""
    from optimizer.evaluation.evaluate import resolver

    hardware = base.registry.resolve(hardware_id)
    run = read_results(path)
    chip = resolver(base)(run.device) or run.hardware
    if hardware not in (run.hardware, chip) or (run.device and chip != hardware):
        raise InvalidRequest(
            f"{path} has results of {chip} ({run.device or 'no device'}), not of {hardware}",
            hint=f"Import them with `{COMMAND} {chip} --results {path}`.",
        )
    store(base, run)
    return show_probes(base, hardware)


def read_results(path: Path) -> ProbeRun:
    """The run in a file. Raises InvalidRequest."""
    try:
        return from_json(ProbeRun, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} has no results of probes: {error}",
            hint="Give the probes.json that a pack wrote.",
        ) from error


def store(base: KnowledgeBase, run: ProbeRun) -> None:
    """Add a run to those of its chip. Of the same device, it replaces the probes that ran."""
    runs = _by_device([*_stored(base, run.hardware), run])
    with base.catalog.write() as connection:
        meta.put(connection, f"{KEY}{run.hardware}", plain(runs))


def _by_device(runs: Sequence[ProbeRun]) -> list[ProbeRun]:
    joined: dict[str, ProbeRun] = {}
    for run in runs:
        joined[run.device] = _newer(joined[run.device], run) if run.device in joined else run
    return [*joined.values()]


def _newer(before: ProbeRun, run: ProbeRun) -> ProbeRun:
    ran = {entry.probe for entry in run.measured if entry.values}
    kept = [entry for entry in before.measured if entry.probe not in ran and entry.values]
    names = {entry.probe for entry in kept}
    now = [entry for entry in run.measured if entry.probe not in names]
    return replace(run, measured=(*kept, *now))


def _stored(base: KnowledgeBase, hardware: str) -> list[ProbeRun]:
    with base.catalog.read() as connection:
        rows: list[dict[str, Any]] = meta.get(connection, f"{KEY}{hardware}") or []
    return [from_json(ProbeRun, row) for row in rows]


def show_probes(base: KnowledgeBase, hardware_id: str) -> ProbeReport:
    """The probes of a chip, each on every device that ran it, compared with the facts of today."""
    hardware = base.registry.resolve(hardware_id)
    folder = base.settings.knowledge_dir / LIBRARY
    shipped = [read_results(path) for path in sorted(folder.glob(f"{SHIPPED_RESULTS}/*.json"))]
    runs = [run for run in shipped if run.hardware == hardware]
    runs = _by_device([*runs, *_stored(base, hardware)])
    return compare(base, hardware, runs, read_library(folder))


# -- comparison


@dataclass(frozen=True)
class StatedValue:
    """What a source states about a probe's figure."""

    value: Value
    unit: str
    title: str
    place: str


def compare(
    base: KnowledgeBase, hardware: str, runs: Sequence[ProbeRun], units: Sequence[ProbeUnit]
) -> ProbeReport:
    """Compare measurements with statements, the contradicted first."""
    stated = _facts(base, hardware)
    results = [
        _result(run, unit, probe, measured, stated)
        for run in runs
        for measured in run.measured
        for unit in units
        for probe in unit.probes
        if probe.name == measured.probe
    ]
    order = get_args(State)
    results.sort(key=lambda result: (order.index(result.state), result.source))
    counts = Counter(result.state for result in results)
    return ProbeReport(
        hardware=hardware,
        counts={state: counts[state] for state in order if counts[state]},
        devices=tuple(dict.fromkeys(run.device for run in runs if run.device)),
        missing={name: why for run in runs for name, why in run.missing.items()},
        results=tuple(results),
    )


def _facts(base: KnowledgeBase, hardware: str) -> dict[str, list[Fact]]:
    """By key, all accepted facts of the nearest hardware of the lineage that states it, but those
    that probes have measured."""
    stated: dict[str, list[Fact]] = {}
    for ancestor in base.registry.lineage(hardware):
        own: dict[str, list[Fact]] = {}
        for fact in base.registry.facts(ancestor, status="accepted"):
            if COMMAND not in fact.locator:
                own.setdefault(fact.key, []).append(fact)
        stated = {**own, **stated}
    return stated


def _result(
    run: ProbeRun,
    unit: ProbeUnit,
    probe: Probe,
    measured: Measured,
    stated: Mapping[str, Sequence[Fact]],
) -> ProbeResult:
    statements = [
        StatedValue(fact.value, fact.unit, fact.title, f"{fact.key}, {fact.locator}")
        for fact in stated.get(probe.fact, ())
        if probe.relation != "ceiling" or fact.kind != "measured"  # which is no peak
    ]
    statements += [
        StatedValue(claim.value, probe.unit, claim.document, f"{claim.section}: “{claim.text}”")
        for claim in probe.claims
    ]
    evidence = ", ".join(filter(None, (run.command, run.device, run.made_at[:10])))
    findings = tuple(_judged(probe, measured, statement, evidence) for statement in statements)
    outcomes = {finding.outcome for finding in findings}
    reached = [_STATES[outcome] for outcome in _STATES if outcome in outcomes]
    state: State = reached[0] if reached else "measured"
    if measured.reason:
        state = "not run" if unit.language in run.missing else "not decidable"
    low, high = measured.interval or (None, None)
    return ProbeResult(
        probe=probe.name,
        state=state,
        measures=probe.measures,
        unit=probe.unit,
        language=unit.language,
        source=unit.name,
        value=measured.value,
        low=low,
        high=high,
        repeats=len(measured.values),
        reason=measured.reason,
        fact=probe.fact,
        device=run.device,
        made_at=run.made_at,
        findings=findings,
    )


def _judged(probe: Probe, measured: Measured, statement: StatedValue, evidence: str) -> Finding:
    outcome, why = judge(probe, measured, statement)
    stated = quantity(statement.value, statement.unit)
    found = f"states {stated}; measured {_figure(probe, measured)}"
    message = "; ".join(filter(None, (found if measured.values else f"states {stated}", why)))
    return Finding(
        "probe", outcome, probe.name, statement.title, statement.place, message, evidence
    )


def judge(probe: Probe, measured: Measured, statement: StatedValue) -> tuple[Outcome, str]:
    """Whether a measurement confirms a statement, and the reason if it decides nothing."""
    if measured.reason:
        return "unchecked", measured.reason
    if isinstance(statement.value, str) or not measured.numbers:
        if measured.value is None:
            return "unchecked", "the repeats disagree"
        return ("right" if measured.value == statement.value else "contradicted"), ""
    if statement.unit != probe.unit:
        return "unchecked", f"stated in {statement.unit}, measured in {probe.unit}"
    return _judge_number(probe, measured, float(statement.value))


def _judge_number(probe: Probe, measured: Measured, stated: float) -> tuple[Outcome, str]:
    low, high = measured.interval or (0.0, 0.0)
    margin = abs(stated) * probe.tolerance
    if probe.timed and len(measured.values) < FEW:
        return "unchecked", f"{len(measured.values)} repeats are too few for a time"
    if probe.relation == "ceiling":
        return _judge_peak(low, high, stated, margin)
    if probe.relation == "floor" and low >= stated - margin:
        return "right", ""
    if stated - margin <= low and high <= stated + margin:
        return "right", ""
    if stated - margin <= high and low <= stated + margin:
        return "unchecked", "the interval has values inside and outside the tolerance"
    if probe.timed and measured.waited > MAX_WAITED:
        return "unchecked", f"the program waited for a processor {measured.waited:.0%} of its time"
    return "contradicted", ""


def _judge_peak(low: float, high: float, stated: float, margin: float) -> tuple[Outcome, str]:
    if low > stated + margin:
        return "contradicted", "a peak was exceeded"
    share = f"{100 * high / stated:.0f} % of it was reached"
    if high < REACHED * stated:
        return "unchecked", f"{share}; a better program or an idle machine may reach more"
    return "right", share


def _figure(probe: Probe, measured: Measured) -> str:
    value, interval = measured.value, measured.interval
    if value is None:
        return ", ".join(sorted({str(entry) for entry in measured.values}))
    low, high = interval or (None, None)
    return f"{measured_text(value, low, high, probe.unit)}, {len(measured.values)} repeats"


def measured_text(value: Value, low: float | None, high: float | None, unit: str) -> str:
    text = quantity(value, unit)
    if isinstance(value, str) or low is None or high is None or low == high:
        return text
    return f"{text} ({quantity(low, unit)} to {quantity(high, unit)})"


def quantity(value: Value, unit: str) -> str:
    """A value for display: "29 cycles", "1.9 us", "2^-22.5", "4.3 TB/s"."""
    if isinstance(value, str):
        return value
    if unit == "s":
        return f"{value * 1e6:.3g} us" if value < 1e-3 else f"{value:.3g} s"
    if unit == "log2":
        return f"2^{value:.2f}"
    if unit == "B" and value < 1024:
        return f"{value:.4g} B"
    if unit in ("B", "B/s", "Hz", "flop/s", "op/s"):
        return readable(float(f"{value:.4g}") if unit != "B" else value, unit)
    number = f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"
    return number if unit in ("count", "") else f"{number} {unit}"
