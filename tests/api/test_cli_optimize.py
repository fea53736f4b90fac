"""`kernlore optimize` and `kernlore runs` as a user runs them: real compilers, real processes."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from api.cli.target import CommandTarget
from kb.catalog import open_catalog
from kb.catalog.evaluations import Evaluations
from kb.settings import Settings
from optimizer.search.store import FileStore
from retrieval.request import RetrieveRequest
from tests.api.cli_process import ERROR_KEYS, CommandResult, kernlore, kernlore_process
from tests.api.conftest import DOCUMENTS
from tests.catalogs import fresh_data_dir
from tests.known_device import store_ceilings
from tests.optimizer.search.portable.bare_machine import bare_python
from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer, prompt_of
from tests.packed_session import on_bare_machine, packed_session
from tests.problem_files import model_text
from tests.shared import copy_knowledge, place_models, small_map_id

pytestmark = pytest.mark.slow(seconds=70)

PROBLEM = "map_id"
OPTIONS = ("--language", "cpp", "--candidates", "2", "--knowledge", "off")
KEY = "sk-local-test-0123456789abcdef"
MODEL = "openai/gpt-4o-mini"  # litellm knows its price; the server is on loopback
GAIN = re.compile(
    r"(no gain|nothing was tried: .*|not measured: .*)"
    r" \(1e-05 minutes are over\): the reference stays"
    r"|\d+\.\d\dx \[\d+\.\d\d, \d+\.\d\d\] over the reference \(1e-05 minutes are over\)"
)
LITELLM = find_spec("litellm") is not None
KERNEL = """\
#include "kernlore_abi.h"
#include <algorithm>
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  const int64_t *ids = (const int64_t *)t[0].data, *table = (const int64_t *)t[1].data;
  int64_t *places = (int64_t *)t[c->inputs + c->parameters].data;
  const int64_t *end = table + t[1].shape[0];
  for (int64_t i = 0; i < t[0].shape[0]; i++) {
    const int64_t *found = std::lower_bound(table, end, ids[i]);
    places[i] = found != end && *found == ids[i] ? found - table + 1 : 0;
  }
  return 0;
}
"""
OWN = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, 12)

    def forward(self, x, r):
        return nn.functional.silu(self.norm(x)) + r


def get_inputs():
    return [torch.randn(2, 12, 9, 11), torch.randn(2, 12, 9, 11)]


def get_init_inputs():
    return [3]
"""
FACTORED = model_text("torch.linalg.qr(x).R", "torch.randn(9, 65)")
CALL = """
import sys, torch
from map_id_kernel import ModelNew
table = torch.arange(0, 64, 2)
print(ModelNew().eval()(torch.tensor([0, 4, 5]), table).tolist())
print(sorted({"kb", "optimizer", "numpy", "pydantic"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("optimize")
    for name in ("data", "home", "x"):
        store_ceilings(fresh_data_dir(folder / name))
    return folder


@pytest.fixture(scope="module")
def bare(place: Path) -> Path:
    return bare_python(place / "bare")


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    answer = {
        "plan": "a binary search for each id",
        "used": [],
        "language": "cpp",
        "files": {"kernel.cpp": KERNEL},
        "main": "kernel.cpp",
        "parameters": {},
    }
    server = ModelServer(lambda body, number: Answered(json.dumps(answer)))
    yield server
    server.close()


@pytest.fixture(scope="module")
def ran(place: Path, model: ModelServer) -> CommandResult:
    """One run of a recipe and, if litellm is installed, of a model."""
    options = [*OPTIONS, "-o", str(place / "out")]
    if LITELLM:
        options += ["--models", MODEL]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        patch.setenv("OPENAI_API_BASE", model.url)
        problem = small_map_id(place)
        done = kernlore_process("optimize", problem, *options, "--json", data=place / "data")
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def run_answer(ran: CommandResult) -> dict[str, Any]:
    answer: dict[str, Any] = ran.json
    return answer


def run_json(place: Path, *arguments: str | Path, data: str = "data") -> Any:
    done = kernlore("runs", *arguments, "--json", data=place / data)
    assert done.code == 0, done.err
    return done.json


def test_answer_and_module(place: Path, run_answer: dict[str, Any], bare: Path) -> None:
    assert run_answer["ended"] == "2 candidates were tried" and run_answer["correct"] is True
    gain = run_answer["outcome"]["gain"]
    stays = 1.0 if run_answer["outcome"]["measured"] else None
    assert run_answer["speedup"] == (gain["value"] if gain else stays)
    module = Path(run_answer["module"])
    assert module.name == "map_id_kernel" and module.parent == place / "out"
    done = on_bare_machine(bare, "-c", CALL, cwd=place, path=module.parent)
    assert done.stdout == "[1, 3, 0]\n[]\n", done.stderr


def test_stored_run_is_shown(place: Path, run_answer: dict[str, Any]) -> None:
    run = run_answer["run"]
    assert [(r["run"], r["problem"], r["state"]) for r in run_json(place, "list")] == [
        (run, PROBLEM, "finished")
    ]
    tree = run_json(place, "tree", run)
    assert [(node["number"], node["parent"]) for node in tree][:2] == [(0, None), (1, 0)]
    proposers = ["recipe", "llm" if LITELLM else "recipe"]
    assert [node["synthesizer"] for node in tree] == ["", *proposers]
    shown = run_json(place, "show", run)
    assert shown["candidates"] == 2 and shown["origins"] == Counter(proposers)
    assert sum(shown["verdicts"].values()) == 2 and shown["goal"]["language"] == "cpp"
    compared = run_json(place, "compare", run, run)
    assert compared[run]["knowledge"] == "off" and compared[run]["candidates"] == "2"
    report = Path(run_answer["report"]).read_text(encoding="utf-8")
    assert PROBLEM in report and run in report


def refused(done: CommandResult) -> tuple[str, int]:
    """Error code and exit code; message and hint are on standard error too."""
    error = done.json
    assert set(error) == ERROR_KEYS and error["message"] and error["hint"]
    assert f"error: {error['message']}" in done.err and f"hint: {error['hint']}" in done.err
    return error["code"], done.code


@pytest.mark.parametrize("command", ["show", "tree", "resume", "cancel"])
def test_unknown_run_is_an_error(place: Path, command: str) -> None:
    assert refused(kernlore("runs", command, "run_0", "--json", data=place / "data")) == (
        "not_found",
        2,
    )


def test_finished_run_is_not_resumed(place: Path, run_answer: dict[str, Any]) -> None:
    done = kernlore("runs", "resume", run_answer["run"], "--json", data=place / "data")
    assert refused(done) == ("conflict", 2) and "Start a new run" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("optimize", "softmaxx"), "not_found", "softmax"),
        (("optimize", "nowhere/problem.py"), "not_found", "nowhere"),
        (("optimize", "softmax", "--knowledge", "maybe"), "invalid_request", "Give on or off"),
        (("optimize", "softmax", "--target", "fast"), "invalid_request", "1.5x"),
        (("optimize", "softmax", "--hardware", "h1000"), "unknown_hardware", "h100"),
        (("runs", "import", "README.md"), "invalid_request", "results.zip"),
        (
            (
                "runs",
                "pack",
                PROBLEM,
                "--hardware",
                "x86-64",
                "--synthesizers",
                "llm",
                "-o",
                "s.zip",
            ),
            "invalid_request",
            "no proposer 'llm'",
        ),
    ],
)
def test_invalid_requests_have_hints(
    place: Path, arguments: tuple[str, ...], code: str, expected: str
) -> None:
    done = kernlore(*arguments, "--json", data=place / "data")
    assert refused(done) == (code, 2) and expected in done.err


def test_session_is_packed_run_elsewhere_and_imported(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In a new data directory: the built-in knowledge has its vectors at once."""
    session = packed_session(tmp_path_factory, tmp_path)
    home, out = session.home, session.results
    assert "by words and tags alone" not in session.warnings
    with zipfile.ZipFile(session.packed) as packed:
        knowledge = json.loads(packed.read("session.json"))["knowledge"]
    assert knowledge["excerpts"]["memory_bound"]
    assert knowledge["answers"]["map_id"]["memory_bound"]["remedies"]

    imported = kernlore("runs", "import", out / "results.zip", "--json", data=home)
    assert imported.code == 0, imported.err
    run = imported.json[0]["run"]
    assert imported.json[0]["state"] == "finished" and imported.json[0]["problem"] == PROBLEM
    exported = kernlore("runs", "export", run, "-o", tmp_path / "home-export", "--json", data=home)
    assert exported.code == 0, exported.err
    assert Path(exported.json["module"]).is_dir() and Path(exported.json["report"]).is_file()
    brought, here = FileStore(out), FileStore(tmp_path / "home-export" / "rows")
    assert here.nodes(run) == brought.nodes(run) and len(here.nodes(run)) == 2
    assert here.run(run).result == brought.run(run).result
    catalog = open_catalog(home)
    for node in brought.nodes(run):
        assert node.evaluation is not None
        assert Evaluations(catalog).find(node.evaluation.key) is not None
    with catalog.read() as connection:
        outcomes = connection.exec_driver_sql("SELECT count(*) FROM outcomes").scalar()
    catalog.close()
    run_answer = [n for n in brought.nodes(run) if n.shown.retrieval_id and n.state != "duplicate"]
    assert outcomes == len(run_answer)
    twice = kernlore("runs", "import", out, "--json", data=home)
    assert refused(twice) == ("conflict", 2) and "imported before" in twice.err
    full = kernlore("runs", "export", run, "-o", out, "--json", data=home)
    assert refused(full) == ("conflict", 2) and "not empty" in full.err


