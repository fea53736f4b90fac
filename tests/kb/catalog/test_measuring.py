"""Whether kernels may be timed on this machine, by what the catalog's rows say."""

from __future__ import annotations

from kb.catalog import Catalog
from kb.catalog.evaluations import CandidateRow, Evaluations, ProblemRow, SentEvaluations
from kb.catalog.runs import Runs, is_measuring


def measuring(catalog: Catalog) -> bool:
    with catalog.read() as connection:
        return is_measuring(connection)


def test_a_run_measures_until_it_ends(catalog: Catalog) -> None:
    problem = ProblemRow("rows", "sha", "file", "softmax", "blob", {})
    candidate = CandidateRow("bundle", "cpp", "run", "recipe", {}, "blob")
    Evaluations(catalog).begin("evaluation", problem, [], candidate, "1", None)
    assert not measuring(catalog)
    runs = Runs(catalog)
    runs.begin("run_1", "sha", "h100", "best_first", 0, {})
    assert measuring(catalog)
    runs.update("run_1", "finished", {})
    assert not measuring(catalog)


def test_an_evaluation_that_was_sent_measures_while_it_is_worked_on(catalog: Catalog) -> None:
    submissions = SentEvaluations(catalog)
    submissions.accept("sub_1", {}, "here", 60, most=10)
    assert not measuring(catalog), "it waits"
    assert submissions.claim("here", 60) is not None
    assert measuring(catalog)
