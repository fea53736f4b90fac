"""A history on an emulated chip: what holds becomes a candidate skill, what does not is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.services import open_services
from kb.catalog.skills.reading import find_skill
from kb.errors import InvalidRequest
from kb.settings import Settings
from optimizer.evaluation.evaluate import choose_target
from optimizer.evaluation.toolchains.registry import usable_toolchain
from skills.lineage.from_history import HistoryReport, HistoryRequest, learn_from_history
from skills.trajectories.reading import trajectory
from tests.catalogs import builtin_data_dir
from tests.skills.lineage.test_changes import git

pytestmark = pytest.mark.slow(seconds=30)

CHIP = "riscv-v-256"
NAIVE = """void matvec(float *y, float *x, float *w, int n, int d) {
  int i, j;
  for (i = 0; i < d; i++) {
    y[i] = 0;
    for (j = 0; j < n; j++) y[i] += w[i * n + j] * x[j];
  }
}
void norm(float *y, float *x, int n) { for (int i = 0; i < n; i++) y[i] = x[i] * 3 + 1; }
"""
REGISTER = NAIVE.replace("    y[i] = 0;\n", "    float sum = 0;\n").replace(
    "y[i] += w[i * n + j] * x[j];\n", "sum += w[i * n + j] * x[j];\n    y[i] = sum;\n"
)
WRONG = REGISTER.replace("j = 0; j < n", "j = 1; j < n")


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, HistoryReport]:
    """A data directory, a repository of four commits, and what the history taught."""
    folder = tmp_path_factory.mktemp("history")
    root = folder / "repo"
    root.mkdir()
    git(root, "init", "-q")
    for text, message in (
        (NAIVE, "start"),
        (REGISTER, "keep the sum in a register, 2x faster"),
        (WRONG, "skip work: much faster"),
        (WRONG.replace("* 3 + 1", "* 4 + 1"), "speed up norm"),
    ):
        (root / "k.c").write_text(text)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", message)
    data = builtin_data_dir(folder / "data")
    services = open_services(Settings(data_dir=data))
    try:
        target = choose_target(services, CHIP, "rvv")
        try:
            usable_toolchain("rvv", target.target, target.builtin)
        except Exception as error:
            pytest.skip(f"no emulator here: {error}")
        with pytest.raises(InvalidRequest, match="no commit changes one"):
            learn_from_history(services, HistoryRequest(root, ("absent.c",), hardware=CHIP))
        with pytest.raises(InvalidRequest, match="no reference has a size columns"):
            learn_from_history(services, HistoryRequest(root, sizes={"columns": 8}))
        request = HistoryRequest(root, ("k.c",), hardware=CHIP, licence="MIT")
        report = learn_from_history(services, request)
    finally:
        services.close()
    return data, root, report


def test_change_that_holds_becomes_a_candidate_with_its_commit(
    learned: tuple[Path, Path, HistoryReport],
) -> None:
    data, root, report = learned
    change = next(c for c in report.changes if "register" in c.subject)
    assert change.outcome == "learned", change
    assert change.gain is not None and change.gain.low > 1.018 and change.claimed == 2.0
    services = open_services(Settings(data_dir=data))
    try:
        with services.catalog.read() as connection:
            skill = find_skill(connection, change.skills[0])
        assert skill is not None and (skill.state, skill.tier) == ("candidate", "learned")
        assert skill.scopes.hardware == (CHIP,)
        assert "problem.op in ['matmul']" in (skill.predicate or "")
        commit = git(root, "rev-parse", "HEAD~2").strip()
        assert f"commit {commit}" in skill.body and "sum +=" in skill.body
        steps = trajectory(services, change.trajectory).steps
        assert steps[-1].provenance["commit"] == commit
        assert steps[-1].provenance["claimed"] == "2x"
    finally:
        services.close()


def test_what_cannot_be_checked_is_refused_with_the_reason(
    learned: tuple[Path, Path, HistoryReport],
) -> None:
    reasons = {c.subject: (c.outcome, c.reason) for c in learned[2].changes}
    outcome, reason = reasons["skip work: much faster"]
    assert outcome == "refused" and "results are those of no reference" in reason
    outcome, reason = reasons["speed up norm"]
    assert outcome == "refused" and "results are those of no reference" in reason
