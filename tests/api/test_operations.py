"""Every operation through every interface: access, and equal answers. Interfaces are the HTTP
route, the command (over HTTP and in this process), the MCP tool, and the page or form. Access
follows from the declarations alone.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from api.cli.target import CommandTarget
from api.http.authorisation import LOGIN, LOGOUT, OPEN_PAGES, is_tools, routes_of
from api.mcp.tools import TOOLS
from api.operations import SAFE, Incoming, Operation, operations
from api.operations.__main__ import METHODS, generated_files
from api.web.pages import FORMS
from kb.catalog.keys import ROLES, Role, may
from kb.errors import KernloreError
from kb.plain import plain
from kb.routes import routes
from retrieval.client import KEY_VARIABLE, Kernlore, KernloreClientError
from tests.api.keyed_service import QUESTION, SECRET_WORDS, KeyedService, Planted

pytestmark = pytest.mark.slow(seconds=8)

EVERY = tuple(either for o in operations() for either in (o, o.form) if either is not None)
BY_ROUTE = {operation.route: operation for operation in EVERY}
CALLERS = ("", "revoked", *ROLES, "mi300x")  # no key, a revoked one, roles, another chip's curator
SIGNED = {"actor": "ann", "reason": "a test"}
KERNEL = {"files": {"k.cpp": ""}, "main": "k.cpp", "language": "cpp"}
# Composing the contexts of every kernel takes two seconds.
ONE_KERNEL = {"operator": "softmax", "language": "triton", "hardware": "h100"}
# Valid inputs, so that only the caller or an id is wrong.
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "retrieve": {"request": {"query": QUESTION}},
    "delivered_kernels": ONE_KERNEL,
    "report_outcome": {"used": []},
    "decide_proposed_recipe": {"status": "accepted"},
    "correct_passage": {"text": "A correction.", "actor": "ann"},
    "register_hardware": {"description": {"id": "h100", "summary": "Another."}},
    "correct_symbol": {"meaning": "A correction.", "actor": "ann"},
    "correct_term": {"term": "FST", "concept": ""},
    "restore_document": {"version": 1},
    "decide_version": {"decision": "discard"},
    "decide_drafts": {"status": "rejected", "actor": "ann"},
    "add_fact": {"key": "x_lanes", "text": "4", "actor": "ann"},
    "decide_facts": {"status": "rejected", "where": {}, "actor": "ann"},
    "prepare_hardware": {"models": "openai/m", "signals": ["no such signal"]},
    "read_documents": {"models": ""},
    "decide_fact": {"status": "rejected", "actor": "ann"},
    "change_skill": {"state": "retired", **SIGNED},
    "revise_skill": {"body": "Another.", **SIGNED},
    "narrow_skill": {"key": "op", "value": "softmax", **SIGNED},
    "merge_skill": {"into": "unknown_skill", **SIGNED},
    "show_problem": {"problem_name": "map_id"},
    "evaluate_candidate": {"problem": "map_id", "candidate": KERNEL},
    "start_run": {"problem": "map_id"},
    "propose_candidate": {"step": 1, "candidate": KERNEL},
    "review_candidate": {"decision": "accepted", **SIGNED},
    "import_skill": {
        "skill": {"name": "other-tiles", "files": {"SKILL.md": "no front matter"}, "actor": "ann"}
    },
    "submit_trajectory": {
        "trajectory": {
            "problem": "map_id",
            "hardware": "h100",
            "language": "cpp",
            "actor": "ann",
            "steps": [{"parent": 0, "source": "// a kernel", "plan": "none"}],
        }
    },
}
TOOL_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "retrieve_context": {"query": QUESTION},
    "search_manual": {"query": QUESTION},
    "get_section": {"excerpt": "passage_id"},
    "lookup_symbol": {"name": "cp.async", "hardware": "hardware_id"},
    "list_signals_and_hardware": {},
    "report_outcome": {"retrieval_id": "retrieval_id", "used": []},
    "evaluate_candidate": {"evaluation_id": "evaluation_id"},
    "next_candidate_context": {"run_id": "run_id", "wait_seconds": 0},
    "submit_candidate": {
        "run_id": "run_id",
        "step": 1,
        "language": "cpp",
        "source": "x",
        "wait_seconds": 0,
    },
    "start_run": {"problem": "map_id", "hardware": "hardware_id", "wait_seconds": 0},
    "list_runs": {"run_id": "run_id"},
    "cancel_run": {"run_id": "run_id"},
    "register_hardware": {"id": "made-here"},
    "upload_document": {"hardware": "hardware_id", "name": "a.md", "text": "# A\n\nText.\n"},
    "list_facts": {"hardware": "hardware_id"},
    "decide_facts": {"hardware": "hardware_id", "status": "accepted", "all_proposed": True},
    "show_coverage": {"hardware": "hardware_id"},
    "submit_trajectory": {
        "problem": "map_id",
        "hardware": "hardware_id",
        "language": "cpp",
        "steps": [{"parent": 0, "source": "// a kernel"}],
    },
}


def planted_ids(planted: Planted) -> dict[str, str]:
    """Ids of records about h100, by the names of parameters."""
    return {
        "document_id": planted.document,
        "passage_id": planted.passage,
        "hardware_id": "h100",
        "job_id": planted.job,
        "fact_id": planted.fact,
        "retrieval_id": planted.retrieval,
        "run_id": planted.run,
        "trajectory_id": planted.trajectory,
        "evaluation_id": planted.evaluation,
        "name": planted.skill,
        "number": "0",
    }


def unknown_id(value: str) -> str:
    """An id of the same form without a record."""
    return "h700" if value == "h100" else re.sub("[0-9a-f](?=[0-9a-f]*$)|s$", "7", value)


def call_of(operation: Operation[Any, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    """A valid input. Ids that `ids` lacks are unknown ones."""
    path = {i.name: ids.get(i.name, f"unknown_{i.name}") for i in operation.inputs}
    named: dict[str, Any] = {i.name: path[i.name] for i in operation.inputs if i.place == "path"}
    if any(i.place == "files" for i in operation.inputs):
        named |= {"file": (Incoming("own.md", io.BytesIO(b"# Own\n\nText.\n")),)}
        named |= {"hardware": ("h100",)} if operation.name == "upload" else {}
    if operation.name == "retrieve_by_query":
        named["query"] = {"q": QUESTION}
    return named | dict(FIELDS.get(operation.name, {}))


def with_ids(arguments: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of a tool with ids instead of the names of parameters."""
    return {n: ids.get(v, v) if isinstance(v, str) else v for n, v in arguments.items()}


