"""Versions of tools: statements about them in texts, and the validity of knowledge for them."""

from __future__ import annotations

import pytest

from kb.errors import InvalidRequest
from kb.validity import (
    Validity,
    checked_versions,
    load_tools,
    read_versions,
    seen_with,
    standing,
    validity_of,
    versions_in,
    with_implied,
)

BANNERS = """\
ptxas: NVIDIA (R) Ptx optimizing assembler
Copyright (c) 2005-2025 NVIDIA Corporation
Cuda compilation tools, release 12.9, V12.9.86
nvcc: NVIDIA (R) Cuda compiler driver
Cuda compilation tools, release 13.0, V13.0.88
Debian clang version 19.1.7 (3~deb12u1)
| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.1 |
g++ (Debian 12.2.0-14+deb12u1) 12.2.0
HIP version: 6.4.43482-0f2d60242
"""


@pytest.mark.parametrize(
    "text, versions",
    [
        (
            BANNERS,
            {
                "ptxas": "12.9",
                "cuda": "13.0",
                "clang": "19.1.7",
                "driver": "580.95.05",
                "gcc": "12.2.0",
                "rocm": "6.4",
            },
        ),
        ("triton==3.6.0\ntorch==2.11.0+cu128\n", {"triton": "3.6.0", "cuda": "12.8"}),
        ("torch 2.9.1+rocm6.4\npytorch-triton-rocm 3.5.1\n", {"triton": "3.5.1", "rocm": "6.4"}),
        ('[[package]]\nname = "nvidia-cutlass-dsl"\nversion = "4.8.1"\n', {"cutlass": "4.8.1"}),
        ('{"default": {"triton": {"hashes": [], "version": "==3.4.0"}}}', {"triton": "3.4.0"}),
        ("  - cuda-nvcc=12.8.93=hcdd1206_0\n", {"cuda": "12.8.93"}),
        ("PyTorch version: 2.11.0+cu130\n[pip3] triton==3.7.1\n", {"triton": "3.7.1"}),
        ("ptxas fatal   : Unsupported .version 9.0; current version is '8.8'\n", {"ptx": "8.8"}),
        ("#$ _TARGET_DIR_=/usr/local/cuda-12.6/bin\n", {"cuda": "12.6"}),
    ],
)
def test_versions_are_read_from_tool_output(text: str, versions: dict[str, str]) -> None:
    read = read_versions(text)
    assert {tool: read.get(tool) for tool in versions} == versions


@pytest.mark.parametrize(
    "text",
    [
        "ptxas info    : Used 40 registers, 384 bytes cmem[0]",
        "triton>=3.4,<4",
        "kernel.py:12:30: error: operand 1 has no attribute 3.6",
        "the kernel needs triton 3.8 to run",
    ],
)
def test_constraints_and_numbers_are_not_versions(text: str) -> None:
    assert read_versions(text) == {}


def test_pairs_and_texts_name_versions() -> None:
    assert versions_in("triton=3.6, nvcc V13.0.88") == {"triton": "3.6", "cuda": "13.0.88"}
    assert versions_in(BANNERS)["clang"] == "19.1.7"
    with pytest.raises(InvalidRequest, match="no version of a known tool"):
        versions_in("nothing here")
    with pytest.raises(InvalidRequest, match="unknown tool 'tritn'") as mistyped:
        versions_in("tritn=3.6")
    assert "did you mean triton" in (mistyped.value.hint or "")
    with pytest.raises(InvalidRequest, match="no version of triton"):
        checked_versions({"triton": "newest"})


def test_toolkit_implies_its_assembler_and_isa() -> None:
    assert with_implied({"cuda": "13.0"}) == {"cuda": "13.0", "ptxas": "13.0", "ptx": "9.0"}
    own = with_implied({"cuda": "13.0", "ptxas": "12.9.86"})
    assert own == {"cuda": "13.0", "ptxas": "12.9.86", "ptx": "8.8"}


