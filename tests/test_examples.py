"""The examples, run like a user does with a running service."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_example_prints_context_and_reports(service_url: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "your_loop.py"), service_url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "shared memory" in ran.stdout.lower()


def test_example_needs_only_httpx_and_fifteen_lines() -> None:
    source = (EXAMPLES / "your_loop.py").read_text(encoding="utf-8")
    imports = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert sorted(a.name for n in imports for a in n.names) == ["httpx", "sys"]
    assert len([line for line in source.splitlines() if line.strip()]) <= 15
