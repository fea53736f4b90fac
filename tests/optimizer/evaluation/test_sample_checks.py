"""Built-in kernels are checked with the tools of their rows; unchecked ones have a reason."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ingestion.builtin import builtin_hardware
from ingestion.builtin.samples import ShippedSample, shipped_samples
from kb.catalog.knowledge.validities import checks_of, stored_validities
from kb.errors import NotFound
from kb.settings import Settings
from kb.validity import standing
from optimizer.evaluation.sample_checks import check_sample, check_samples
from optimizer.evaluation.toolchains.cuda import find_nvcc
from optimizer.knowledge_check import check_knowledge
from retrieval.knowledge_base import KnowledgeBase
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=6)

SHIPPED = Path(__file__).resolve().parents[3] / "hw_manuals"
SPECS = {spec.id: spec for spec in builtin_hardware(SHIPPED)}


def sample(hardware: str, file: str) -> ShippedSample:
    (row,) = (s for s in shipped_samples(SHIPPED) if (s.hardware, s.file) == (hardware, file))
    return row


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_kernel_that_stopped_compiling_is_broken(tmp_path: Path) -> None:
    place = tmp_path / "samples" / "x86-64"
    place.mkdir(parents=True)
    row = ShippedSample(
        hardware="x86-64",
        file="add.cpp",
        title="Addition",
        operator="elementwise",
        language="cpp",
        about="",
        code="",
        check="g++",
        status="compiles",
    )
    (place / "add.cpp").write_text('extern "C" void add(float* x, int n) { x[n] += 1; }')
    result = check_sample(tmp_path, row, SPECS)
    assert (result.outcome, result.broken) == ("compiles", False), result.detail
    assert "(" in result.toolchain and result.target == "any"
    (place / "add.cpp").write_text('extern "C" void add(float* x, int n) { x[n] += y; }')
    result = check_sample(tmp_path, row, SPECS)
    assert (result.outcome, result.broken) == ("refused", True)
    assert "y" in result.detail


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
def test_specific_instructions_compile_for_specific_target() -> None:
    """`-arch=sm_90a` would also assemble for plain sm_90, which lacks wgmma."""
    result = check_sample(SHIPPED, sample("hopper", "gemm-tma-wgmma-cooperative.cu"), SPECS)
    assert (result.outcome, result.target) == ("compiles", "sm_90a"), result.detail


def test_gluon_and_descriptors_compile_without_device() -> None:
    row = sample("hopper", "gemm-gluon-tma-wgmma.py")
    result = check_sample(SHIPPED, row, SPECS)
    assert (result.outcome, result.target) == ("compiles", "90"), result.detail
    assert result.toolchain.startswith("triton 3.")


def test_uncompilable_sample_is_parsed_or_not_checked() -> None:
    row = sample("hopper", "paged-decode-attention.py")
    parsed = check_sample(SHIPPED, replace(row, check="parse"), SPECS)
    assert (parsed.outcome, parsed.detail) == ("parses", "parsed only, not compiled")
    other = replace(sample("ampere", "gemm-mma-sync-cp-async.cu"), check="parse")
    assert check_sample(SHIPPED, other, SPECS).outcome == "not checked"


def test_chip_without_samples_is_an_error() -> None:
    with pytest.raises(NotFound, match="mtia-v9"):
        next(check_samples(SHIPPED, "mtia-v9"))


def base_of(store: Store, manuals: Path) -> KnowledgeBase:
    return KnowledgeBase(Settings(data_dir=store.data_dir, knowledge_dir=manuals))


ADD = 'extern "C" void {name}(float* x, int n) {{ x[n] += 1; }}\n'
ROW = """
[[samples]]
file = "{name}.cpp"
title = "{name}"
operator = "elementwise"
language = "cpp"
about = "."
check = "g++"
flags = ["{flag}"]
status = "compiles"
checked = [{{what = "compiles", toolchain = "g++ 12.2", where = "any", date = 2026-11-20}}]
"""
# A compiler of another version, which no longer has an option.
NEWER = """#!/bin/sh
case "$*" in
  *--version*) echo "g++ (Tests) 98.1.0"; exit 0;;
  *-fno-plt*) echo "g++: error: unrecognized command-line option '-fno-plt'" >&2; exit 1;;
esac
exec {real} "$@"
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_what_a_newer_tool_refuses_expires_and_the_rest_is_confirmed(
    store: Store, tmp_path: Path
) -> None:
    manuals, newer = tmp_path / "manuals", tmp_path / "newer" / "bin"
    place = manuals / "samples" / "x86-64"
    for folder in (place, newer):
        folder.mkdir(parents=True)
    rows = {"keeps": "-O1", "loses": "-fno-plt"}
    for name in rows:
        (place / f"{name}.cpp").write_text(ADD.format(name=name))
    text = "".join(ROW.format(name=name, flag=flag) for name, flag in rows.items())
    (place / "samples.toml").write_text(text)
    (newer / "g++").write_text(NEWER.format(real=shutil.which("g++")))
    (newer / "g++").chmod(0o755)
    store.registry.put(SPECS["x86-64"], "builtin")
    for row in shipped_samples(manuals):
        store.uploads.submit(row.upload())

    def changes(*toolchains: Path) -> dict[tuple[str, str], str]:
        result = check_knowledge(base_of(store, manuals), toolchains, kinds=["kernel"])
        assert result.remarks == () and result.not_checked == {}
        return {(Path(c.subject).stem, c.version): c.change for c in result.changes}

    (own,) = {version for _, version in changes()}
    again = changes(newer.parent)
    assert again == {("keeps", "98"): "confirmed", ("loses", "98"): "expired"}
    assert changes() == {("keeps", own): "unchanged", ("loses", own): "unchanged"}
    with store.catalog.read() as connection:
        kept = {Path(row.title).stem: row for row in checks_of(connection)}
        state = stored_validities(connection)
    assert state.versions == {"gcc": "98"} and "-fno-plt" in kept["loses"].detail
    stands = [standing(own, state.versions).stand for own in state.checked.values()]
    assert sorted(stands) == ["false", "holds"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_a_tool_that_refuses_everything_expires_nothing(store: Store, tmp_path: Path) -> None:
    place, broken = tmp_path / "manuals" / "samples" / "x86-64", tmp_path / "broken"
    for folder in (place, broken):
        folder.mkdir(parents=True)
    (place / "keeps.cpp").write_text(ADD.format(name="keeps"))
    (place / "samples.toml").write_text(ROW.format(name="keeps", flag="-O1"))
    (broken / "g++").write_text(NEWER.format(real="false"))
    (broken / "g++").chmod(0o755)
    base = base_of(store, tmp_path / "manuals")
    result = check_knowledge(base, [broken], kinds=["kernel"])
    assert result.changes == () and "refuses every kernel" in result.remarks[0]
