"""Cards that a model proposes, over HTTP on loopback: stored if they quote the manual, unused until
a person accepts them, and preserved when the manual is read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from api.section_models import SectionModel, section_model
from ingestion.symbols.proposals import CardProposals, NotCards, propose_cards, rows_of
from kb.catalog.knowledge import symbols
from kb.catalog.knowledge.symbols import Symbol, SymbolStatus
from kb.errors import InvalidRequest, Unavailable
from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer, failure

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=8)

MANUAL = """\
# Orbit assembler

## Opcodes

| Opcode | Operands | Operation |
|---|---|---|
| ldt | dst, [addr] | load a tile |
| stt | [addr], src | store a tile |

## Waiting for other lanes

Lanes drift apart. Where one needs what another wrote, write `vsync lanes, mask` between them: it
holds each lane until all lanes of the mask have come there. At most 128 lanes may wait at once.
The value of `mask` is a
register.

```orbit
    stt [x1], t0
    vsync 64, m0
    ldt t0, [x2]
```

## History

The project began in a garage.
"""
VSYNC = {
    "name": "vsync",
    "kind": "instruction",
    "signature": "vsync lanes, mask",
    "operands": [{"operand": "lanes"}, {"operand": "mask", "meaning": "is a register."}],
    "meaning": "it holds each lane until all lanes of the mask have come there.",
    "limits": ["At most 128 lanes may wait at once."],
    "example": "vsync 64, m0",
}
HALF = {
    "name": "mask",
    "kind": "operator",  # an unknown kind
    "meaning": "The value of `mask` is a register.",
    "limits": ["It must be even."],  # invented
    "example": "mask = 3",  # invented
}
INVENTED = [
    {"name": "vfence", "kind": "instruction", "meaning": "Lanes drift apart."},
    {"name": "lanes", "kind": "keyword", "meaning": "the number of lanes that wait"},
    {"name": "ldt", "kind": "instruction", "meaning": "Lanes drift apart."},
    {"name": "Lanes drift", "kind": "keyword", "meaning": "Lanes drift apart."},
]


def answer(*cards: dict[str, Any]) -> Answered:
    return Answered(f"```json\n{json.dumps({'cards': cards})}\n```")


@pytest.fixture
def model_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answered], ModelServer]]:
    monkeypatch.setenv("OPENAI_API_KEY", "local-test-key-0123456789")
    pytest.importorskip("litellm", reason="the extra `llm` is not installed")
    servers: list[ModelServer] = []

    def start(answered: Answered) -> ModelServer:
        servers.append(ModelServer(lambda body, number: answered))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def upload(store: Store, text: str) -> str:
    return str(store.ingest("orbit.md", text, hardware=("h100",)).document_id)


def model_of(server: ModelServer) -> SectionModel:
    return section_model("openai/scripted", server.url)


def propose(store: Store, server: ModelServer, most: int = 9, **given: Any) -> CardProposals:
    return propose_cards(
        store.catalog,
        store.registry,
        "h100",
        model_of(server),
        "openai/scripted",
        languages=("orbit-asm",),
        transcripts=store.data_dir / "transcripts",
        most=most,
        **given,
    )


def cards(store: Store, *statuses: SymbolStatus) -> dict[str, Symbol]:
    """Without a status, the cards that prompts use."""
    with store.catalog.read() as connection:
        if statuses:
            rows = symbols.listed(connection, ("h100",), statuses=statuses)
        else:
            rows = symbols.listed(connection, ("h100",))
    return {row.name: row for row in rows}


def decide(store: Store, name: str, status: SymbolStatus) -> Symbol:
    return symbols.correct(
        store.catalog, cards(store, "proposed")[name].id, {"status": status}, "ana"
    )


def test_verbatim_fields_are_stored(
    store: Store, model_server: Callable[[Answered], ModelServer]
) -> None:
    upload(store, MANUAL)
    before = cards(store)
    assert set(before) == {"ldt", "stt"}
    server = model_server(answer(VSYNC, HALF, *INVENTED))
    lines: list[str] = []
    report = propose(store, server, say=lines.append)

    [body] = server.requests  # only the section that names symbols in code and gave no card
    assert "vsync 64, m0" in body["messages"][1]["content"]
    assert "garage" not in str(body["messages"]) and "load a tile" not in str(body["messages"])
    assert (report.sections, report.asked, report.proposed) == (1, 1, 6)
    assert report.kept == ["vsync", "mask"] and len(lines) == 1
    assert dict(report.refused) == {
        "its name is not in the section": 1,
        "neither its meaning nor its signature is in the section": 1,
        "there is a card of this name": 1,
        "its name is impossible in code": 1,
    }
    assert dict(report.dropped) == {"limit": 1, "example": 1}
    assert (report.fields_proposed, report.fields_kept) == (14, 8)
    assert json.loads(json.dumps(report.as_json()))["refused"] == dict(report.refused)

    vsync = cards(store, "proposed")["vsync"]
    assert (vsync.signature, vsync.example) == ("vsync lanes, mask", "vsync 64, m0")
    assert vsync.operands == (("lanes", ""), ("mask", "is a register."))
    assert vsync.limits == ("At most 128 lanes may wait at once.",)
    assert (vsync.origin, vsync.status) == ("model openai/scripted", "proposed")
    assert vsync.path[-1] == "Waiting for other lanes" and vsync.language == "orbit"
    assert vsync.ordinal > max(card.ordinal for card in before.values())
    mask = cards(store, "proposed")["mask"]
    assert mask.meaning == "The value of `mask` is a register." and mask.kind == "instruction"
    assert (mask.limits, mask.example, mask.language) == ((), "", "orbit-asm")


ASKED_ABOUT = """\
# Orbit handbook

