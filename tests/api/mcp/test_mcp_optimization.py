"""An agent optimizes a kernel through MCP alone: briefing, a wrong kernel, a correct one, the
end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.services import open_services
from kb.settings import Settings
from tests.api.cli_process import kernlore
from tests.api.conftest import assert_error
from tests.api.mcp.mcp_sessions import Agent, over_http
from tests.api.test_evaluations import KERNEL, PROBLEM, TIMED, TOML
from tests.known_device import store_ceilings

pytestmark = pytest.mark.slow(seconds=20)
LONG = 280.0  # seconds: on a shared machine


@pytest.fixture(scope="module")
def agent(service_url: str, service_folder: Path) -> Iterator[Agent]:
    store_ceilings(service_folder / "data")
    with over_http(service_url) as connected:
        yield connected


def settled(agent: Agent, run_id: str, **send_request: Any) -> dict[str, Any]:
    """The next state in which the run waits, or its end."""
    while True:
        context = agent.call("next_candidate_context", run_id=run_id, **send_request)
        if context["waiting"] or context["state"] not in ("starting", "running"):
            return context


def test_agent_optimizes_kernel_over_mcp(agent: Agent, service_url: str) -> None:
    begun = agent.call(
        "next_candidate_context",
        problem_source=TIMED["source"],
        problem_toml=TIMED["toml"],
        language="cpp",
        candidates=9,
        context_tokens=2_000,
        wait_seconds=0,
    )
    run_id = begun["run_id"]
    first = settled(agent, run_id)
    assert first["step"] == 1 and first["best"] is None
    for part in ("return 2 * x", "# Interface", "kernlore_abi.h"):
        assert part in first["briefing"], part

    wrong = agent.call(
        "submit_candidate",
        run_id=run_id,
        step=1,
        source=KERNEL.replace("2 * x", "3 * x"),
        plan="three times",
        wait_seconds=LONG,
    )
    assert (wrong["state"], wrong["result"]["validity"]) == ("evaluated", "incorrect")
    assert wrong["result"]["message"]

    second = settled(agent, run_id)
    assert second["step"] == 2 and "# Interface" not in second["briefing"]
    assert "three times" in second["briefing"]
    bad = {"run_id": run_id, "step": 2, "language": "cpp", "files": {"a.cpp": KERNEL}}
    assert "no file" in agent.refused("submit_candidate", **bad, main="b.cpp")
    right = agent.call(
        "submit_candidate",
        run_id=run_id,
        step=2,
        language="cpp",
        source=KERNEL,
        used=second["knowledge_ids"][:1],
        wait_seconds=LONG,
    )
    assert right["result"]["correct"] and len(right["result"]["timings"]) == 1

    third = settled(agent, run_id)
    figure = right["result"]["speedup"]  # None if a busy machine gives no figure
    assert third["step"] == 3 and (figure is None or third["best"]["number"] == 2)
    assert "conflict" in agent.refused("submit_candidate", **bad, main="a.cpp")
    ended = agent.call(
        "submit_candidate", run_id=run_id, step=2, nothing_more=True, wait_seconds=LONG
    )
    assert ended["state"] == "none" and ended["run_state"] == "finished"
    assert ended["step"] == 3  # the run waited for it
    assert ended["ended"] == "the caller has no further candidate"
    final = settled(agent, run_id)
    assert final["ended"] == ended["ended"] and final["result"] == ended["run_result"]
    listed = kernlore("runs", "list", "--url", service_url, "--json").json
    assert (listed[0]["run"], listed[0]["state"]) == (run_id, "finished")
    shown = kernlore("runs", "show", run_id, "--url", service_url, "--json").json
    assert shown["result"] == final["result"]
    claimed = httpx.get(f"{service_url}/runs/{run_id}/candidates/2").json()["proposal"]["claimed"]
    assert claimed == second["knowledge_ids"][:1]


def test_evaluate_kernel_tool(agent: Agent) -> None:
    sent = {"problem_source": PROBLEM, "problem_toml": TOML, "language": "cpp"}
    queued = agent.call("evaluate_candidate", **sent, source=KERNEL, wait_seconds=0)
    assert queued["state"] in ("queued", "running") and queued["result"] is None
    while queued["state"] != "ready":
        queued = agent.call("evaluate_candidate", evaluation_id=queued["id"])
    assert queued["result"]["correct"]


def test_chip_without_toolchain_is_refused(agent: Agent, service_url: str) -> None:
    toolchain = {
        "compile": "no-such-kas {source} -o {output}",
        "run": "no-such-ksim {output} {input}",
    }
    chip = {"id": "kestrel-9", "languages": ["kasm"], "toolchains": {"kasm": toolchain}}
    assert httpx.post(f"{service_url}/hardware", json=chip).is_success
    printed = agent.refused("next_candidate_context", problem="softmax", hardware="kestrel-9")
    assert "no-such-kas is not installed" in printed and "Install it" in printed


def test_external_search_is_accepted(agent: Agent, service_url: str) -> None:
    taken = agent.call(
        "submit_trajectory",
        problem_source=PROBLEM,
        problem_toml=TOML,
        hardware="auto",
        language="cpp",
        steps=[{"source": KERNEL, "plan": "straight"}],
    )
    assert taken["state"] in ("queued", "running", "ready")
    shown = httpx.get(f"{service_url}/trajectories/{taken['id']}")
    assert shown.status_code == 200


def test_proxied_calls_run_no_code(settings: Settings) -> None:
    """A caller that uses the proxy's name may list the tools, but is not on this machine."""
    behind = settings.model_copy(update={"allowed_hosts": "kernels.example"})
    app = create_app(behind, open_services(behind))
    kernel = {"problem": "softmax", "language": "cpp", "source": KERNEL}
    params = {"name": "evaluate_candidate", "arguments": kernel}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    async def send_request() -> httpx.Response:
        """Only the tools are opened, because the refusal needs nothing else."""
        transport = httpx.ASGITransport(app)
        headers = {"accept": "application/json, text/event-stream"}
        async with (
            app.state.mcp.open(app, behind),
            httpx.AsyncClient(transport=transport, base_url="http://kernels.example") as client,
        ):
            return await client.post("/mcp", json=call, headers=headers)

    result = anyio.run(send_request).json()["result"]
    assert result["isError"] and "evaluation_forbidden" in result["content"][0]["text"]
    assert "KERNLORE_EVALUATE_OVER_HTTP" in result["content"][0]["text"]


def test_missing_mcp_extra_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.mcp.mounted.find_spec", lambda name: None)
    client = TestClient(create_app(settings, open_services(settings)), "http://127.0.0.1:8321")
    error = assert_error(client.post("/mcp", json={}), 503, "unavailable")
    assert "kernlore[mcp]" in error["hint"]
