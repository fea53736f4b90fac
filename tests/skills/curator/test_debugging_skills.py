"""Errors repaired in two stored runs on a drawn chip become a debugging skill, which /retrieve
shows for a log with that error.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from api.services import Services
from benchmarks.search.model_writes.chips import Chip
from kb.catalog.evaluations import CandidateRow, CaseRow, Evaluations, ProblemRow
from kb.catalog.skills.reading import SkillRow, get_skill
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import CaseCheck, Evaluation
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.records import Node, Proposal
from optimizer.search.runs.hardware_view import hardware_view_of
from optimizer.search.runs.models import ModelTools
from optimizer.search.runs.places import places_for
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from skills.curator.debugging_skills import MendedErrors, distil_errors
from skills.format.skillfile import read_skill
from skills.lifecycle import change_state
from tests.api.cli_process import kernlore
from tests.catalogs import fresh_data_dir
from tests.evaluations import RIGHT
from tests.retrieval.drawn_bases import DrawnBase

pytestmark = pytest.mark.slow(seconds=10)

LANGUAGE = "novac"
PROBLEMS = ("elementwise", "softmax", "matmul")


@dataclass(frozen=True)
class Place:
    """A drawn chip, and a kernel of each problem with an error in it."""

    base: DrawnBase
    chip: Chip

    @property
    def services(self) -> Services:
        return self.base.services

    def good(self, problem: str) -> str:
        return self.chip.good_kernel(problem).read_text(encoding="utf-8")

    def slip(self, problem: str) -> str:
        """An instruction of the kernel, different for each problem, misspelt so that the chip lacks
        it.
        """
        loop = self.good(problem).partition("for ")[2]
        names = list(dict.fromkeys(re.findall(r"^ +(\w+) \w+, \w+", loop, re.M)))
        name = names[PROBLEMS.index(problem)]
        return self.good(problem).replace(f"{name} ", f"{name}q ")

    def log(self, problem: str, source: str) -> str:
        """The log of the chip's compiler for a kernel."""
        places = places_for(self.services, self.chip.id, LANGUAGE)
        view = problem_view(load_problem(self.chip.problem(problem)), "cpu")
        target = next(iter(places.values())).target
        hardware = hardware_view_of(target, places, LANGUAGE)
        tools = ModelTools(self.services, hardware, view, places)
        return tools.compile_draft(1, {"kernel.nv": source})

    def run(self, problem: str) -> str:
        """A stored run: a kernel with the error, then the corrected one from the same parent."""
        loaded = load_problem(self.chip.problem(problem))
        run, store_ = f"run_{problem}", run_store(self.services)
        nodes = [Node(0, None, "evaluated", None, None)]
        for number, source in enumerate((self.slip(problem), self.good(problem)), 1):
            files = {"kernel.nv": source}
            kernel = Bundle(files, "kernel.nv", LANGUAGE, "kernlore_run", {}, "llm")
            evaluation = self.evaluated(f"{run}-{number}", kernel, loaded)
            nodes.append(Node(number, 0, "evaluated", Proposal(kernel, "llm"), evaluation))
        store_.begin(RunRow(run, str(loaded.path), loaded.sha256, self.chip.id, Goal()))
        for node in nodes:
            store_.add(run, node)
        return run

    def evaluated(self, key: str, kernel: Bundle, problem: Problem) -> Evaluation:
        """A journalled evaluation with the log of the compiler."""
        log = self.log(problem.name, kernel.source)
        evaluation = replace(
            RIGHT,
            key=key,
            problem=problem.name,
            candidate=kernel.sha256,
            language=LANGUAGE,
            hardware=self.chip.id,
            validity="not_compiled" if log else "correct",
            timing="none",
            reached="compile" if log else "correctness",
            message=log.partition("\n")[0],
            log=log,
            checks=() if log else (CaseCheck("main", 1, True),),
        )
        rows = Evaluations(self.services.catalog)
        rows.begin(
            key,
            ProblemRow(problem.name, problem.sha256, "file", problem.op, "blob", {}),
            [CaseRow("main", "float32", [], "small", "normal", 1.0, False)],
            CandidateRow(kernel.sha256, LANGUAGE, "kernlore_run", "llm", {}, "blob"),
            "3",
            "cpu",
        )
        record = evaluation.as_json()
        rows.finish(key, record, [], op_family="map", hardware_id=self.chip.id)
        return evaluation


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[Place]:
    base = DrawnBase(tmp_path_factory.mktemp("mended"), model_cache)
    yield Place(base, base.add("block", 11))
    base.local.close()


