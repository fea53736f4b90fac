"""Trials of skills that are text: a real server answers the requests of each arm, and the judge
measures the drafts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.services import Services, open_services
from kb.catalog.skills.reading import SkillRow, get_skill
from kb.errors import Unavailable
from kb.settings import Settings
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.portable.skill_trial import (
    PlannedTrial,
    RecipeTrials,
    SilentListener,
    TrialRecord,
    planned_from_json,
)
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.llm.settings import ModelOptions
from skills.format.schema import SkillFile
from skills.format.skillfile import write_skill
from skills.lifecycle import change_state
from skills.skill_library import SkillLibrary
from skills.trials.proof import TextTrials, proofs_of, write_evidence
from tests.catalogs import builtin_data_dir
from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer, prompt_of
from tests.skills.trials.curated import KERNEL, bench_of, problem_in

pytestmark = pytest.mark.slow(seconds=15)

OWN, OTHER = "Keep eight partial sums", "Give each page a colour"
LOOP = "double part[LANES] = {};"
SLOW = KERNEL.replace(LOOP, f"for (volatile int k = 0; k < 20000; k = k + 1);\n{LOOP}")
FACTS: dict[str, float | str] = {}
TARGET: dict[str, Any] = {
    "hardware": "x86-64",
    "lineage": ["x86-64"],
    "device": "cpu",
    "languages": {"cpp": "cpp", "torch": "torch"},
    "facts": FACTS,
}


def text_skill(services: Services, folder: Path, name: str, sentence: str, ops: str) -> SkillRow:
    written = SkillFile(
        name=name,
        description=f"Use when {ops} is slow.",
        body=f"## When to use\n\n{sentence}.\n\n## Sources\n\n- a test",
        metadata={
            "kb.ops": ops,
            "kb.languages": "cpp",
            "kb.predicate": "not known(problem.row_length) or problem.row_length > 700",
        },
    )
    SkillLibrary(services.catalog).import_folder(write_skill(written, folder), actor="test")
    change_state(services.catalog, name, "active", actor="test", reason="a test", force=True)
    with services.catalog.read() as connection:
        return get_skill(connection, name)


def answer(body: dict[str, Any], number: int) -> Answered:
    """A fast kernel to a request that shows the skill, a slow one to any other."""
    del number
    source = KERNEL if OWN in prompt_of(body) else SLOW
    head = {"plan": "sum rows", "used": [], "language": "cpp", "main": "kernel.cpp"}
    return Answered(f"{json.dumps(head)}\n\nFile: kernel.cpp\n```\n{source}\n```")


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    opened = open_services(Settings(data_dir=builtin_data_dir(tmp_path / "data")))
    yield opened
    opened.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    pytest.importorskip("litellm", reason="the extra `llm` is not installed")
    monkeypatch.setenv("OPENAI_API_KEY", "local-test-key")
    started = ModelServer(answer)
    yield started
    started.close()


def trials_of(services: Services, tmp_path: Path, url: str) -> TextTrials:
    problem = problem_in(tmp_path / "problem")
    options = ModelOptions("openai/scripted", url, timeout_s=30.0)
    return TextTrials(services, [problem], lambda skill: (), TARGET, options, 2, SilentListener())


def test_each_arm_sees_its_skill_alone_and_gain_is_measured(
    services: Services, tmp_path: Path, server: ModelServer
) -> None:
    skill = text_skill(services, tmp_path / "own", "cpp-lanes", OWN, "reduction")
    text_skill(services, tmp_path / "other", "cpp-colours", OTHER, "transpose")
    trials = trials_of(services, tmp_path, server.url)
    (planned,) = trials.drafted(trials.plan(skill), skill)
    prompts = [prompt_of(body) for body in server.requests]
    shown = sorted((OWN in p, OTHER in p) for p in prompts)
    assert shown == sorted([(True, False), (False, False), (False, True)] * 2)
    assert {arm: len(nodes) for arm, nodes in planned.drafts.items()} == {
        "with": 2,
        "without": 2,
        "placebo": 2,
    }
    record = measured(planned)
    assert record.made == 2 and record.wrong == 0 and record.note == ""
    assert record.gain is not None and record.gain.low > 1.5
    assert record.placebo is not None and record.placebo.value == 1.0  # the same kernel
    check_evidence(record, tmp_path)


def measured(planned: PlannedTrial) -> TrialRecord:
    """The trial as a packed session reads and runs it."""
    row = json.loads(json.dumps(planned.as_json()))
    packed = planned_from_json(row, load_problem(planned.problem.path))
    here = HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), {})
    with bench_of(packed.problem) as bench:
        return RecipeTrials([], here, 2, rounds=1).run(packed, bench)


def check_evidence(record: TrialRecord, tmp_path: Path) -> None:
    """A line of evidence names the model, and a second import replaces it."""
    row = record.as_json() | {"date": time.strftime("%Y-%m-%d"), "versions": {}, "load": 0.1}
    results = tmp_path / "results"
    results.mkdir()
    (results / "a.trial.json").write_text(json.dumps(row), encoding="utf-8")
    (tmp_path / "library" / "cpp-lanes").mkdir(parents=True)
    for _ in range(2):
        (proof,) = proofs_of(results, "kernlore skills prove --import")
        path = write_evidence(tmp_path / "library", proof)
    (line,) = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert line["model"] == "openai/scripted" and line["gain"]["low"] > 1.5
    assert proof.effect.state == "helps"
    assert str(proof.effect).endswith("kernels written by openai/scripted")


def test_cases_outside_are_named_and_never_drafted(
    services: Services, tmp_path: Path, server: ModelServer
) -> None:
    skill = text_skill(services, tmp_path / "own", "cpp-lanes", OWN, "reduction")
    trials = trials_of(services, tmp_path, server.url)
    narrow = problem_in(tmp_path / "narrow")
    path = narrow.path.with_name("problem.toml")
    path.write_text(path.read_text(encoding="utf-8").replace("cols = 1024", "cols = 512"))
    trials = TextTrials(
        services, [load_problem(narrow.path)], trials.own_problems, TARGET, trials.models, 2,
        SilentListener(),
    )  # fmt: skip
    (planned,) = trials.drafted(trials.plan(skill), skill)
    assert planned.place == "outside" and "row_length > 700" in planned.reason
    assert not planned.drafts and not server.requests


def test_model_without_answer_is_an_error(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("litellm", reason="the extra `llm` is not installed")
    monkeypatch.setenv("OPENAI_API_KEY", "local-test-key")
    silent = ModelServer(lambda body, number: Answered("I would rather not."))
    skill = text_skill(services, tmp_path / "own", "cpp-lanes", OWN, "reduction")
    trials = trials_of(services, tmp_path, silent.url)
    with pytest.raises(Unavailable, match="no model wrote kernels for cpp-lanes"):
        trials.drafted(trials.plan(skill), skill)
    assert silent.requests
    silent.close()