def test_built_in_knowledge_is_read_once_and_found_by_words(
    place: Path, settings: Settings, model_cache: Path
) -> None:
    messages: list[str] = []
    unembedded = copy_knowledge(place / "knowledge", DOCUMENTS, vectors=False)
    own = settings.model_copy(update={"data_dir": place / "words", "knowledge_dir": unembedded})
    place_models(own.data_dir, model_cache)
    for _ in range(2):
        local = CommandTarget(own)
        local.load_knowledge(messages.append)
        request = RetrieveRequest(signal="memory_bound", hardware="h100", op="softmax")
        found = local.services.retriever.retrieve(request)
        acting = local.services.retriever.moves_and_skills(request)
        local.close()
    assert [line.split()[0] for line in messages] == ["reading", "0", "0"]
    assert found.excerpts and "words alone" in " ".join(found.hints)
    assert {score for e in found.excerpts for score in [e.channels["dense"]]} == {0.0}
    assert found.moves and (acting.moves, acting.skills) == (found.moves, found.skills)
    assert acting.excerpts == () and acting.context == ""

    services = CommandTarget(own).services  # another process makes the vectors
    assert services.jobs.counts() == {"queued": len(DOCUMENTS)}
    with services.local_reader() as reader:
        services.worker(reader).drain()
    assert services.jobs.counts() == {"ready": len(DOCUMENTS)} and services.dense_ready
    services.close()


