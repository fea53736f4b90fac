"""A real run as training data: every shape and format, every candidate accounted for; its export
submitted again, with nothing measured twice.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.cli.target import CommandTarget
from api.services import Services
from kb.errors import Conflict, InvalidRequest
from kb.settings import Settings
from optimizer.evaluation.bundle import Bundle, Origin
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.records import Node, Proposal, ShownIds
from optimizer.search.runs.optimize import export_run
from optimizer.search.synthesizers.llm.client import ChatReply
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, ModelTranscript
from optimizer.search.synthesizers.llm.templates import Fence
from optimizer.search.tree import Tree
from skills.curator.distil import parameter_roles
from skills.training.export import (
    FORMATS,
    LEFT_OUT,
    SHAPES,
    ExportRequest,
    KnowledgeLookup,
    LicenceBook,
    Licences,
    Prompts,
    export_trajectories,
    without_uploads,
)
from skills.trajectories.reading import trajectory, trajectory_store
from skills.trajectories.records import kernel_as_json
from tests.api.cli_process import kernlore
from tests.shared import FINISHED_CANDIDATES as CANDIDATES
from tests.shared import finished_run

pytestmark = pytest.mark.slow(seconds=35)

ID = "psg_1"


@pytest.fixture(scope="module")
def data_and_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    data = tmp_path_factory.mktemp("run") / "data"
    return data, finished_run(tmp_path_factory, data)


@pytest.fixture(scope="module")
def services(data_and_run: tuple[Path, str]) -> Iterator[Services]:
    local = CommandTarget(Settings(data_dir=data_and_run[0]))
    yield local.services
    local.close()


@pytest.fixture(scope="module")
def run(data_and_run: tuple[Path, str]) -> str:
    """Three real candidates for map_id in C++, without knowledge."""
    return data_and_run[1]


def tree_of(services: Services, run: str) -> Tree:
    from optimizer.search.runs.run_store import run_store

    return Tree(run_store(services).nodes(run))


def evaluation_of(node: Node) -> Evaluation:
    assert node.evaluation is not None
    return node.evaluation


def rows_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    path = Path(manifest["file"])
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return found
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("shape", SHAPES)
def test_both_formats_have_equal_content(
    services: Services, run: str, shape: str, tmp_path: Path
) -> None:
    read = []
    for format in FORMATS:
        request = ExportRequest(shape, format, (run,))
        manifest = export_trajectories(services, request, tmp_path / format)
        read.append(rows_of(manifest))
        assert manifest["candidates"] == CANDIDATES and manifest["rows"] == len(read[-1])
        written = json.loads((tmp_path / format / "manifest.json").read_text())
        assert written["left_out"] == manifest["left_out"]
    assert read[0] == read[1]
    if shape != "dpo":  # of pairs, one candidate is in several
        assert len(read[0]) + sum(manifest["left_out"].values()) == CANDIDATES


def test_row_has_measurements(services: Services, run: str, tmp_path: Path) -> None:
    tree = tree_of(services, run)
    manifest = export_trajectories(services, ExportRequest("sft", only=(run,)), tmp_path / "out")
    faster = [n for n in tree.nodes[1:] if n.correct and n.speedup and n.speedup.low > 1.0]
    rows = rows_of(manifest)
    assert {row["id"] for row in rows} <= {f"{run}/{node.number}" for node in faster}
    assert len(rows) + manifest["left_out"].get(
        "slower than what it changes for certain", 0
    ) == len(faster)
    for row in rows:
        node = tree[int(row["id"].rpartition("/")[2])]
        assert node.proposal is not None and node.speedup is not None
        reported, found = json.loads(row["provenance"]), evaluation_of(node)
        assert row["reward"] == node.speedup.low and reported["evaluation"] == found.key
        assert (reported["harness"], reported["device"]) == (found.harness, found.device)
        assert reported["checks"] == [len(found.checks), len(found.checks)]
        assert node.proposal.bundle.source.strip() in row["completion"][0]["content"]
        assert row["prompt_origin"] == "rendered"
        user = row["prompt"][1]["content"]
        assert "map_id" in user and "searchsorted" in user and "held_out" not in user


def test_trajectory_may_be_trained_on(services: Services, run: str, tmp_path: Path) -> None:
    """The problem and the recipes are shipped; unmeasured and repeated candidates are left out."""
    request = ExportRequest("grpo", only=(run,), trainable=True)
    manifest = export_trajectories(services, request, tmp_path / "out")
    # On a busy machine nothing is measured, which is a reason too.
    candidates = tree_of(services, run).nodes[1:]
    assert {node.state for node in candidates} <= {"evaluated", "unmeasured", "duplicate"}
    assert manifest["rows"] + sum(manifest["left_out"].values()) == CANDIDATES
    assert set(manifest["left_out"]) <= {
        "without a known reward",
        "the same prompt as another",
        "not evaluated",
        "the same bundle as another",
        "held for a person by an integrity flag",
    }
    for row in rows_of(manifest):
        reported = json.loads(row["provenance"])
        assert reported["licences"] == {"problem": "Apache-2.0", "source": "Apache-2.0"}
        assert row["problem_toml"].startswith('name = "map_id"')


def test_curator_reads_run(services: Services, run: str) -> None:
    record = trajectory(services, run)
    assert record.evaluated_here and len(record.steps) == CANDIDATES
    assert record.lineage[0] == record.hardware and record.subject.dtype == "int64"
    roles = parameter_roles(services)
    for step in record.steps:
        assert step.child.evaluation is not None
        assert set(step.proposal.values) <= set(roles[step.proposal.recipe or ""])


def test_invalid_exports_are_refused(services: Services, run: str, tmp_path: Path) -> None:
    for request in (ExportRequest("ppo"), ExportRequest("sft", "csv")):
        with pytest.raises(InvalidRequest, match="unknown shape"):
            export_trajectories(services, request, tmp_path / "new")
    (tmp_path / "file").write_text("kept")
    with pytest.raises(Conflict):
        export_trajectories(services, ExportRequest("sft", only=(run,)), tmp_path)
    assert (tmp_path / "file").read_text() == "kept"


def test_stored_prompt_is_exported_unchanged(services: Services, run: str, tmp_path: Path) -> None:
    """Without texts of documents that are not part of Kernlore."""
    from skills.training.export import exported_search, task_of

    source = exported_search(services, run, tmp_path)
    quoted = Fence("b" * 16).around("excerpt", f"id: {ID}\nfrom: A manual\nits words")
    record = ModelTranscript(
        run,
        1,
        0,
        "a-model",
        "v3",
        [
            {"role": "system", "content": "the system's part"},
            {"role": "user", "content": f"before\n{quoted}\nafter"},
        ],
        [ChatReply("an answer")],
    )
    FolderTranscripts(services.settings.data_dir / "transcripts").write(record)
    node = source.tree[1]
    assert node.proposal is not None
    node = replace(node, proposal=replace(node.proposal, transcript=record.id))
    for leave, expected in ((False, False), (True, True)):
        prompts = Prompts(services, task_of(services, source), KnowledgeLookup(services, leave))
        found = prompts.of(source.tree, node)
        assert found.origin == "stored" and found.system == "the system's part"
        assert found.user.startswith("before\n") and found.user.endswith("\nafter")
        assert ("its words" in found.user) is expected and f"id: {ID}" in found.user
        assert found.left_out == (() if leave else (ID,))


def test_permitted_quotations_stay_in_prompts() -> None:
    fence = Fence("b" * 16)
    text = "\n".join(
        fence.around(kind, f"id: {name}\nwords of {name}")
        for kind, name in (("excerpt", "psg_own"), ("move", "mv_other"), ("skill", "sk_own"))
    )
    remaining, left_out = without_uploads(text, lambda name: name.endswith("_own"))
    assert left_out == ("mv_other",)
    assert "words of psg_own" in remaining and "words of sk_own" in remaining
    assert "words of mv_other" not in remaining and "id: mv_other" in remaining


def test_skills_are_exported_by_their_origin(services: Services, tmp_path: Path) -> None:
    """Shipped ones always, imported ones and their moves only with permission."""
    shipped, imported = "any-split-k-skinny-matmul", "somebody-s-skill"
    folder = tmp_path / imported
    shutil.copytree(services.settings.skills_dir / shipped, folder)
    file = folder / "SKILL.md"
    file.write_text(file.read_text("utf-8").replace(f"name: {shipped}", f"name: {imported}"))
    change = {"role": "tile_n", "direction": "increase"}
    move = {"id": "widen", "when": "signals.latency_bound", "change": change, "why": "few tiles"}
    (folder / "references").mkdir()
    (folder / "references" / "moves.json").write_text(json.dumps([move]))
    services.skills.import_folder(folder, actor="ann")
    shown = ShownIds("ret_1", (), (f"{imported}#0",), (shipped, imported))
    body = services.skills.show(shipped).body
    for leave in (False, True):
        again = KnowledgeLookup(services, leave)
        assert again.may_show(shipped)
        assert [again.may_show(name) for name in (imported, f"{imported}#0")] == [leave, leave]
        known, left_out = again.of(shown, "x86-64")
        assert [skill.text for skill in known.skills] == [body, body if leave else LEFT_OUT]
        assert [remedy.why for remedy in known.moves] == ["few tiles" if leave else LEFT_OUT]
        assert left_out == (() if leave else (f"{imported}#0", imported))


def test_resubmitted_export_is_not_measured_again(
    services: Services, run: str, tmp_path: Path
) -> None:
    tree = tree_of(services, run)
    busy = [node.number for node in tree if evaluation_of(node).timing == "repeat"]
    export_run(services, run, tmp_path / "files")
    (lines,) = (tmp_path / "files").rglob("trajectory*.jsonl")
    before = _evaluations(services)
    data = services.settings.data_dir
    ran = kernlore("trajectories", "submit", lines, "--json", data=data)
    assert ran.code == 0, ran.err
    assert ran.json["state"] == "ready" and ran.json["origin"] == "export"
    assert _evaluations(services) == before
    own, reported = trajectory(services, run), trajectory(services, ran.json["id"])
    for mine, theirs in zip(own.steps, reported.steps, strict=True):
        if mine.child.number not in busy:  # unmeasured ones are tried again
            both = (kernel_as_json(side)["measured"] for side in (theirs.child, mine.child))
            assert next(both) == next(both)
        assert theirs.proposal.bundle.files == mine.proposal.bundle.files
    assert [s.parent.number for s in reported.steps] == [s.parent.number for s in own.steps]
    listed = kernlore("trajectories", "list", "--json", data=data).json
    assert {row["id"] for row in listed} == {run, reported.id}
    shown = kernlore("trajectories", "show", reported.id, data=data)
    assert shown.code == 0 and "claimed" in shown.out
    exported = kernlore(
        *("trajectories", "export", "--shape", "sft", "--trainable", "--run", reported.id),
        *("--output", tmp_path / "out", "--json"),
        data=data,
    )
    # A trajectory with sources must state their licence.
    assert exported.code == 0 and exported.json["rows"] == 0
    assert sum(exported.json["left_out"].values()) == CANDIDATES
    assert all(reason in exported.err for reason in exported.json["left_out"])
    assert trajectory_store(services).find(reported.id).summary["actor"] == "external"


def test_candidate_without_known_licence_is_left_out(services: Services) -> None:
    problem = load_problem(Path("map_id"))
    other = replace(problem, sha256="0" * 64)
    book = LicenceBook(services, ("a-model",))

    def source(origin: Origin, *, stated: str | None = None, text: str = "", **more: Any) -> Any:
        bundle = Bundle({"k.cpp": text}, "k.cpp", "cpp", "kernlore_run", {}, origin)
        return book.of(other, Proposal(bundle, "somebody", **more), stated).source

    assert source("recipe", recipe="cpp-address-by-value-map-id") == "Apache-2.0"
    assert source("recipe", recipe="nobody-s-recipe") is None
    assert source("llm", model="a-model") == "model:a-model"
    assert source("llm", model="another") is None
    assert source("external") is None and source("external", stated="MIT") == "MIT"
    assert source("external", text="// SPDX-License-Identifier: BSD-3-Clause") == "BSD-3-Clause"
    assert source("rewrite") is None  # that of its problem
    proposal = Proposal(Bundle({"m.py": ""}, "m.py", "torch", "ModelNew", {}, "rewrite"), "s")
    assert book.of(problem, proposal, None) == Licences("Apache-2.0", "Apache-2.0")


def _evaluations(services: Services) -> int:
    with services.catalog.read() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM evaluations").scalar_one())
