"""A model reads sections over HTTP on loopback: what it writes must quote them, ranks answers, and
stays with a section over versions of its document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from api.section_models import section_model
from ingestion import readings
from ingestion.model_calls import CallLimits
from ingestion.readings import ReadingReport, SignalText
from kb.catalog.knowledge import passages
from kb.catalog.knowledge.passages import Patch
from kb.errors import Unavailable
from retrieval.answer import AnswerConfig, answer
from retrieval.request import RetrieveRequest
from tests.ingestion.section_model import Sections, serving
from tests.optimizer.search.synthesizers.llm.llm_servers import ModelServer, failure

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=9)

MANUAL = """\
# Orbit chip

## Lanes

Each lane has its registers and a counter of its steps, which software can read at any time.

## Ferries

A ferry carries rows between the shore and the deck. Send whole rows: a ferry leaves once every
sixteen steps, however little it carries, so half of a row costs as much as a row.

## History

The project began in a garage near the sea, with two people and a borrowed oscilloscope on a desk.
"""
SIGNALS = [SignalText("memory_bound", "Limited by memory bandwidth"), SignalText("timeout", "Late")]
FERRY = {
    "signal": "memory_bound",
    "grade": 2,
    "line": "why copies of half rows waste the bandwidth",
    "quote": "Send whole rows: a ferry leaves once every sixteen steps",
}
INVENTED = [
    {"signal": "timeout", "grade": 2, "line": "late", "quote": "a ferry leaves once every hour"},
    {"signal": "seasickness", "grade": 2, "line": "no signal", "quote": "A ferry carries rows"},
    {"signal": "timeout", "grade": 2, "quote": "A ferry carries rows"},
]
QUESTION = {
    "question": "is a partial copy cheaper?",
    "quote": "half of a row costs as much as a row",
}
MISQUOTED = {"question": "how long is the garage?", "quote": "the garage is ten meters long"}


def by_heading(lines: dict[str, dict[str, Any]]) -> Callable[[Sections], Any]:
    return lambda sections: {
        "sections": [
            {"section": number, "signals": [], "questions": [], **lines.get(heading, {})}
            for number, (heading, _) in sections.items()
        ]
    }


READER = by_heading(
    {"Ferries": {"signals": [FERRY, *INVENTED], "questions": [QUESTION, MISQUOTED, "no row"]}}
)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModelServer]]:
    monkeypatch.setenv("OPENAI_API_KEY", "local-test-key-0123456789")
    pytest.importorskip("litellm", reason="the extra `llm` is not installed")
    servers: list[ModelServer] = []

    def start(script: Callable[[Sections], Any]) -> ModelServer:
        servers.append(serving(script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def read(store: Store, server: ModelServer, most: int = 9, **more: Any) -> ReadingReport:
    model = section_model("openai/scripted", server.url)
    model.asker._settings = replace(model.asker._settings, retries=0)
    limits = CallLimits(most, at_once=2)
    return readings.read_sections(
        store.catalog, store.registry, "h100", model, SIGNALS, limits, **more
    )


def headings(store: Store, **request: Any) -> list[str]:
    """The sections of an answer, by words only."""
    asked = RetrieveRequest(hardware="h100", categories=("hardware",), **request)
    excerpts = answer(store.snapshots.current(), asked, AnswerConfig(None)).answer.excerpts
    return list(dict.fromkeys(e.section.split(" > ")[-1] for e in excerpts))


def upload(store: Store, text: str = MANUAL) -> None:
    store.ingest("orbit.md", text, hardware=("h100",), category="hardware")


def test_reading_ranks_answers_and_keeps_only_what_the_section_says(
    store: Store, served: Callable[..., ModelServer]
) -> None:
    upload(store)
    assert headings(store, signal="memory_bound")[0] != "Ferries"
    assert "Ferries" not in headings(store, query="partial copy cheaper")
    server = served(READER)
    report = read(store, server)
    assert (report.sections, report.read, report.empty, report.left) == (3, 3, 2, 0)
    assert report.lines == 2
    assert report.dropped == {
        "its quote is not in the section": 2,
        "unknown signal": 1,
        "no line": 1,
    }
    spent = report.spent
    assert (spent.calls, spent.tokens_in, spent.tokens_out, spent.usd) == (1, 100, 20, None)
    assert report.tokens_per_thousand_pages == pytest.approx(120_000 / report.pages)
    assert headings(store, signal="memory_bound")[0] == "Ferries"
    assert headings(store, query="partial copy cheaper")[0] == "Ferries"

    again = read(store, server)
    assert (again.known, again.read, again.spent.calls, len(server.requests)) == (3, 0, 0, 1)


def test_reading_stays_with_its_text(store: Store, served: Callable[..., ModelServer]) -> None:
    upload(store)
    server = served(READER)
    read(store, server)
    upload(store, MANUAL.replace("two people", "three people"))
    assert headings(store, signal="memory_bound")[0] == "Ferries"
    later = read(store, server)
    assert (later.known, later.read) == (2, 1)

    [passage] = [
        p for p in store.snapshots.current().load(range(100)).values() if "ferry" in p.text
    ]
    text = "A ferry is a boat that carries rows over the sea, as many as there are of them on deck."
    passages.correct(store.catalog, passage.id, Patch(text=text), "ana")
    assert "Ferries" not in headings(store, query="partial copy cheaper")
    assert read(store, server).read == 1


def test_failed_calls_leave_sections_for_the_next_time(
    store: Store, served: Callable[..., ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "MAX_SECTIONS", 1)
    upload(store)
    broken = served(lambda sections: failure(400, "no such model"))
    with pytest.raises(Unavailable, match="no such model"):
        read(store, broken)
    unsound = served(
        lambda sections: (
            failure(400, "out of credit")
            if "History" in str(sections)
            else {"sections": []}
            if "Ferries" in str(sections)
            else READER(sections)
        )
    )
    report = read(store, unsound)
    assert (report.read, report.left, report.spent.left) == (1, 2, 0)
    assert sorted(why.partition(":")[0] for why in report.spent.failed) == [
        "the answer names no section",
        "the call of the model failed",
    ]
    assert "Ferries" in headings(store, query="ferry rows")
    server = served(READER)
    bounded = read(store, server, most=1)
    assert (bounded.read, bounded.left, bounded.spent.left) == (1, 1, 1)
    assert "limit" in bounded.spent.stopped
    assert read(store, server).left == 0
