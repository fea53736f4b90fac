"""A filled store for the pages: documents, a chip with proposed facts, a skill, a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import pytest
from fastapi.testclient import TestClient
from reportlab.pdfgen.canvas import Canvas

from api.services import Services
from kb.catalog.evaluations import CandidateRow, CaseRow, Evaluations, ProblemRow
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import CaseCheck, CaseTiming, Evaluation
from optimizer.search.goal import Goal
from optimizer.search.records import Node, Proposal
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from optimizer.search.synthesizers.llm.client import CallFailed, ChatReply
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, ModelTranscript
from tests.api.conftest import finished, upload

EVIL = "<img src=x onerror=alert(1)>"
RUN = "run_of_pages"
OTHER_RUN = "run_without_process"  # without a process
CHIP = "pages-x1"
MANUAL = f"""# {EVIL}

## Memory {EVIL}

The shared memory of a core is 192 KiB. Tiles that are larger spill to {EVIL}.

| Parameter | Value |
|---|---|
| Shared memory per core | 192 KiB |
| Memory bandwidth | 2.5 TB/s |
"""
NAMES = """# Instructions

## tile.wait

`tile.wait d` waits for the tile `d`.

| Operand | Meaning |
|---|---|
| `d` | the tile, of at most 4 KiB |

```pages-l
tile.wait t0
```
"""
SKILL = f"""---
name: pages-larger-tiles
description: Use larger tiles {EVIL}
---
# Larger tiles

Use larger tiles where memory bounds the kernel. {EVIL}
"""


@dataclass(frozen=True)
class Filled:
    """The client, and the ids of the stored records."""

    client: TestClient
    document: str
    job: str
    passage: str
    on_page: str
    symbol: str
    skill: str


@pytest.fixture(scope="session")
def filled(client: TestClient) -> Filled:
    tools = {"pages-l": {"compile": "cc {source} {output}", "run": "run {output} {input}"}}
    chip = {"id": "pages-lang", "languages": ["pages-l"], "toolchains": tools}
    assert client.post("/hardware", json=chip).status_code == 201
    sent = upload(client, "names.md", NAMES.encode(), hardware="pages-lang").json()
    assert finished(client, sent["job_id"])["state"] == "ready"
    chip = {"id": CHIP, "name": f"Pages {EVIL}", "languages": ["pages-c"]}
    assert client.post("/hardware", json=chip).status_code == 201
    title = {"title": EVIL, "hardware": CHIP}
    sent = upload(client, "pages.md", MANUAL.encode(), **title).json()
    assert finished(client, sent["job_id"])["state"] == "ready"
    listed = client.get(f"/documents/{sent['document_id']}/passages").json()["passages"]
    skill = {"name": "pages-larger-tiles", "files": {"SKILL.md": SKILL}, "actor": EVIL}
    added = client.post("/skills", json=skill)
    assert added.status_code == 201, added.text
    store_run(client.app.state.services)  # type: ignore[attr-defined]
    drawn = upload(client, "pages.pdf", one_page(), hardware=CHIP).json()
    assert finished(client, drawn["job_id"])["state"] == "ready"
    pages = client.get(f"/documents/{drawn['document_id']}/passages").json()["passages"]
    symbols = client.get("/hardware/pages-lang/symbols").json()["symbols"]
    return Filled(
        client,
        sent["document_id"],
        sent["job_id"],
        listed[0]["id"],
        pages[0]["id"],
        symbols[0]["id"],
        added.json()["name"],
    )


def one_page() -> bytes:
    """A PDF with a heading and a paragraph."""
    written = BytesIO()
    sheet = Canvas(written, pagesize=(300, 400))
    sheet.setFont("Helvetica-Bold", 18)
    sheet.drawString(40, 340, "Memory")
    sheet.setFont("Helvetica", 10)
    sheet.drawString(40, 300, "The scratchpad holds 64 KiB, and tiles must fit into it.")
    sheet.save()
    return written.getvalue()


def store_run(services: Services) -> None:
    """A finished run: the reference, a wrong candidate, and a correct one that changes it."""
    store = run_store(services)
    nodes = [Node(0, None, "evaluated", None, None)]
    for number, source in enumerate((f"// {EVIL}\nint a;\n", f"// {EVIL}\nint b;\n"), 1):
        kernel = Bundle({"k.cpp": source}, "k.cpp", "cpp", "kernlore_run", {"tile": 8}, "llm")
        evaluation = _evaluated(services, f"{RUN}-{number}", kernel, right=number == 2)
        proposal = Proposal(
            kernel, "llm", plan=f"plan {number} {EVIL}", transcript=_conversation(services, number)
        )
        nodes.append(Node(number, number - 1, "evaluated", proposal, evaluation))
    row = RunRow(RUN, "pages.py", "0" * 64, "x86-64", Goal())
    store.begin(row)
    for node in nodes:
        store.add(RUN, node)
    store.begin(replace(row, id=OTHER_RUN))


def _conversation(services: Services, number: int) -> str:
    """A conversation with a failed call and a reply; its id."""
    transcript = ModelTranscript(RUN, number, 0, "openai/gpt-4o-mini", "1")
    transcript.messages = [{"role": "user", "content": f"Write a kernel. {EVIL}"}]
    transcript.replies = [
        CallFailed("the model did not answer"),
        ChatReply(f"Reply {number} {EVIL}"),
    ]
    FolderTranscripts(services.settings.data_dir / "transcripts").write(transcript)
    return transcript.id


def _evaluated(services: Services, key: str, kernel: Bundle, right: bool) -> Evaluation:
    busy = CaseTiming("main", "repeat", reason="busy", rough_us=12.0, rough_baseline_us=240.0)
    fields: dict[str, Any] = {}
    if right:
        fields = {"checks": (CaseCheck("main", 1, True),), "timings": (busy,)}
    evaluation = Evaluation(
        key=key,
        problem="pages",
        candidate=kernel.sha256,
        language="cpp",
        hardware="x86-64",
        device="cpu",
        toolchain="cpp",
        harness="3",
        validity="correct" if right else "not_compiled",
        timing="none",
        reached="correctness" if right else "compile",
        message="" if right else f"error: {EVIL}",
        log="",
        **fields,
    )
    rows = Evaluations(services.catalog)
    rows.begin(
        key,
        ProblemRow("pages", "0" * 64, "file", "map", "blob", {}),
        [CaseRow("main", "float32", [], "small", "normal", 1.0, False)],
        CandidateRow(kernel.sha256, "cpp", "kernlore_run", "llm", {}, "blob"),
        "3",
        "cpu",
    )
    rows.finish(key, evaluation.as_json(), [], op_family="map", hardware_id="x86-64")
    return evaluation