# -- interfaces


class Answered(NamedTuple):
    """`code` and `hint` are those of an error; `body` is the decoded JSON."""

    status: int
    code: str
    hint: str
    text: str
    body: Any = None


Door = Callable[[str, Operation[Any, Any], Mapping[str, Any]], Answered]


def answered(status: int, text: str) -> Answered:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    error = body if isinstance(body, dict) and status >= 400 else {}
    return Answered(status, error.get("code", ""), error.get("hint", ""), text, body)


@dataclass(frozen=True)
class ServiceInterfaces:
    """The interfaces of one service. `targets` are commands by the caller whose key they send."""

    service: KeyedService
    targets: Mapping[str, CommandTarget]

    def http(
        self, caller: str, operation: Operation[Any, Any], given: Mapping[str, Any]
    ) -> Answered:
        sent = routes()[operation.name].request(given)
        files = [(n, (f.name, f.file.read())) for n, parts in sent.files.items() for f in parts]
        carried = {"files": files, "data": sent.form} if files else {"json": sent.body}
        answer = self.service.ask(caller, sent.method, sent.path, params=sent.query, **carried)
        return answered(answer.status_code, answer.text)

    def command(
        self, caller: str, operation: Operation[Any, Any], given: Mapping[str, Any]
    ) -> Answered:
        return carried_out(self.targets[caller], operation, given)

    def tool(self, caller: str, name: str, arguments: Mapping[str, Any]) -> Answered:
        """The status of the message; the result of the tool as the body."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        message |= {"params": {"name": name, "arguments": dict(arguments)}}
        headers = {"accept": "application/json, text/event-stream"}
        answer = self.service.ask(caller, "POST", "/mcp", json=message, headers=headers)
        if answer.status_code != 200:
            return answered(answer.status_code, answer.text)
        result = answer.json()["result"]
        text = result["content"][0]["text"]
        code = re.search(r"\(code: (\w+)\)$", text) if result.get("isError") else None
        return Answered(200, code[1] if code else "", "", text, result.get("structuredContent"))


def carried_out(
    target: CommandTarget, operation: Operation[Any, Any], given: Mapping[str, Any]
) -> Answered:
    try:
        if operation.produces:
            return Answered(200, "", "", repr(target.download(operation, **given)))
        body = plain(target.call(operation, **given))
    except KernloreError as error:
        body = plain(error.as_json())
        return Answered(error.status, error.code, error.hint, json.dumps(body), body)
    return Answered(operation.status, "", "", json.dumps(body, ensure_ascii=False), body)


@pytest.fixture(scope="module")
def service_interfaces(keyed: KeyedService) -> Iterator[ServiceInterfaces]:
    targets = {}
    for caller in CALLERS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(KEY_VARIABLE, keyed.secrets.get(caller, ""))
            targets[caller] = CommandTarget(url=keyed.url)
    yield ServiceInterfaces(keyed, targets)
    for target in targets.values():
        target.close()


# -- access


def refusal(caller: str, role: Role | None, chip_refused: bool = False) -> int:
    """The declared status of the refusal; 0 if the caller has access."""
    if role is None:
        return 0
    if caller in ("", "revoked"):
        return 401
    own: Role = "curator" if caller == "mi300x" else caller  # type: ignore[assignment]
    return 403 if not may(own, role) or (caller == "mi300x" and chip_refused) else 0


def access_error(answer: Answered, expected: int) -> bool:
    """Whether access differs from the expected one; a refusal has a code and a hint."""
    if expected == 0:
        return answer.status in (401, 403) or answer.status >= 500
    code = {401: "unauthorized", 403: "forbidden"}[expected]
    return (answer.status, answer.code) != (expected, code) or not answer.hint


def test_access_equals_declaration(service_interfaces: ServiceInterfaces) -> None:
    """Every operation, by HTTP route and by command, with every kind of caller."""
    wrong = []
    for operation in EVERY:
        role = None if operation.public else operation.role
        chip_refused = operation.whole_store or operation.runs_code
        inputs = operation.inputs
        given: dict[str, Any] = {
            i.name: f"unknown_{i.name}" for i in inputs if i.place == "path"
        } | {i.name: () for i in inputs if i.place == "files"}
        if operation.name == "delivered_kernels":
            given |= ONE_KERNEL
        for caller in CALLERS:
            expected = refusal(caller, role, chip_refused)
            for name, door in (
                ("http", service_interfaces.http),
                ("command", service_interfaces.command),
            ):
                answer = door(caller, operation, given)
                if access_error(answer, expected) and answer.code != "unavailable":
                    wrong.append((operation.name, name, caller, expected, answer[:2]))
    assert wrong == []


def test_declared_roles_fit_operations() -> None:
    """The table in docs/reference/routes.md records each role."""
    changing = {o.name for o in operations() if o.changes and o.role == "reader"}
    assert changing == {"report_outcome"}
    assert {o.role for o in operations() if o.runs_code} <= {"writer", "admin"}
    assert {o.role for o in operations() if o.method == "DELETE"} <= {"writer", "admin"}
    assert [o.name for o in operations() if o.public] == ["healthz"]


def test_tool_needs_role_of_its_operation(service_interfaces: ServiceInterfaces) -> None:
    assert set(TOOL_ARGUMENTS) == set(TOOLS)
    wrong = []
    for name, operation in TOOLS.items():
        for caller in CALLERS:
            expected = refusal(caller, operation.role, operation.runs_code)
            answer = service_interfaces.tool(caller, name, {"surely_not": "an argument"})
            if access_error(answer, expected):
                wrong.append((name, caller, expected, answer[:2]))
    assert wrong == []


def test_client_method_needs_role_of_its_operation(service_interfaces: ServiceInterfaces) -> None:
    wrong = []
    for caller in CALLERS:
        secret = service_interfaces.service.secrets.get(caller, "")
        with Kernlore(service_interfaces.service.url, key=secret, timeout=60) as client:
            for name, (operation, _) in METHODS.items():
                path = [i.name for i in operation.inputs if i.place == "path"]
                try:
                    getattr(client, name)(*(f"unknown_{parameter}" for parameter in path))
                    answer = answered(operation.status, "")
                except KernloreClientError as error:
                    answer = Answered(error.status or 500, error.code, error.hint, str(error))
                if access_error(answer, refusal(caller, operation.role)):
                    wrong.append((name, caller, answer[:3]))
    assert wrong == []


def test_pages_and_mounts_need_key(service_interfaces: ServiceInterfaces) -> None:
    """Routes that are not operations: a form needs the role of its operation, a page a reader."""
    wrong, unsafe = [], set[str]()
    for route in routes_of(service_interfaces.service.app):
        template = route.template if route.methods is not None else f"{route.template}/x"
        if not route.template or is_tools(route.template):
            continue
        for method in sorted((route.methods or {"GET", "POST"}) - {"HEAD", "OPTIONS"}):
            key = f"{method} {route.template}"
            if key in BY_ROUTE:
                unsafe |= {key} if method not in SAFE else set()
                continue
            role: Role | None = "reader" if method in SAFE else "admin"
            if key in FORMS:
                role = FORMS[key].role
            elif key in OPEN_PAGES:
                role = None
            unsafe |= {key} if method not in SAFE and route.methods is not None else set()
            for caller in CALLERS[:-1]:
                path = re.sub(r"\{(\w+?)(:path)?\}", r"unknown_\1", template)
                answer = service_interfaces.service.ask(caller, method, path)
                expected = refusal(caller, role)
                if key == LOGIN:  # it refuses a wrong key itself
                    continue
                if (answer.status_code in (401, 403)) != bool(expected) or (
                    expected and answer.status_code != expected
                ):
                    wrong.append((key, caller, expected, answer.status_code))
    assert wrong == []
    declared = {route for route in {**BY_ROUTE, **FORMS} if route.split()[0] not in SAFE}
    assert unsafe - declared == {LOGIN, LOGOUT}
    assert declared - unsafe == set(), "declared, but there is no such route"


# -- hardware of others


def test_key_of_another_chip_sees_and_changes_nothing(
    service_interfaces: ServiceInterfaces,
) -> None:
    """An id of the other chip is answered like an unknown one, by every interface."""
    planted = service_interfaces.service.planted
    ids = planted_ids(planted)
    secrets = {value for name, value in vars(planted).items() if name != "elsewhere"}
    secrets |= {SECRET_WORDS, "Zanzibar"}
    wrong = []
    for operation in EVERY:
        given = call_of(operation, ids)
        other = call_of(operation, {name: unknown_id(value) for name, value in ids.items()})
        for name, door in (
            ("http", service_interfaces.http),
            ("command", service_interfaces.command),
        ):
            answer = door("mi300x", operation, given)
            named = [i.name for i in operation.inputs if i.place == "path" and i.name in ids]
            if named and answer.status != 403:
                twin = door("mi300x", operation, other)
                value, unreal = given[named[0]], other[named[0]]
                same = answer.text.replace(value, "X") == twin.text.replace(unreal, "X")
                if answer.status != 404 or not same:
                    wrong.append((operation.name, name, answer.status, answer.text[-200:]))
            elif answer.status < 400 and any(secret in answer.text for secret in secrets):
                wrong.append((operation.name, name, answer.status, answer.text[-200:]))
            if any(i.name == "hardware" and i.place == "query" for i in operation.inputs):
                about = door("mi300x", operation, {**given, "hardware": "h100"})
                if about.status != 404:
                    wrong.append((operation.name, name, about.status, "hardware=h100"))
    for tool, arguments in TOOL_ARGUMENTS.items():
        answer = service_interfaces.tool("mi300x", tool, with_ids(arguments, ids))
        sent = {ids[word] for word in map(str, arguments.values()) if word in ids}
        if any(secret in answer.text for secret in secrets - sent):
            wrong.append((tool, "tool", answer.status, answer.text[-200:]))
    assert wrong == []


def test_key_of_chip_sees_its_records(service_interfaces: ServiceInterfaces) -> None:
    """Check of the test above: the records can be seen."""
    planted = service_interfaces.service.planted
    ids = planted_ids(planted)
    unseen = {}
    for operation in operations():
        if operation.method == "GET" and not operation.whole_store:
            answer = service_interfaces.http("h100", operation, call_of(operation, ids))
            if answer.status != 200:
                unseen[operation.name] = answer.status
    # The planted run and evaluation have no measurements, the manuals no test.
    assert unseen == {"node_record": 404, "show_evaluation": 404, "show_acceptance": 404}
    listed = ("list_documents", "list_runs", "list_trajectories", "list_skills", "list_jobs")
    by_name = {operation.name: operation for operation in operations()}
    for name in listed:
        text = service_interfaces.http("h100", by_name[name], {}).text
        assert any(value in text for value in ids.values()), name


# -- equal answers


VOLATILE = ("retrieval_id", "outcome_id", "seconds", "heartbeat_at", "raw")
SERVICE_ALONE = {"evaluations", "runs", "trajectories", "service"}  # tags


def comparable(value: Any) -> Any:
    """JSON without fields that differ between equal calls."""
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items() if k not in VOLATILE}
    return [comparable(v) for v in value] if isinstance(value, list) else value


def reads(ids: dict[str, str]) -> Iterator[tuple[Operation[Any, Any], dict[str, Any]]]:
    """Operations that only read, with existing ids."""
    for operation in operations():
        if not operation.changes and operation.name != "metrics":
            yield operation, call_of(operation, ids)


def missing(ids: dict[str, str]) -> Iterator[tuple[Operation[Any, Any], dict[str, Any]]]:
    """Operations that need an id, with an unknown one."""
    for operation in operations():
        if any(i.place == "path" for i in operation.inputs):
            yield operation, call_of(operation, {n: unknown_id(value) for n, value in ids.items()})


def mistyped(ids: dict[str, str]) -> Iterator[tuple[Operation[Any, Any], dict[str, Any]]]:
    """Operations that take JSON, with an unknown field."""
    for operation in operations():
        if operation.model is not None and operation.name != "register_hardware":
            given = call_of(operation, ids)
            field = {"surely_not": 1}
            yield operation, given | ({operation.whole: field} if operation.whole else field)


RETRIEVALS: tuple[Any, ...] = (
    {"signal": "memory_bound", "hardware": "h100"},
    {"query": "how wide should a load be?", "hardware": "h100", "k": 7},
    {"log": "ptxas info : 8 bytes spill stores, 8 bytes spill loads", "hardware": "h100"},
    {"metrics": {"dram__throughput.avg.pct_of_peak_sustained_elapsed": 91}, "k": 3},
    {"signals": ["register_spill", "memory_bound"], "roles": ["warps"], "hardware": "h100"},
    {"profile": "4000,,cycles,9,100.00,,\n9000,,instructions,9,100.00,,", "k": 3},
    {"query": "barriers", "categories": "guidance,hardware", "hardware": "h100", "log": " "},
    {},
    {"signal": "memory_bond"},
    {"signals": ["memory_bond"]},
    {"query": "q", "hardware": "h1000"},
    {"query": "q", "harware": "h100"},
    {"query": 7, "metrics": {"a": True}},
    {"query": "q", "k": 0},
    {"profile": "of no profiler"},
    {"query": "q", "roles": ["tile_q"]},
    {"query": "q", "problem": {"weight": 1}},
    {"query": "x" * 20_001},
    [],
)


def retrievals(ids: dict[str, str]) -> Iterator[tuple[Operation[Any, Any], dict[str, Any]]]:
    """Retrieval requests, valid and invalid."""
    for request in RETRIEVALS:
        yield TOOLS["retrieve_context"], {"request": request}


@pytest.mark.parametrize(
    ("calls", "least"), [(reads, 35), (missing, 30), (mistyped, 15), (retrievals, 19)]
)
def test_all_interfaces_give_equal_answers(
    service_interfaces: ServiceInterfaces, calls: Any, least: int
) -> None:
    wrong, compared = [], 0
    with closing(CommandTarget(service_interfaces.service.services.settings)) as here:
        for operation, given in calls(planted_ids(service_interfaces.service.planted)):
            first = service_interfaces.http("admin", operation, given)
            others = [
                service_interfaces.command("admin", operation, given),
                carried_out(here, operation, given),
            ]
            if operation.tag in SERVICE_ALONE and others[1].code == "unavailable":
                others.pop()  # only by a service
            for other in others:
                same = (first.status, comparable(first.body)) == (
                    other.status,
                    comparable(other.body),
                )
                if not same and not (operation.produces and first.status == other.status == 200):
                    wrong.append((operation.name, first[:2], first.text[-300:], other.text[-300:]))
            compared += 1
    assert wrong == []
    assert compared >= least


def test_client_method_answer_equals_its_route(service_interfaces: ServiceInterfaces) -> None:
    ids = planted_ids(service_interfaces.service.planted)
    admin = service_interfaces.service.secrets["admin"]
    with Kernlore(service_interfaces.service.url, key=admin, timeout=60) as client:
        for name, (operation, _) in METHODS.items():
            given = call_of(operation, ids)
            body = service_interfaces.http("admin", operation, given).body
            result = getattr(client, name)(**given.pop(operation.whole, given))
            raw = body if result is None else getattr(result, "raw", result)
            expected = body[name] if isinstance(result, list) else body
            assert comparable(raw) == comparable(expected), name
            if dataclasses.is_dataclass(result) and not isinstance(result, type):
                fields = comparable(plain(dataclasses.asdict(result)))
                assert within(fields, comparable(body)), name


def within(part: Any, whole: Any) -> bool:
    """Whether a tool's result is a part of the route's answer."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(k in whole and within(v, whole[k]) for k, v in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(within, part, whole))
    return bool(part == whole)