@pytest.fixture(scope="module")
def decisions_of_runs(place: Place) -> tuple[MendedErrors, MendedErrors, MendedErrors]:
    """Decisions after one run, two runs, and a repetition."""
    place.run("elementwise")
    first = distil_errors(place.services)
    place.run("softmax")
    return first, distil_errors(place.services), distil_errors(place.services)


def skill_of(place: Place, mended: MendedErrors) -> SkillRow:
    [added] = mended.stored
    with place.services.catalog.read() as connection:
        return get_skill(connection, added.skill)


def test_debugging_skill_needs_repairs_of_two_kernels(
    decisions_of_runs: tuple[MendedErrors, MendedErrors, MendedErrors],
) -> None:
    first, second, third = decisions_of_runs
    assert first.stored == () and "two different ones are needed" in first.short[0]
    assert [(d.operation, d.outcome, d.evidence) for d in second.stored] == [("ADD", "created", 2)]
    assert third.stored == () and third.runs == 2 and not third.skipped
    assert any("has these mends already" in d.reason for _, d in third.decisions)


def test_debugging_skill_has_condition_reason_and_repair(
    place: Place, decisions_of_runs: tuple[MendedErrors, MendedErrors, MendedErrors], tmp_path: Path
) -> None:
    skill = skill_of(place, decisions_of_runs[1])
    assert (skill.state, skill.tier) == ("candidate", "learned")
    words = skill.metadata["error"]
    assert words.endswith(" <name>")
    assert words.removesuffix(" <name>") in place.log("elementwise", place.slip("elementwise"))
    sections = dict(re.findall(r"^## ([^\n]+)\n\n(.*?)(?=\n\n## |\Z)", skill.body, re.M | re.S))
    assert words in sections["When to use"]
    code = words.split(":")[0].split()[-1]
    assert f"`{code}`" in sections["Cause"] and "opcode" in sections["Cause"]
    for problem in ("elementwise", "softmax"):
        wrong = set(place.slip(problem).splitlines()) - set(place.good(problem).splitlines())
        assert all(f"- {line.strip()}" in sections["Cure"] for line in wrong)
        assert f"run run_{problem}, node 2 against node 1" in sections["Sources"]
    [folder] = place.services.skills.export(tmp_path, [skill.name])
    exported = read_skill(folder).metadata
    assert (exported["kb.kind"], exported["kb.error"]) == ("debugging", words)
    validator = Path(sys.executable).with_name("agentskills")
    subprocess.run([validator, "validate", folder], check=True, capture_output=True)
    assert place.services.skills.import_folder(folder, actor="ann").outcome == "unchanged"


def test_approved_debugging_skill_is_shown_for_its_error(
    place: Place, decisions_of_runs: tuple[MendedErrors, MendedErrors, MendedErrors]
) -> None:
    skill = skill_of(place, decisions_of_runs[1])
    log = place.log("matmul", place.slip("matmul"))

    def shown(log: str) -> list[str]:
        return [s.name for s in place.base.ask(place.chip.id, language=LANGUAGE, log=log).skills]

    assert skill.name not in shown(log)
    change_state(
        place.services.catalog,
        skill.name,
        "active",
        actor="ann",
        reason="both cures read",
        force=True,
    )
    assert shown(log) == [skill.name]
    assert skill.name not in shown("kernel.nv:3:1: error: another message altogether")


# -- the command


def test_command_distils_repairs(tmp_path: Path) -> None:
    data = fresh_data_dir(tmp_path / "data")
    empty = kernlore("skills", "distill", "--errors", data=data)
    assert empty.code == 0 and "nothing new was stored" in empty.out
    both = kernlore("skills", "distill", "run_1", "--errors", "--json", data=data)
    assert both.code != 0 and "exactly one" in both.json["hint"]
