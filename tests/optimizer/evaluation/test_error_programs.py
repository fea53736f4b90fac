"""Tools print the texts that signatures recognise."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestion.builtin import builtin_hardware
from kb.validity import load_tools
from optimizer.knowledge_check import check_signatures, signatures_by_id
from retrieval.diagnose.error_programs import load_error_evidence
from retrieval.diagnose.signatures import SignatureIndex
from tests.shared import BUILTIN

SPECS = {spec.id: spec for spec in builtin_hardware(BUILTIN)}
EVIDENCE = load_error_evidence()


def test_programs_name_signatures_and_versions() -> None:
    known = signatures_by_id(SPECS)
    named = {name for program in EVIDENCE.programs for name in program.signatures}
    assert named | EVIDENCE.validities.keys() <= known.keys()
    assert len(named) > 200
    lacking = [
        p.name for p in EVIDENCE.programs for s in p.signatures if not EVIDENCE.validities[s]
    ]
    assert lacking == []
    tools = {v.tool for own in EVIDENCE.validities.values() for v in own if v.tool}
    assert (
        {"gcc", "clang", "cuda", "ptxas", "triton", "torch"} <= tools <= load_tools().by_id.keys()
    )


@pytest.mark.slow(seconds=14)
@pytest.mark.parametrize("tool", ["binutils", "clang", "ptxas", "python"])
def test_installed_tools_print_texts(tool: str) -> None:
    """The slower ones (gcc, nvcc, Triton, PyTorch) are left to `kernlore knowledge check`."""
    checks = list(check_signatures(SPECS, tools=[tool]))
    if not checks:
        pytest.skip(f"no {tool}")
    assert [(c.program, c.log) for c in checks if not c.printed] == []


@pytest.mark.parametrize(
    ("line", "signature"),
    [
        ("k.cpp:1:1: error: \u2018uint32_t\u2019 does not name a type", "fixed-width-type"),
        ("CalledProcessError: Command '['g++', 'x.cpp']' returned 1.", "build-command-failed"),
        ("x.cpp:1: error: unused variable 'x' [-Werror,-Wunused-variable]", "cc-werror"),
        ("x.c:1: error: call to undeclared function 'g'; ISO C99", "cc-implicit-function"),
        ("x.s:2: error: expected a 16-bit signed integer", "amd-assembler"),
    ],
)
def test_texts_of_other_compilers_and_locales(line: str, signature: str) -> None:
    assert signature in SignatureIndex(signatures_by_id({}).values()).in_log(line)


def test_syntax_error_of_another_compiler_is_not_an_assembler_line() -> None:
    index = SignatureIndex(signatures_by_id({}).values())
    assert "amd-assembler" not in index.in_log("k.cu(3): error: expected an expression")


@pytest.mark.slow(seconds=14)
def test_tool_without_the_target_refutes_nothing(tmp_path: Path) -> None:
    """A compiler that does not know a chip says nothing about the texts that it prints for it."""
    (tmp_path / "clang").write_text(
        "#!/bin/sh\ncase $* in *--version) echo clang version 7.0;;"
        " *) echo \"clang: error: invalid target ID 'gfx942'\" >&2; exit 1;; esac\n"
    )
    (tmp_path / "clang").chmod(0o755)
    checks = [
        c for c in check_signatures(SPECS, tmp_path, ["clang"]) if c.versions["clang"] == "7.0"
    ]
    about = {check.signature: check.printed for check in checks}
    assert about["amd-local-memory"] is None and about["amd-offload-arch"] is True
