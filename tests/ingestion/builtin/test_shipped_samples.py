"""Whole kernels that ship with the knowledge: their rows, documents and status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ingestion.builtin import builtin_documents, builtin_hardware, load_builtin
from ingestion.builtin.samples import ROWS, sample_problems, shipped_samples, with_checks
from ingestion.formats.markdown import parse_markdown
from ingestion.passages import split_sections
from ingestion.samples.kernels import kernels_of
from kb.catalog.knowledge import samples as stored
from kb.errors import InvalidKnowledge
from tests.fixtures import hardware_toml

pytestmark = pytest.mark.slow(seconds=3)

if TYPE_CHECKING:
    from tests.fixtures import Store

SHIPPED = Path(__file__).resolve().parents[3] / "hw_manuals"
KERNEL = """\
extern "C" __global__ void twice(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    y[i] = 2.0f * x[i];
  }
}
"""
ROW = """\
[[samples]]
file = "twice.cu"
title = "Doubling, one element a thread"
operator = "elementwise"
language = "cuda"
shapes = ["x[n] float32"]
about = "{about}"
topics = ["elementwise"]
check = "nvcc"
status = "right"
sources = [{{title = "T", publisher = "P", locator = "L", url = "https://x", read = 2026-11-25}}]

[[samples.checked]]
what = "compiles"
toolchain = "nvcc 13"
where = "sm_90"
date = 2026-11-24

[[samples.checked]]
what = "right"
toolchain = "nvcc 13"
where = "one device"
date = 2026-11-25
note = "0.9 of a copy"
"""
EVIDENCE = (
    "compiles (nvcc 13, sm_90, 2026-11-24); right (nvcc 13, one device, 2026-11-25): 0.9 of a copy"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "manuals"
    place = root / "samples" / "zeta"
    place.mkdir(parents=True)
    chip = root / "hardware" / "zeta"
    chip.mkdir(parents=True)
    (chip / "hardware.toml").write_text(hardware_toml("zeta", "Zeta", None, "vendor"))
    (place / "twice.cu").write_text(KERNEL)
    (place / ROWS).write_text(ROW.format(about="word " * 50))
    return root


def problems(folder: Path) -> list[str]:
    known = {spec.id: spec for spec in builtin_hardware(folder)}
    return [p for sample in shipped_samples(folder) for p in sample_problems(sample, known)]


def change(folder: Path, old: str, new: str) -> None:
    path = folder / "samples" / "zeta" / ROWS
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_row_becomes_a_sample_with_its_verdict(store: Store, folder: Path) -> None:
    assert problems(folder) == []
    load_builtin(folder, store.registry, store.uploads, store.documents)
    store.worker().drain()
    with store.catalog.read() as connection:
        (sample,) = stored.listed(connection, ("zeta",))
    assert (sample.status, sample.evidence) == ("right", EVIDENCE)
    assert (sample.operator, sample.language, sample.shapes) == (
        "elementwise",
        "cuda",
        ("x[n] float32",),
    )
    assert sample.code == KERNEL.strip()
    change(folder, "0.9 of a copy", "0.8 of a copy")  # the kernel is the same
    load_builtin(folder, store.registry, store.uploads, store.documents)
    store.worker().drain()
    with store.catalog.read() as connection:
        (sample,) = stored.listed(connection, ("zeta",))
    assert sample.evidence.endswith("0.8 of a copy")


def test_only_built_in_documents_may_state_verdict(store: Store, folder: Path) -> None:
    (upload,) = (u for u in builtin_documents(folder) if u.name == "twice.md")
    store.ingest("twice.md", upload.data.decode(), hardware=())
    with store.catalog.read() as connection:
        (sample,) = stored.listed(connection)
    assert (sample.status, sample.evidence) == ("untried", "")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('operator = "elementwise"', 'operator = "doubling"', "operator 'doubling'"),
        ('check = "nvcc"', 'check = "icc"', "check is 'icc'"),
        ('status = "right"', 'status = "runs"', "a check found more"),
        ('status = "right"', 'status = "fine"', "status is 'fine'"),
        ('what = "right"', 'what = "compiles"', "no check found that"),
        ("word word", "w", "about has"),
        ('what = "compiles"', 'what = "compiles"\nroof = "0.7"', "are of a kernel that ran"),
        ('what = "right"', f'what = "right"\nlibrary = "{"x" * 60}"', "are cells of a table"),
    ],
)
def test_invalid_row_is_reported(folder: Path, old: str, new: str, problem: str) -> None:
    change(folder, old, new)
    assert any(problem in message for message in problems(folder))


def test_row_without_file_or_with_unknown_key_is_refused(folder: Path) -> None:
    change(folder, "topics", "subjects")
    with pytest.raises(InvalidKnowledge, match="unknown subjects"):
        shipped_samples(folder)
    change(folder, "subjects", "topics")
    change(folder, "twice.cu", "thrice.cu")
    with pytest.raises(InvalidKnowledge, match="no such file"):
        shipped_samples(folder)


def test_stated_share_of_roof_is_in_results() -> None:
    results = SHIPPED.parent / "benchmarks" / "results" / "nvidia_samples.md"
    rows = [line for line in results.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    shares = {row.split("|")[4].split("(")[0].strip() for row in rows}
    checks = [check for sample in shipped_samples(SHIPPED) for check in sample.checked]
    stated = {check.roof for check in checks if check.roof}
    assert len(stated) > 8 and stated <= shares


def test_shipped_samples_are_recognised_as_kernels() -> None:
    shipped = shipped_samples(SHIPPED)
    assert {"hopper", "ampere", "nvidia"} <= {sample.hardware for sample in shipped}
    for sample in shipped:
        parsed = parse_markdown(sample.document())
        (kernel,) = with_checks(
            kernels_of(split_sections(parsed.elements), (), {sample.language}), parsed.front_matter
        )
        assert (kernel.code, kernel.status) == (sample.code.strip(), sample.status)
