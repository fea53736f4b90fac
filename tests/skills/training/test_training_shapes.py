"""Samples in the shapes of TRL's trainers, in both formats, and which are trainable."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kb.errors import Conflict
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.bench.local import problem_view
from optimizer.search.knowledge import ShownKnowledge
from optimizer.search.records import Node
from optimizer.search.synthesizers.base import HardwareView, ProposalContext
from optimizer.search.synthesizers.llm.conversation import answer_from
from skills.training.export import (
    FORMATS,
    SHAPES,
    Format,
    Licences,
    Shape,
    TrainingPrompt,
    answer_text,
    preferred,
    shaped,
    stated_licence,
    trainable,
    write_manifest,
    write_rows,
)
from tests.skills.training.judged import SAMPLES, TYPE, WRONG, proposal, reward, sample

# Names that TRL 1.16 reads or passes to reward functions, in addition to the columns of a type.
RESERVED = {
    "text",
    "messages",
    "image",
    "images",
    "label",
    "labels",
    "tools",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
    "input_ids",
}


def test_only_significantly_faster_candidates_are_imitated() -> None:
    rows, left_out = shaped(SAMPLES, "sft")
    assert [row["id"] for row in rows] == ["run_1/1", "run_1/2", "run_1/6"]
    assert sum(left_out.values()) + len(rows) == len(SAMPLES)
    assert left_out["slower than what it changes for certain"] == 1
    first = rows[0]
    assert first["prompt"] == [
        {"role": "system", "content": "system"},
        {"role": "user", "content": "user 1"},
    ]
    assert first["completion"] == [{"role": "assistant", "content": "answer 1"}]
    provenance = json.loads(first["provenance"])
    assert provenance["checks"] == [4, 4] and provenance["speedup"]["low"] == pytest.approx(1.425)
    assert (provenance["harness"], provenance["device"], provenance["flags"]) == ("3", "cpu", [])


def test_pairs_share_parent_and_are_significant() -> None:
    pairs = {(r["id"], r["rejected_id"]): r for r in shaped(SAMPLES, "dpo")[0]}
    assert set(pairs) == {
        ("run_1/2", "run_1/1"),
        ("run_1/1", "run_1/3"),
        ("run_1/2", "run_1/3"),
        ("run_1/6", "run_1/1"),
        ("run_1/6", "run_1/3"),
        ("run_1/1", "run_1/4"),
        ("run_1/2", "run_1/4"),
        ("run_1/6", "run_1/4"),
    }  # 2 and 6 overlap; 5 is unknown; 7 has another parent; 3 is correct but slow
    by_time, by_check = pairs["run_1/2", "run_1/1"], pairs["run_1/6", "run_1/4"]
    assert (by_time["preferred_by"], by_check["preferred_by"]) == ("speed-up", "validity")
    # The row of the earlier proposal: the later one may have seen the other.
    assert by_time["prompt"][1]["content"] == "user 1"
    assert by_check["prompt"][1]["content"] == "user 4"
    assert by_check["rejected_reward"] == 0.0


@pytest.mark.parametrize(
    "changes",
    [{"cases": ("other",)}, {"device": "cuda"}, {"timing": "simulator"}, {"harness": "2"}],
)
def test_figures_of_different_clocks_are_not_compared(changes: dict[str, Any]) -> None:
    assert preferred(sample(1, reward(3.0)), sample(2, reward(1.5))) is not None
    assert preferred(sample(1, reward(3.0)), sample(2, reward(1.5, **changes))) is None


def test_one_row_for_each_prompt() -> None:
    same = tuple(
        replace(s, prompt=TrainingPrompt("system", "the same", "rendered")) for s in SAMPLES
    )
    rows, left_out = shaped(same, "grpo")
    assert len(rows) == 1 and left_out == {"the same prompt as another": 6}
    row = rows[0]
    assert "completion" not in row and row["best_known"] == pytest.approx(3.1 * 0.95)
    assert row["problem_source"] == "class Model: ..."


# -- files


def read_back(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_written_files_round_trip(shape: Shape, format: Format, tmp_path: Path) -> None:
    rows = shaped(SAMPLES, shape)[0]
    path = write_rows(rows, shape, format, tmp_path / "out")
    assert read_back(path) == list(rows) and rows
    assert all(set(row) == set(rows[0]) for row in rows)
    assert set(TYPE[shape]) <= set(rows[0]) and not RESERVED & set(rows[0])
    assert not {"completion", "chosen"} & set(rows[0]) - set(TYPE[shape])
    manifest = write_manifest({"rows": len(rows)}, path)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"] == len(rows)
    assert manifest["bytes"] == path.stat().st_size
    with pytest.raises(Conflict):
        write_rows(rows, shape, format, tmp_path / "out")


def test_file_without_rows_has_its_columns(tmp_path: Path) -> None:
    path = write_rows((), "dpo", "parquet", tmp_path / "out")
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(path).column_names == ["prompt", "chosen", "rejected"]


# -- trainable samples


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"licences": Licences(None, "MIT")}, "of a problem without a known licence"),
        ({"licences": Licences("MIT", None)}, "of a source without a known licence"),
        (
            {"reward": reward(1.5, flags=("too fast",), held=True)},
            "held for a person by an integrity flag",
        ),
        ({"reward": replace(WRONG, validity="rejected")}, "rejected for integrity"),
        ({"reward": reward(None)}, "without a known reward"),
        ({"completion": f"key = 'sk-{'a1' * 12}'"}, "with what looks like a secret"),
        (
            {"prompt": TrainingPrompt("s", f"hf_{'Ab3' * 10}", "stored")},
            "with what looks like a secret",
        ),
        ({"proposal": proposal(1)}, "the same bundle as another"),
    ],
)
def test_untrainable_samples_are_dropped_with_reason(changes: dict[str, Any], reason: str) -> None:
    other = replace(sample(2, reward(1.5)), **changes)
    usable, left_out = trainable((sample(1, reward(1.5)), other))
    assert [s.node for s in usable] == [1]
    assert left_out == Counter({reason: 1})


def test_unchanged_sample_is_trainable() -> None:
    usable, left_out = trainable((sample(1, reward(1.5)), sample(2, WRONG)))
    assert len(usable) == 2 and not left_out


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("# SPDX-License-Identifier: MIT\nimport torch", "MIT"),
        ("/* SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause */", "Apache-2.0 OR BSD-3-Clause"),
        ("// licensed to nobody", None),
    ],
)
def test_licence_stated_by_source(text: str, licence: str | None) -> None:
    assert stated_licence(text) == licence


# -- text of an answer


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("int kernlore_run;\n", "kernlore_run"),
        ('int run_it;\nconst char *s = "\\n```\\n";\n', "run_it"),
        ("// kernlore_run\n/*\n```\nFile: other.cpp\n```\n*/\n", "kernlore_run"),
    ],
)
def test_answer_parses_back_to_same_bundle(text: str, entry: str) -> None:
    bundle = Bundle({"kernel.cpp": text}, "kernel.cpp", "cpp", entry, {"tile": 8, "fast": True})
    problem = load_problem(Path("map_id"))
    view = problem_view(problem, "cpu")
    hardware = HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), {})
    root = Node(0, None, "evaluated", None, None)
    context = ProposalContext(
        view, hardware, root, (), None, ShownKnowledge(), (), 1, 0, "run_1", 6000, True
    )
    answer = answer_text(bundle, 'Wider "vectors".', ("mv_1", "psg_2"))
    again = answer_from(answer, context, {"mv_1", "psg_2"})
    assert again.bundle.sha256 == bundle.sha256
    assert (again.plan, again.claimed) == ('Wider "vectors".', ("mv_1", "psg_2"))
