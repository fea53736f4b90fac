"""Probes: real programs on this machine's processor, compared with facts, some of them wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestion.builtin import builtin_documents
from ingestion.formats import parse
from kb.errors import InvalidKnowledge, InvalidRequest
from kb.hardware.schema import parse_hardware
from kb.settings import Settings
from optimizer.evaluation.acceptance import probes
from optimizer.evaluation.acceptance.accept import sections_of
from optimizer.evaluation.acceptance.page import probe_page
from optimizer.evaluation.acceptance.probe_runs import (
    Machine,
    Measured,
    Probe,
    ProbeRun,
    probe_run,
    read_library,
)
from optimizer.evaluation.acceptance.probes import StatedValue, judge
from optimizer.search.runs.sessions import write_program
from retrieval.knowledge_base import KnowledgeBase
from tests.places import ROOT

LIBRARY = ROOT / "hw_manuals" / "probes"
SOURCE = """
#include "probe.h"
int main() {
  for (int n = 0; n < 7; n++) {
    report("line", 64);
    report("cycles", 4 + n % 2);
    report("rate", 85 + n);
  }
  report("word", sizeof(int));
  report_answer("kept", 1);
  report_failure("tiles", "the processor has no tiles");
}
"""
UNITS = """
[[units]]
file = "small.cpp"
language = "cpp"
probes = [
  {name = "line", measures = "a line", unit = "B", fact = "cache_line", timed = true},
  {name = "word", measures = "a word", unit = "B", fact = "x_word"},
  {name = "cycles", measures = "cycles", unit = "cycles", fact = "x_cycles", timed = true},
  {name = "rate", measures = "a rate", unit = "B/s", fact = "x_rate", relation = "ceiling"},
  {name = "kept", measures = "whether", claims = [
    {value = "no", text = "never kept", document = "Guide", section = "Words"}]},
  {name = "tiles", measures = "tiles", unit = "count", fact = "x_tiles"},
  {name = "silent", measures = "nothing", fact = "x_silent"},
]
[[units]]
file = "other.c"
language = "vliw"
probes = [{name = "other", measures = "another language"}]
"""
CHIP = 'id = "x1"\nname = "X1"\nvendor = "x1"\nlanguages = ["cpp"]\n' + "".join(
    f'[[facts]]\nkey = "{key}"\nvalue = {value}\nunit = "{unit}"\nkind = "datasheet"\n'
    'title = "Data sheet"\npublisher = "X"\nlocator = "Table 1"\ndate = "2026-11-29"\n'
    for key, value, unit in (
        ("cache_line", 64, "B"),
        ("x_word", 8, "B"),  # planted: an int has 4
        ("x_cycles", 4, "cycles"),
        ("x_rate", 1e8, "B/s"),
        ("x_tiles", 8, "count"),
    )
)


@pytest.fixture
def base(tmp_path: Path) -> Iterator[KnowledgeBase]:
    library = tmp_path / "knowledge" / "probes"
    (library / "x1").mkdir(parents=True)
    shutil.copy(LIBRARY / "probe.h", library)
    (library / "x1" / "small.cpp").write_text(SOURCE, encoding="utf-8")
    (library / "x1" / "other.c").write_text("", encoding="utf-8")
    (library / "x1" / "probes.toml").write_text(UNITS, encoding="utf-8")
    base = KnowledgeBase(Settings(data_dir=tmp_path / "data", knowledge_dir=tmp_path / "knowledge"))
    base.registry.put(parse_hardware(CHIP, "x1"), "test")
    yield base
    base.close()


def _run(base: KnowledgeBase) -> ProbeRun:
    units = probes.units_of(base, "x1")
    return probe_run("x1", units, Machine(devices=frozenset({"cpu"})), "the test")


def test_wrong_fact_is_contradicted_and_undecidable_one_has_a_reason(base: KnowledgeBase) -> None:
    probes.store(base, _run(base))
    report = probes.show_probes(base, "x1")
    states = {result.probe: result.state for result in report.results}
    assert states == {
        "word": "contradicted",
        "kept": "contradicted",
        "line": "confirmed",
        "cycles": "not decidable",
        "rate": "not decidable",
        "tiles": "not decidable",
        "silent": "not decidable",
        "other": "not run",
    }
    page = probe_page(report)
    contradicted, _, rest = page.partition("## Probes")
    assert "states 8 B; measured 4 B" in contradicted
    assert "Data sheet > x_word, Table 1" in contradicted, "both sources are named"
    assert "the test" in contradicted
    assert "“never kept”" in contradicted
    assert "the processor has no tiles" in rest
    assert "small.cpp ended without a result" in rest
    assert "nothing here runs vliw" in report.missing["vliw"]
    # A correction of the fact decides anew, without another run.
    base.registry.put(
        parse_hardware(CHIP.replace('value = 8\nunit = "B"', 'value = 4\nunit = "B"'), "x1"), "test"
    )
    again = {result.probe: result.state for result in probes.show_probes(base, "x1").results}
    assert again["word"] == "confirmed"


def test_results_of_a_device_replace_its_earlier_ones(base: KnowledgeBase) -> None:
    run = _run(base)
    probes.store(base, run)
    newer = ProbeRun(**{**vars(run), "measured": (Measured("line", (32.0,) * 7),)})
    probes.store(base, newer)
    values = {result.probe: result.value for result in probes.show_probes(base, "x1").results}
    assert values["line"] == 32
    assert values["word"] == 4


@pytest.mark.parametrize(
    ("values", "probe", "stated", "outcome"),
    [
        ((29.0,) * 9, Probe("p", "", "B", tolerance=0.05), 30.0, "right"),
        ((29.0,) * 9, Probe("p", "", "B"), 30.0, "contradicted"),
        (
            (28.0, 29.0, 31.0, 30.0, 30.5, 29.5, 32.0),
            Probe("p", "", "B", timed=True),
            30.0,
            "unchecked",
        ),
        ((31.0,) * 2, Probe("p", "", "B", timed=True), 30.0, "unchecked"),
        ((93.0,) * 9, Probe("p", "", "B", relation="ceiling"), 100.0, "right"),
        ((60.0,) * 9, Probe("p", "", "B", relation="ceiling"), 100.0, "unchecked"),
        ((101.0,) * 9, Probe("p", "", "B", relation="ceiling"), 100.0, "contradicted"),
        ((132.0,), Probe("p", "", "B", relation="floor"), 128.0, "right"),
        ((120.0,), Probe("p", "", "B", relation="floor"), 128.0, "contradicted"),
        (("yes", "no"), Probe("p", "", "B"), "yes", "unchecked"),
    ],
)
def test_only_one_sided_interval_decides(
    values: tuple[float | str, ...], probe: Probe, stated: float | str, outcome: str
) -> None:
    assert judge(probe, Measured("p", values), StatedValue(stated, "B", "", ""))[0] == outcome


def test_busy_machine_contradicts_no_time() -> None:
    slow = Measured("p", (50.0,) * 9, waited=0.5)
    stated = StatedValue(30.0, "cycles", "", "")
    assert judge(Probe("p", "", "cycles", timed=True), slow, stated)[0] == "unchecked"
    assert judge(Probe("p", "", "cycles"), slow, stated)[0] == "contradicted"


@pytest.mark.slow
def test_pack_runs_without_kernlore_and_imports_results(
    base: KnowledgeBase, tmp_path: Path
) -> None:
    pack = write_program(
        tmp_path / "pack.zip",
        "optimizer.evaluation.acceptance.probe_runs",
        dict(probes.pack_files(base, "x1")),
    )
    command = [sys.executable, "-I", "-S", str(pack), "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    record = json.loads((tmp_path / "out" / "probes.json").read_text(encoding="utf-8"))
    assert {row["probe"] for row in record["measured"]} >= {"word", "line"}
    assert "other" not in {row["probe"] for row in record["measured"]}
    changed = {**record, "device": ""}  # the machine's own processor is not a X1
    (tmp_path / "out" / "probes.json").write_text(json.dumps(changed), encoding="utf-8")
    report = probes.import_results(base, "x1", tmp_path / "out" / "probes.json")
    assert report.counts["contradicted"] == 2
    (tmp_path / "broken.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InvalidRequest, match="has no results of probes"):
        probes.import_results(base, "x1", tmp_path / "broken.json")


def test_mistakes_of_a_library_are_reported_at_once(base: KnowledgeBase) -> None:
    folder = base.settings.knowledge_dir / "probes"
    wrong = UNITS.replace("small.cpp", "absent.cpp", 1).replace(
        'relation = "ceiling"', 'relation = "roof"'
    )
    (folder / "x1" / "probes.toml").write_text(wrong, encoding="utf-8")
    with pytest.raises(InvalidKnowledge) as raised:
        read_library(folder)
    assert "absent.cpp does not exist" in raised.value.message
    assert "'roof' is not allowed" in raised.value.message


def test_manuals_state_the_claims_of_built_in_probes() -> None:
    units = read_library(LIBRARY)
    claims = [claim for unit in units for probe in unit.probes for claim in probe.claims]
    named = {claim.document for claim in claims}
    texts = {
        (section.document, section.path[-1] if section.path else ""): " ".join(section.text.split())
        for upload in builtin_documents(ROOT / "hw_manuals")
        if upload.title in named
        for section in sections_of(upload.title, parse(upload.data, upload.name))
    }
    assert len(claims) > 50
    assert sum(len(unit.probes) for unit in units) > 200
    for claim in claims:
        assert " ".join(claim.text.split()) in texts[claim.document, claim.section], claim


def test_shipped_results_are_of_built_in_probes() -> None:
    known = {probe.name for unit in read_library(LIBRARY) for probe in unit.probes}
    runs = [probes.read_results(path) for path in sorted((LIBRARY / "results").glob("*.json"))]
    assert {run.hardware for run in runs} >= {"h200", "x86-64", "riscv-v-256"}
    for run in runs:
        assert run.device
        assert {entry.probe for entry in run.measured} <= known
        assert all(entry.values for entry in run.measured)