def test_run_ends_with_three_lines(place: Path, bare: Path) -> None:
    """With almost no time: there may be no candidate, but the module is written."""
    out = place / "no-time"
    done = kernlore(
        "optimize", PROBLEM, *OPTIONS, "--minutes", "0.00001", "-o", out, data=place / "x"
    )
    assert done.code == 0, done.err
    gain, module, use, *without = done.out.splitlines()
    assert GAIN.fullmatch(gain), gain
    assert all("no kernel" in line for line in without), without
    assert module == str(out / "map_id_kernel")
    command = shlex.split(use)
    assert command[0] == f"PYTHONPATH={out}" and command[1:3] == ["python", "-c"]
    imported = on_bare_machine(bare, "-c", command[3], cwd=place, path=out)
    assert imported.returncode == 0, imported.stderr


def test_problems_of_a_folder_are_searched_in_turn(place: Path) -> None:
    """No recipe fits the first problem, which gets a traced kernel without an option. No proposer
    has a candidate for the second: the message names those tried, and those that would have one.
    """
    folder = place / "several"
    folder.mkdir()
    (folder / "own_norm.py").write_text(OWN)
    (folder / "unknown_factor.py").write_text(FACTORED)
    options = ("--language", "cpp", "--candidates", "1", "--knowledge", "off", "--minutes", "2")
    out = place / "searched"
    done = kernlore("optimize", folder, *options, "-o", out, "--json", data=place / "x")
    assert done.code == 0, done.err
    rows = done.json
    assert [row["problem"] for row in rows] == ["own_norm", "unknown_factor"]
    assert {row["state"] for row in rows} == {"finished"}
    assert {path.name for path in out.iterdir()} == {"own_norm", "unknown_factor"}
    listed = {row["id"]: row for row in run_json(place, "list", data="x")}
    traced, nothing = (listed[row["run"]] for row in rows)
    first = run_json(place, "tree", traced["id"], data="x")[1]
    assert first["synthesizer"] == "traced" and first["verdict"] in ("correct", "unmeasured")

    shown = run_json(place, "show", nothing["id"], data="x")
    reason = shown["reason"]
    assert re.search(r"no candidate exists. Tried: recipe; traced \(.*_qr.*\)", reason), reason
    assert "compiler, which was not tried, has one: leave --language out" in reason
    assert (nothing["gain"], nothing["run"]) == ("nothing tried", nothing["id"])


@pytest.mark.skipif(not LITELLM, reason="the extra `llm` is not installed")
def test_model_proposal_is_measured(
    place: Path, ran: CommandResult, run_answer: dict[str, Any], model: ModelServer
) -> None:
    run, requested = run_answer["run"], len(model.requests)
    assert "kernlore_abi.h" in prompt_of(model.requests[0])
    tree = run_json(place, "tree", run)
    by_model = [node for node in tree if node["synthesizer"] == "llm"]
    assert [node["plan"] for node in by_model] == ["a binary search for each id"]
    assert by_model[0]["verdict"] in ("correct", "unmeasured"), by_model
    cost = run_answer["models"][MODEL]
    assert cost["candidates"] == 1 and cost["usd"] > 0
    assert (cost["tokens_in"], cost["tokens_out"]) == (100 * requested, 20 * requested)
    shown = kernlore("runs", "show", run, data=place / "data")
    assert MODEL in shown.out and '"tokens_in": 100' in shown.out
    transcripts = list((place / "data" / "transcripts" / run).glob("*.json"))
    assert len(transcripts) == requested
    out = [path for path in (place / "out").rglob("*") if path.is_file()]
    written = "".join(path.read_text(errors="replace") for path in (*transcripts, *out))
    assert KEY not in ran.out + ran.err + shown.out + written
