"""MCP answers equal those over HTTP, by both transports."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import httpx
import pytest
from mcp.shared.exceptions import MCPError

from api.mcp.routes import Opening, Routes, client_at
from kb.errors import Unavailable
from retrieval.diagnose.signals import load_signals
from tests.api.cli_process import COMMAND, ROOT
from tests.api.mcp.mcp_sessions import TOOLS, Agent, over_http, over_stdio
from tests.catalogs import fresh_data_dir
from tests.shared import place_models
from tests.waiting import until

pytestmark = pytest.mark.slow(seconds=20)
DRAWN = 50
BY_STDIO = 8  # of the random requests
SPILL = "ptxas info : 96 bytes stack frame, 120 bytes spill stores, 120 bytes spill loads"
SHARED = "ptxas error : Entry function uses too much shared data (0x41000 bytes, 0x38c00 max)"
QUESTIONS = ("how large is shared memory", "why do warps stall", "coalesced access", "TMA copies")
MANUAL = """# Wom assembler

## Opcodes

| Opcode | Operands | Operation | Restrictions |
|---|---|---|---|
| addw | dst, a, b | add two words | dst is even |
| subw | dst, a, b | subtract two words | |

```wom
addw r0, r1, r2
```

## Kettles

A kettle is emptied after the loop with kettle_drain, once for each word.
"""
IN_TEXT = "kettle_drain"
KEPT = ("id", "hardware", "section", "page", "score")


@pytest.fixture(scope="module")
def rest(service_url: str) -> Iterator[httpx.Client]:
    """The service once everything is embedded: answers improve until then."""
    with httpx.Client(base_url=service_url, timeout=60) as client:
        until(lambda: client.get("/readyz").json()["ready"])
        yield client


@pytest.fixture(scope="module")
def agent(service_url: str) -> Iterator[Agent]:
    with over_http(service_url) as connected:
        yield connected


@pytest.fixture(scope="module")
def child(service_url: str) -> Iterator[Agent]:
    """`kernlore mcp --url` in a separate process."""
    with over_stdio("--url", service_url) as connected:
        yield connected


def random_request(chance: random.Random) -> dict[str, Any]:
    """A request as agents send it: an event, and filters for the answer."""
    signals = [signal.id for signal in load_signals()]
    happened: list[dict[str, Any]] = [
        {"signal": chance.choice(signals)},
        {"signals": chance.sample(signals, 2)},
        {"log": chance.choice((SPILL, SHARED))},
        {"metrics": {"dram__throughput.avg.pct_of_peak_sustained_elapsed": chance.uniform(5, 99)}},
        {"query": chance.choice(QUESTIONS)},
        {"log": SPILL, "draft": "__global__ void k() { cp_async_all(); }"},
    ]
    narrowed = {
        "hardware": ("h100", "a100", "nvidia"),
        "language": ("cuda", "triton"),
        "op": ("softmax", "matmul"),
        "dtype": ("bf16",),
        "task": ("write", "repair", "speed_up", "ask"),
        "k": (1, 5, 20),
        "max_tokens": (500, 3_000),
    }
    fields = {n: chance.choice(v) for n, v in narrowed.items() if chance.random() < 0.6}
    return chance.choice(happened) | fields


def test_answers_equal_those_of_http(agent: Agent, child: Agent, rest: httpx.Client) -> None:
    chance = random.Random(20)
    for number in range(DRAWN):
        request = random_request(chance)
        response = rest.post("/retrieve", json=request).json()
        answer = (child if number < BY_STDIO else agent).call("retrieve_context", **request)
        assert answer["context"] == response["context"], request
        excerpts = [{name: row[name] for name in KEPT} for row in response["excerpts"]]
        assert answer["excerpts"] == excerpts, request
        assert [move["id"] for move in answer["moves"]] == [m["id"] for m in response["moves"]]
        assert [skill["name"] for skill in answer["skills"]] == [
            s["name"] for s in response["skills"]
        ]


def test_tools_are_equal_by_both_transports(agent: Agent, child: Agent, service_url: str) -> None:
    """The same tools in the same order, also for clients of the old handshake."""
    with over_http(service_url, mode="legacy") as old:
        assert old.client.protocol_version < agent.client.protocol_version
        for connected in (agent, child, old):
            assert [tool.name for tool in connected.tools] == list(TOOLS)
            assert connected.tools == agent.tools
    hints = {tool.name: tool.annotations for tool in agent.tools}
    assert all(not h.destructive_hint and not h.open_world_hint for h in hints.values())
    reading = [name for name, h in hints.items() if h.read_only_hint]
    assert reading == [*TOOLS[:5], "list_runs", "list_facts", "show_coverage"]


def test_descriptions_of_tools_leave_room_in_a_window(agent: Agent) -> None:
    sent = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in agent.tools]
    assert sum(len(json.dumps(tool, separators=(",", ":"))) for tool in sent) < 29_000
    fields = sent[0]["inputSchema"]["properties"]
    assert fields["hardware"] == {
        "type": "string",
        "description": fields["hardware"]["description"],
    }
    assert "memory_bound" in fields["signal"]["enum"]


def test_query_section_and_outcome(agent: Agent, rest: httpx.Client) -> None:
    known = agent.call("list_signals_and_hardware")
    assert "memory_bound" in [row["id"] for row in known["signals"]]
    assert "h100" in [row["id"] for row in known["hardware"]]
    found = agent.call(
        "search_manual", query="memory bandwidth", hardware="h100", category="hardware", k=3
    )
    assert 1 <= len(found["excerpts"]) <= 3
    assert {row["category"] for row in found["excerpts"]} == {"hardware"}
    first = found["excerpts"][0]
    section = agent.call("get_section", excerpt=first["id"])
    assert " > ".join(section["path"]) == first["section"]
    assert section["next_offset"] is None and first["text"][:60] in section["text"]
    again = agent.call("get_section", excerpt=first["id"], offset=section["passages"])
    assert again["text"] == ""
    reported = agent.call(
        "report_outcome", retrieval_id=found["retrieval_id"], used=[first["id"]], correct=True
    )
    assert reported["outcome_id"].startswith("out_")


def test_symbols_of_a_language(agent: Agent, rest: httpx.Client) -> None:
    chip = {"id": "mcp-chip", "languages": ["wom"], "kind": "accelerator"}
    assert rest.post("/hardware", json=chip).status_code == 201
    sent = rest.post(
        "/documents",
        files={"file": ("wom.md", MANUAL.encode())},
        data={"hardware": "mcp-chip", "languages": "wom", "category": "hardware"},
    ).json()
    while rest.get(f"/jobs/{sent['job_id']}").json()["state"] in ("queued", "running"):
        time.sleep(0.1)
    send_request = {"name": "addw", "hardware": "mcp-chip"}
    cards = agent.call("lookup_symbol", **send_request, language="wom")["symbols"]
    rows = rest.get("/hardware/mcp-chip/symbols", params={"q": "addw"}).json()["symbols"]
    assert [card["id"] for card in cards] == [row["id"] for row in rows[:5]] != []
    elsewhere = agent.call("lookup_symbol", **send_request, language="cuda")
    assert elsewhere["symbols"] == [] and "addw" in elsewhere["nearest"]
    assert "without `language`" in elsewhere["hint"]
    assert "search_manual" in agent.call("lookup_symbol", name="qqqq", hardware="mcp-chip")["hint"]
    used = agent.call("lookup_symbol", name=IN_TEXT, hardware="mcp-chip")
    assert used["symbols"] == [] and "it occurs in section" in used["hint"]


def test_chip_is_added_with_tools_alone(agent: Agent, rest: httpx.Client) -> None:
    assert "register_hardware" in agent.refused("retrieve_context", hardware="own-1", query="size")
    added = agent.call("register_hardware", id="own-1", languages=["wom"])
    assert (added["outcome"], added["lineage"]) == ("created", ["own-1"])
    text = f"{MANUAL}\n## Memory\n\n| Item | Value |\n|---|---|\n| L2 cache size | 6 MiB |\n"
    sent = {"hardware": "own-1", "name": "isa/wom.md", "text": text, "languages": ["wom"]}
    read = agent.call("upload_document", **sent)
    assert read["state"] == "ready" and read["passages"] and read["symbols"] == 2
    (fact,) = read["facts_waiting"]
    assert (fact["key"], fact["value"]) == ("l2_size", "6 MiB") and "Memory" in fact["source"]
    assert agent.call("upload_document", **sent)["outcome"] == "unchanged"
    decided = agent.call("decide_facts", hardware="own-1", status="accepted", ids=[fact["id"]])
    assert [row["status"] for row in decided["decided"]] == ["accepted"]
    assert agent.call("list_facts", hardware="own-1")["facts"] == []
    (valid,) = agent.call("list_facts", hardware="own-1", status="effective")["facts"]
    assert valid["id"] == fact["id"]
    answer = agent.call("retrieve_context", query="size of the L2 cache", hardware="own-1")
    assert "6 MiB" in answer["context"]
    gaps = agent.call("show_coverage", hardware="own-1")
    assert gaps["documents"] == 1 and "memory_bandwidth" in gaps["facts_missing"]


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("retrieve_context", {"signal": "memory_bond"}, ("memory_bound", "unknown_signal")),
        (
            "retrieve_context",
            {"signal": "memory_bound", "hardware": "h10"},
            ("h100", "list_signals_and_hardware"),
        ),
        ("retrieve_context", {"sgnal": "memory_bound"}, ("Did you mean signal", "sgnal")),
        ("retrieve_context", {}, ("nothing to retrieve for", "Give a signal")),
        ("retrieve_context", {"query": "a\x00b"}, ("NUL",)),
        ("retrieve_context", {"query": "a", "k": 100_000}, ("k is 100000", "Use 1 to")),
        ("search_manual", {"query": ""}, ("query: ",)),
        ("get_section", {"excerpt": "psg_nothing"}, ("psg_nothing", "not_found")),
        ("lookup_symbol", {"name": "x", "hardware": "h10"}, ("h100", "unknown_hardware")),
        ("report_outcome", {"retrieval_id": "ret_nothing"}, ("ret_nothing", "not_found")),
        ("evaluate_candidate", {"problem": "softmax"}, ("`language`", "source")),
        (
            "evaluate_candidate",
            {"problem": "sofmax", "language": "cpp", "source": "x"},
            ("softmax", "not_found"),
        ),
        (
            "evaluate_candidate",
            {"problem": "softmax", "language": "wom", "source": "x"},
            ("`files`",),
        ),
        ("next_candidate_context", {}, ("`problem`", "problem_source")),
        ("cancel_run", {"run_id": "run_nothing"}, ("run_nothing", "not_found")),
        ("register_hardware", {"toml": "id = x"}, ("`toml`", "line 1")),
        ("register_hardware", {}, ("`id`",)),
        ("decide_facts", {"hardware": "h100", "status": "accepted"}, ("all_proposed",)),
        (
            "decide_facts",
            {"hardware": "h100", "status": "accepted", "ids": ["fact_x"]},
            ("fact_x", "`list_facts`"),
        ),
        (
            "upload_document",
            {"hardware": "h10", "name": "a.md", "text": "# A"},
            ("h100", "unknown_hardware"),
        ),
        ("next_candidate_context", {"run_id": "run_nothing"}, ("run_nothing", "not_found")),
        ("submit_candidate", {"run_id": "run_x", "step": 1, "nothing_more": True}, ("run_x",)),
        (
            "submit_trajectory",
            {"problem": "softmax", "hardware": "x86-64", "steps": []},
            ("steps: ",),
        ),
    ],
)
def test_error_is_a_result_with_hint(
    agent: Agent, tool: str, arguments: dict[str, Any], expected: tuple[str, ...]
) -> None:
    text = agent.refused(tool, **arguments)
    assert all(part in text for part in expected), text
    assert "(code: " in text and "Traceback" not in text


def test_json_log_stays_text(agent: Agent, rest: httpx.Client) -> None:
    """The SDK parses JSON in texts for arguments that may have another type."""
    log = json.dumps([SHARED])
    answer = agent.call("retrieve_context", log=log, hardware="h100", metrics='{"x": 1}')
    response = rest.post("/retrieve", json={"log": log, "hardware": "h100", "metrics": {"x": 1}})
    assert answer["context"] == response.json()["context"]
    assert answer["diagnosis"]["unrecognised"] == ["x"]


def test_resources(agent: Agent, rest: httpx.Client) -> None:
    listed = [str(row.uri) for row in agent.ask("list_resources").resources]
    assert listed[:2] == ["kb://hardware", "kb://documents"]
    skills = [uri for uri in listed[2:] if uri.startswith("skill://")]
    assert len(skills) == len(listed) - 2 > 10
    text = read(agent, skills[0])
    name = skills[0].split("/")[3]
    assert text.startswith("---\n") and f"name: {name}\n" in text
    assert "h100" in read(agent, "kb://hardware")
    document = json.loads(read(agent, "kb://documents"))["documents"][0]
    outline = json.loads(read(agent, document["uri"]))
    assert outline["title"] == document["title"]
    passages = rest.get(f"/documents/{document['id']}/passages").json()["passages"]
    response = {row["section"]["id"]: row["text"] for row in passages}
    section = next(row for row in outline["sections"] if row["id"] in response)
    assert response[section["id"]] in read(agent, section["uri"])


@pytest.mark.parametrize(
    "uri",
    [
        "kb://documents/doc_nothing",
        "kb://nothing",
        "skill://any/nothing/SKILL.md",
        "skill://any/any-split-k-skinny-matmul/../../etc/passwd",
        "skill://h100/any-split-k-skinny-matmul/SKILL.md",
    ],
)
def test_unknown_resource_cannot_be_read(agent: Agent, uri: str) -> None:
    with pytest.raises(MCPError) as refused:
        read(agent, uri)
    assert refused.value.error.code == -32602


def read(agent: Agent, uri: str) -> str:
    (content,) = agent.ask("read_resource", uri).contents
    return str(content.text)


def test_prompts_name_tools_that_exist(agent: Agent) -> None:
    prompts = {row.name: row for row in agent.ask("list_prompts").prompts}
    assert sorted(prompts) == ["onboard-accelerator", "optimize-kernel"]
    send_request = {
        "optimize-kernel": {"problem": "a/b.py", "hardware": "h100"},
        "onboard-accelerator": {"hardware": "mychip"},
    }
    for name, arguments in send_request.items():
        (message,) = agent.ask("get_prompt", name, arguments).messages
        assert "{{" not in message.content.text and arguments["hardware"] in message.content.text
        named = {word for word in TOOLS if f"`{word}`" in message.content.text}
        assert len(named) >= 3


def test_empty_data_directory_answers_without_service(
    tmp_path: Path, model_cache: Path, service_folder: Path, service_url: str
) -> None:
    """`kernlore mcp` loads the built-in knowledge if there is none, and leaves the vector index to
    a service.
    """
    data = place_models(fresh_data_dir(tmp_path / "data"), model_cache)
    knowledge = {"KERNLORE_KNOWLEDGE_DIR": str(service_folder / "knowledge")}
    with over_stdio("--data-dir", data, environment=os.environ | knowledge) as agent:
        found = agent.call("search_manual", query="shared memory of the H100", hardware="h100", k=2)
        assert {row["hardware"][0] for row in found["excerpts"]} <= {"h100", "hopper", "nvidia"}
        assert "h100" in agent.refused("lookup_symbol", name="x", hardware="h10")
    assert not (data / "chroma").exists()


def test_process_ends_on_sigterm(service_url: str) -> None:
    """Although the agent has not closed its standard input."""
    command = [*COMMAND, "mcp", "--url", service_url]
    call = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with subprocess.Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(call).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.terminate()
        assert process.wait(60) == 0


def test_unreachable_service_is_named() -> None:
    async def send_request() -> None:
        opening = Opening()
        async with anyio.create_task_group() as group:
            group.start_soon(opening.hold, lambda: client_at("http://127.0.0.1:9"))
            with pytest.raises(Unavailable) as refused:
                await Routes(opening.client).call("list_signals")
            group.cancel_scope.cancel()
        assert "127.0.0.1:9" in refused.value.message and "kernlore serve" in refused.value.hint

    anyio.run(send_request)