@pytest.mark.parametrize(
    "text, bounds",
    [
        ("nvcc V13.0.88, PyTorch 2.11", [("cuda", "13.0", "13.0"), ("torch", "2.11", "2.11")]),
        ("triton>=3.4; NVIDIA sm_80 or later", [("triton", "3.4", "")]),
        ("C++17, g++ 12 and newer with amx-tile", [("gcc", "12", "")]),
        ("HIP, gfx950; compiled with clang 22.1.8, never run", [("clang", "22", "22")]),
        ("Parallel Thread Execution ISA 9.4", [("ptx", "9.4", "9.4")]),
        ("ptxas of CUDA 13.0.88, messages", [("ptxas", "13.0", "13.0")]),
        ("CuTe DSL 4.8.1", [("cutlass", "4.8", "4.8")]),
        ("float32; GCC or a compiler with its vector extensions", []),
    ],
)
def test_sentences_state_their_versions(text: str, bounds: list[tuple[str, str, str]]) -> None:
    seen = seen_with(text, checked="compiled", date="2026-11-25")
    assert [(v.tool, v.min, v.max) for v in seen] == bounds


def test_marks_name_missing_features_of_a_version() -> None:
    needs = Validity("triton", min="3.8")
    assert needs.mark("3.6") == "needs Triton 3.8; yours is 3.6"
    assert needs.mark("3.8.0") == needs.mark("3.10") == ""
    gone = Validity("rocm", max="6.4")
    assert gone.mark("7.0.2") == "holds up to ROCm 6.4; yours is 7.0.2" and not gone.mark("6.4.3")
    ran = Validity("cuda", "13.0", "13.0", checked="ran")
    assert ran.mark("12.9") == "ran with CUDA 13.0; yours is older, 12.9"
    assert ran.mark("13.4") == "ran with CUDA 13.0; yours is newer, 13.4" and not ran.mark("13")


def test_one_matching_statement_admits_a_version() -> None:
    seen = [Validity("triton", v, v, checked="ran") for v in ("3.4", "3.7")]
    needs = Validity("triton", min="3.3")
    assert standing(seen, {"triton": "3.7.1"}).stand == "holds"
    assert standing(seen, {"triton": "3.6"}).marks == ("ran with Triton 3.7; yours is older, 3.6",)
    assert standing([*seen, needs], {"triton": "3.6"}).stand == "holds"
    assert standing([*seen, needs], {"triton": "3.2"}).marks == (needs.mark("3.2"),)
    assert standing(seen, {"clang": "19"}).stand == "unknown"


def test_newest_check_decides_validity() -> None:
    right = Validity("clang", "19", "19", checked="ran", date="2026-11-20")
    refused = Validity("clang", "19", "19", checked="compiled", date="2026-11-28", holds=False)
    again = Validity("clang", "19", "19", checked="compiled", date="2026-11-29")
    assert standing([right, refused], {"clang": "19.1.7"}).stand == "false"
    assert standing([right, refused], {"clang": "18"}).stand == "off"
    assert standing([right, refused, again], {"clang": "19.1.7"}).stand == "holds"


@pytest.mark.parametrize(
    "row, problem",
    [
        ({"tool": "tritn", "min": "3.8"}, "unknown tool 'tritn'"),
        ({"tool": "triton"}, "neither min nor max"),
        ({"tool": "triton", "min": "new"}, "write a version"),
        ({"tool": "triton", "min": "3.8", "checked": "seen"}, "one of ran, compiled, read"),
        ({"tool": "triton", "min": "3.8", "checked": "read", "date": "today"}, "write it like"),
        ({"tool": "triton", "min": "3.8", "since": "3.8"}, "unknown since"),
    ],
)
def test_unusable_row_has_a_reason(row: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        validity_of(row)


def test_tool_names_are_unique() -> None:
    names = [
        name.lower()
        for tool in load_tools().by_id.values()
        for name in {tool.id, tool.title.lower(), *tool.names, *tool.packages}
    ]
    assert len(names) == len(set(names))


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize(
    "piece",
    ["\n", " \n", "gcc (", "GNU ld ", "NVRM version: ", "Nsight Compute ", ".version ", "torch ==",
     "Successfully installed ", '"torch": {', "-1.1", "[pip3] torch "],
)  # fmt: skip
def test_any_text_is_searched_for_versions_in_linear_time(piece: str) -> None:
    """Quadratic expressions took hours for these."""
    text = "torch @ " + piece * (300_000 // len(piece))
    assert read_versions(text + "\ntriton==3.6.0\n") == {"triton": "3.6.0"}
    assert read_versions("triton==3.6.0\n" + text) == {"triton": "3.6.0"}
