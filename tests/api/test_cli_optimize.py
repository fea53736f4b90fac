"""`kernlore optimize` and `kernlore runs` as a user runs them: real compilers, real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.cli_process import kernlore

PROBLEM = "map_id"
OPTIONS = ("--language", "cpp", "--candidates", "2", "--knowledge", "off")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("optimize")


@pytest.fixture(scope="module")
def told(place: Path) -> dict[str, Any]:
    """What one run says with --json."""
    output = ("-o", str(place / "out"))
    done = kernlore("optimize", PROBLEM, *OPTIONS, *output, "--json", data=place / "data")
    assert done.code == 0, done.err
    answer: dict[str, Any] = done.json
    return answer


def run_json(place: Path, *arguments: str) -> Any:
    done = kernlore("runs", *arguments, "--json", data=place / "data")
    assert done.code == 0, done.err
    return done.json


def test_the_module_works_with_torch_alone(told: dict[str, Any]) -> None:
    assert told["ended"] == "2 candidates were tried"
    module = Path(told["module"])
    code = (
        f"import sys; sys.path.insert(0, {str(module.parent)!r})\n"
        f"import torch\nfrom {module.name} import ModelNew\n"
        "table = torch.arange(0, 64, 2)\n"
        "print(ModelNew().eval()(torch.tensor([0, 4, 5]), table).tolist())\n"
        "print('kb' in sys.modules, 'optimizer' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[1, 3, 0]\nFalse False\n", done.stderr


def test_the_report_and_the_rows_say_the_same(place: Path, told: dict[str, Any]) -> None:
    report = json.loads(Path(told["report"]).with_suffix(".json").read_text(encoding="utf-8"))
    assert told["run"] in json.dumps(report)
    runs = run_json(place, "list")
    assert [row["run"] for row in runs] == [told["run"]]
    tree = run_json(place, "tree", told["run"])
    assert [node["number"] for node in tree] == [0, 1, 2]
    assert tree[1]["plan"].startswith("Start from recipe cpp-address-by-value-map-id")
    shown = run_json(place, "show", told["run"])
    assert shown["candidates"] == 2 and shown["state"] == "finished"
    compared = run_json(place, "compare", told["run"], told["run"])
    assert compared[told["run"]]["knowledge"] == "off"


def test_a_finished_run_is_resumed_without_measuring_again(
    place: Path, told: dict[str, Any]
) -> None:
    before = run_json(place, "tree", told["run"])
    assert run_json(place, "resume", told["run"])["state"] == "finished"
    assert run_json(place, "tree", told["run"]) == before


def test_the_next_run_starts_from_the_stored_winner(place: Path, told: dict[str, Any]) -> None:
    """Where the machine was quiet enough to have one."""
    gained = any(n["speedup"] and float(n["speedup"].split("[")[1].split(",")[0]) > 1
                 for n in run_json(place, "tree", told["run"]))  # fmt: skip
    if not gained:
        pytest.skip("the machine was too busy for a winner")
    output = ("-o", str(place / "again"))
    done = kernlore("optimize", PROBLEM, *OPTIONS, *output, "--json", data=place / "data")
    run = done.json["run"]
    plans = [node["plan"] for node in run_json(place, "tree", run)]
    assert plans[1] == "A stored winner of the same family, measured again."


def test_exports_hold_everything(place: Path, told: dict[str, Any]) -> None:
    exported = run_json(place, "export", told["run"], "-o", str(place / "export"))
    assert (Path(exported["rows"]) / "nodes.jsonl").read_text().count("\n") == 3
    again = kernlore(
        "runs", "export", told["run"], "-o", str(place / "export"), data=place / "data"
    )
    assert again.code != 0 and "not empty" in again.err


def test_a_session_is_packed_run_elsewhere_and_imported(place: Path) -> None:
    """Here the machine is this one; nothing of the repository is importable for the session."""
    packed = place / "session.zip"
    arguments = ("--hardware", "x86-64", "-o", str(packed), "--candidates", "1")
    run_json(place, "pack", PROBLEM, *arguments, "--knowledge", "off")
    out = place / "results"
    done = subprocess.run(
        [sys.executable, str(packed), "--out", str(out)],
        capture_output=True,
        text=True,
        cwd=place,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    imported = run_json(place, "import", str(out / "results.zip"))
    assert len(imported) == 1 and imported[0]["state"] == "finished"
    tree = run_json(place, "tree", imported[0]["run"])
    assert len(tree) == 2 and tree[1]["verdict"] in ("correct", "unmeasured")
    twice = kernlore("runs", "import", str(out / "results.zip"), data=place / "data")
    assert twice.code != 0 and "imported before" in twice.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("softmaxx",), "softmaxx"),
        (("softmax", "--policy", "greedy"), "unknown policy"),
        (("softmax", "--candidates", "0"), "candidates is 0"),
        (("softmax", "--knowledge", "maybe"), "Give on or off"),
        (("softmax", "--hardware", "h1000"), "h1000"),
    ],
)
def test_bad_requests_say_what_to_do(place: Path, arguments: tuple[str, ...], said: str) -> None:
    done = kernlore("optimize", *arguments, data=place / "data")
    assert done.code != 0 and said in done.err