def test_tool_answers_with_fields_of_its_operation(service_interfaces: ServiceInterfaces) -> None:
    ids = planted_ids(service_interfaces.service.planted)
    inputs: Mapping[str, Mapping[str, Any]] = {
        "retrieve_context": {"request": {"query": QUESTION}},
        "search_manual": {
            "request": {"query": QUESTION, "task": "ask", "k": 8, "fields": ["excerpts", "hints"]}
        },
        "lookup_symbol": {"hardware_id": "h100", "q": "cp.async", "limit": 5},
        "report_outcome": {"retrieval_id": ids["retrieval_id"], "used": []},
    }
    for tool, given in inputs.items():
        answer = service_interfaces.tool("admin", tool, with_ids(TOOL_ARGUMENTS[tool], ids))
        route = service_interfaces.http("admin", TOOLS[tool], given)
        fields = {n: v for n, v in answer.body.items() if n != "hint"}  # in terms of the tools
        assert not answer.code and within(comparable(fields), comparable(route.body)), tool
    nothing = {name: unknown_id(value) for name, value in ids.items()}
    unknown = {
        tool: service_interfaces.tool("admin", tool, with_ids(arguments, nothing)).code
        for tool, arguments in TOOL_ARGUMENTS.items()
        if with_ids(arguments, nothing) != arguments
    }
    assert len(unknown) == 14
    assert set(unknown.values()) == {"not_found", "unknown_hardware"}, unknown


def test_generated_files_are_current() -> None:
    for path, text in generated_files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run `python -m api.operations`"