## The window

Press `Show Max Memory` and wait. See [the page](https://example.org/a_page.html).

## Jumps

It goes on elsewhere:

```orbit
    jmp top
```

## Setting up

```sh
install_orbit --here
```

## Lanes

A lane is woken by wake_lane(n).

## Loads

`ldt` has its card.
"""


def test_only_sections_with_code_names_are_sent_to_model(
    store: Store, model_server: Callable[[Answered], ModelServer]
) -> None:
    upload(store, MANUAL.partition("## Waiting")[0])
    store.ingest("handbook.md", ASKED_ABOUT, hardware=("h100",))
    store.ingest("other.md", MANUAL, hardware=("mi300x",))
    server = model_server(answer())
    report = propose(store, server)
    shown = [body["messages"][1]["content"].split("\n\n")[:2] for body in server.requests]
    assert shown == [
        ["Section: Orbit handbook > Jumps", "Names in code that no card has yet: jmp"],
        ["Section: Orbit handbook > Lanes", "Names in code that no card has yet: wake_lane"],
    ]
    assert (report.sections, report.asked, report.kept) == (2, 2, [])


def test_proposals_are_unused_until_accepted(
    store: Store, model_server: Callable[[Answered], ModelServer]
) -> None:
    upload(store, MANUAL)
    propose(store, model_server(answer(VSYNC, HALF)))
    assert set(cards(store)) == {"ldt", "stt"}
    assert decide(store, "vsync", "accepted").status == "accepted"
    decide(store, "mask", "rejected")
    assert set(cards(store)) == {"ldt", "stt", "vsync"}
    assert set(cards(store, "rejected")) == {"mask"} and not cards(store, "proposed")
    with pytest.raises(InvalidRequest, match="no proposal"):
        symbols.correct(store.catalog, cards(store)["ldt"].id, {"status": "rejected"}, "ana")
    with pytest.raises(InvalidRequest, match="status"):
        symbols.correct(store.catalog, cards(store)["vsync"].id, {"status": "proposed"}, "ana")


def test_proposals_survive_new_version_until_their_sentence_goes(
    store: Store, model_server: Callable[[Answered], ModelServer]
) -> None:
    document = upload(store, MANUAL)
    propose(store, model_server(answer(VSYNC, HALF)))
    first = decide(store, "vsync", "accepted")
    symbols.correct(store.catalog, first.id, {"example": "vsync 32, m1"}, "ana")

    assert upload(store, MANUAL.replace("## Waiting", "## On waiting")) == document
    again = cards(store)["vsync"]
    assert (again.version, again.status, again.example) == (2, "accepted", "vsync 32, m1")
    assert again.path[-1] == "On waiting for other lanes" and again.corrected
    assert set(cards(store, "proposed")) == {"mask"}

    upload(store, MANUAL.replace("At most 128", "At most 64"))
    assert cards(store)["vsync"].limits == () and cards(store)["vsync"].meaning == again.meaning

    gone = MANUAL.replace("write `vsync lanes, mask` between them: it\nholds each", "it holds each")
    upload(store, gone.replace("vsync", "vwait"))
    assert set(cards(store)) == {"ldt", "stt"} and set(cards(store, "proposed")) == {"mask"}
    upload(store, MANUAL)
    assert cards(store)["vsync"].limits == ("At most 128 lanes may wait at once.",)

    reported = MANUAL.replace("| stt |", "| vsync | lanes | wait |\n| stt |")
    upload(store, reported)
    assert cards(store)["vsync"].origin == "structure"  # it takes precedence


def test_unmatched_proposal_is_not_an_unmatched_correction(
    store: Store, model_server: Callable[[Answered], ModelServer]
) -> None:
    document = upload(store, MANUAL)
    propose(store, model_server(answer(VSYNC)))
    upload(store, MANUAL + "\nMore.\n")
    assert store.documents.get(document).version.report["corrections_unmatched"] == []  # type: ignore[union-attr]


def test_stored_answer_is_reused(
    store: Store, model_server: Callable[[Answered], ModelServer]
) -> None:
    upload(store, MANUAL)
    server = model_server(answer(VSYNC))
    assert propose(store, server).kept == ["vsync"]
    report = propose(store, server)
    assert (report.asked, report.reused, report.kept) == (0, 1, []) and len(server.requests) == 1
    assert dict(report.refused) == {"there is a card of this name": 1}
    [stored] = (store.data_dir / "transcripts").iterdir()
    assert json.loads(stored.read_text())["section"][-1] == "Waiting for other lanes"
    upload(store, MANUAL.replace("drift apart", "part"))
    assert propose(store, server, most=1).asked == 1  # the text differs


@pytest.mark.parametrize("content", ["I see no names.", '{"cards": 3}', '["vsync"]', '{"cards": ['])
def test_answer_without_cards_is_an_error(content: str) -> None:
    with pytest.raises(NotCards):
        rows_of(content)


def test_unusable_answer_and_failing_model(
    store: Store, model_server: Callable[[Answered], ModelServer]
) -> None:
    upload(store, MANUAL)
    with pytest.raises(Unavailable, match="no such model"):
        propose(store, model_server(failure(404, "no such model")))
    report = propose(store, model_server(Answered("I see no names.")))
    assert report.asked == 1 and report.unusable[0].startswith("Orbit assembler > Waiting")
    report = propose(store, model_server(answer(VSYNC)))  # sent again: that answer was unusable
    assert (report.asked, report.kept) == (1, ["vsync"])
    upload(store, MANUAL + "\n## Fences\n\nWrite `vfence all` there.\n")
    report = propose(store, model_server(failure(404, "no such model")))
    assert (report.reused, report.left) == (1, 1) and "no such model" in report.stopped


def test_exactly_one_model_must_be_named() -> None:
    for names in ("", "openai/a,openai/b"):
        with pytest.raises(InvalidRequest, match="models"):
            section_model(names, None)
