"""How long the service works on each web page at 2,000 documents, 5,000 skills and 500 runs.

Fills a fresh data directory: the built-in knowledge as it ships, then copies of its documents and
skills under other names, and runs with their candidates, as rows. Each page is asked for by the
service's own application, without a network, and once before it is timed. Run as
`python -m benchmarks.web_pages`; `--output` keeps the result.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy import Connection

from api.http.app import create_app
from api.services import Services, open_services
from benchmarks.report import say, table, write_result
from kb.catalog import tables as t
from kb.catalog.evaluations import CandidateRow, CaseRow, Evaluations, ProblemRow
from kb.catalog.meta import bump_revision
from kb.settings import Settings
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import CaseCheck, Evaluation
from optimizer.search.goal import Goal
from optimizer.search.records import Node, Proposal
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow

CANDIDATES = 30  # of one run in fifty: a page shows the rows of one run
PASSAGES = 10  # of a copied document
LIMIT_MS = 150.0
URL = "http://127.0.0.1:8321"


@dataclass(frozen=True)
class Scale:
    """How much the store holds."""

    documents: int
    skills: int
    runs: int

    def __str__(self) -> str:
        return f"{self.documents:,} documents, {self.skills:,} skills and {self.runs:,} runs"


def fill(services: Services, scale: Scale) -> None:
    """Copies until there are as many as the benchmark wants."""
    with services.catalog.write() as connection:
        _copy_documents(connection, scale.documents - _count(connection, t.documents))
        _copy_skills(connection, scale.skills - _count(connection, t.skills))
        bump_revision(connection)
    for number in range(scale.runs):
        _store_run(services, number)


def _count(connection: Connection, rows: sa.Table) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(rows)).scalar_one())


def _copy_documents(connection: Connection, wanted: int) -> None:
    originals = connection.execute(sa.select(t.documents)).mappings().all()
    for number in range(wanted):
        original = originals[number % len(originals)]
        document, version, section = (f"{kind}_{number:016x}" for kind in ("doc", "ver", "sec"))
        connection.execute(
            t.documents.insert().values(
                **{**original, "id": document, "source_key": f"copy/{number}"}
                | {"title": f"{original['title']} {number}", "current_version_id": version}
                | {"origin": "upload"}
            )
        )
        _copy(connection, t.document_scopes, "document_id", original["id"], {}, document)
        _copy(
            connection,
            t.document_versions,
            "id",
            original["current_version_id"],
            {"document_id": document},
            version,
        )
        first = connection.execute(
            sa.select(t.sections)
            .where(t.sections.c.version_id == original["current_version_id"])
            .limit(1)
        ).mappings()
        row = {name: value for name, value in first.one().items() if name != "seq"}
        connection.execute(
            t.sections.insert().values(**row | {"id": section, "version_id": version})
        )
        _copy_passages(connection, original["id"], document, version, section)


def _copy_passages(
    connection: Connection, original: str, document: str, version: str, section: str
) -> None:
    rows = connection.execute(
        sa.select(t.passages).where(t.passages.c.document_id == original).limit(PASSAGES)
    ).mappings()
    for place, row in enumerate(rows):
        own = {"id": f"psg_{document[4:]}{place}", "document_id": document, "ordinal": place}
        copied = {name: value for name, value in row.items() if name != "seq"}
        connection.execute(
            t.passages.insert().values(
                **copied | own | {"version_id": version, "section_id": section}
            )
        )


def _copy(
    connection: Connection,
    rows: sa.Table,
    column: str,
    original: str,
    changes: dict[str, Any],
    copied: str,
) -> None:
    for row in connection.execute(sa.select(rows).where(rows.c[column] == original)).mappings():
        connection.execute(rows.insert().values(**{**row, **changes, column: copied}))


def _copy_skills(connection: Connection, wanted: int) -> None:
    originals = connection.execute(sa.select(t.skills)).mappings().all()
    for number in range(wanted):
        original = originals[number % len(originals)]
        skill = f"sk_{number:016x}"
        state = ("active", "candidate", "suspect")[number % 3]
        connection.execute(
            t.skills.insert().values(
                **{**original, "id": skill, "name": f"{original['name']}-{number}"}
                | {"tier": "learned", "state": state, "origin": "run"}
            )
        )
        _copy(connection, t.skill_scopes, "skill_id", original["id"], {}, skill)


def _store_run(services: Services, number: int) -> None:
    store = run_store(services)
    kernel = Bundle({"k.cpp": f"int a = {number};\n"}, "k.cpp", "cpp", "run", {}, "llm")
    first = _evaluated(services, f"bench-{number}", kernel)
    row = RunRow(f"run_{number:016x}", f"problem{number % 20}.py", "0" * 64, "x86-64", Goal())
    store.begin(row)
    store.add(row.id, Node(0, None, "evaluated", None, None))
    for candidate in range(1, CANDIDATES + 1 if number % 50 == 0 else 2):
        proposal = Proposal(kernel, "llm", parent=candidate - 1, plan=f"plan {candidate}")
        store.add(row.id, Node(candidate, (candidate - 1) // 2, "evaluated", proposal, first))
    store.update(replace(row, state="finished", ended="it was tried"))


def _evaluated(services: Services, key: str, kernel: Bundle) -> Evaluation:
    evaluation = Evaluation(
        key=key,
        problem="pages",
        candidate=kernel.sha256,
        language="cpp",
        hardware="x86-64",
        device="cpu",
        toolchain="cpp",
        harness="3",
        validity="correct",
        timing="none",
        reached="correctness",
        message="",
        log="",
        checks=(CaseCheck("main", 1, True),),
    )
    rows = Evaluations(services.catalog)
    problem = ProblemRow("pages", "0" * 64, "file", "map", "blob", {})
    case = CaseRow("main", "float32", [], "small", "normal", 1.0, False)
    candidate = CandidateRow(kernel.sha256, "cpp", "run", "llm", {}, "blob")
    rows.begin(key, problem, [case], candidate, "3", "cpu")
    rows.finish(key, evaluation.as_json(), [], op_family="map", hardware_id="x86-64")
    return evaluation


def pages(client: TestClient) -> Iterator[str]:
    """One address of each page, and the far ends of the lists."""
    document = client.get("/documents").json()["documents"][0]["id"]
    passage = client.get(f"/documents/{document}/passages").json()["passages"][0]["id"]
    skill = client.get("/skills").json()["skills"][0]["name"]
    run = f"/runs/run_{0:016x}"
    yield from ("", "/hardware", "/hardware/h100", "/hardware/h100/setup", "/upload", "/jobs")
    yield from ("/hardware/h100/symbols", "/hardware/h100/symbols?q=wgmma", "/recipes")
    yield from ("/documents", "/documents?number=30", "/documents?q=memory&hardware=h100")
    yield from (f"/documents/{document}", f"/passages/{passage}", "/knowledge")
    yield from ("/knowledge?path=hardware/h100", "/skills", "/skills?number=80", "/skills?q=tile")
    yield from ("/skills?tier=learned&state=candidate,suspect&hardware=h100", f"/skills/{skill}")
    yield from ("/runs", "/runs?number=9", "/runs?q=problem7&state=finished", "/runs/new", run)
    yield from (f"{run}/candidates/7", f"/runs/compare?run={run[6:]}&run=run_{1:016x}")
    yield from ("/retrieve", "/retrieve?signal=memory_bound&hardware=h100")


def measure(client: TestClient, repeats: int) -> list[tuple[str, float, float]]:
    """For each page the median of its milliseconds, and of those of processor time."""
    rows = []
    for path in pages(client):
        assert client.get(f"/ui{path}").status_code == 200, path
        walls, works = [], []
        for _ in range(repeats):
            wall, work = time.perf_counter(), time.process_time()
            client.get(f"/ui{path}")
            walls.append((time.perf_counter() - wall) * 1e3)
            works.append((time.process_time() - work) * 1e3)
        rows.append((f"/ui{path}", statistics.median(walls), statistics.median(works)))
        say(f"{rows[-1][0]}: {rows[-1][1]:.0f} ms, {rows[-1][2]:.0f} ms of processor time")
    return rows


def _wait(client: TestClient) -> None:
    """Until the built-in knowledge is loaded and read."""
    while True:
        state = client.get("/readyz").json()
        if state["knowledge_loaded"] and not set(state["jobs"]) & {"queued", "running"}:
            return
        time.sleep(2)


def main() -> None:
    """Fill, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=2_000)
    parser.add_argument("--skills", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, help="keep the filled directory, and use it again")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    scale = Scale(options.documents, options.skills, options.runs)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data_dir or Path(temporary)
        settings = Settings(data_dir=folder)
        if not (folder / "filled").exists():
            with TestClient(create_app(settings), URL) as client:
                _wait(client)
            say("filling")
            services = open_services(settings)  # no service beside it: the transactions are long
            fill(services, scale)
            services.close()
            (folder / "filled").touch()
        with TestClient(create_app(settings), URL) as client:
            _wait(client)
            rows = measure(client, options.repeats)
    over = [path for path, wall, _ in rows if wall > LIMIT_MS]
    shown = [(f"`{path}`", f"{wall:.0f}", f"{work:.0f}") for path, wall, work in rows]
    write_result(
        options.output,
        "Web pages at scale",
        [
            f"Server time of each page of the web interface at {scale},"
            " without a network: the median of"
            f" {options.repeats} requests after a first one."
            " Command: `python -m benchmarks.web_pages`.",
            table(("page", "ms", "ms of processor time"), shown),
            f"Pages over {LIMIT_MS:.0f} ms: {', '.join(over) if over else 'none'}.",
        ],
    )


if __name__ == "__main__":
    main()
