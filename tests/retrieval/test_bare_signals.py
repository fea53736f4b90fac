"""The order of an answer for a signal alone, and the exclusions by the languages of a chip."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from ingestion.read import REFERENCE
from kb.answers import Answer
from kb.catalog import tables as t
from kb.catalog.skills.reading import SkillHead
from retrieval.compose.skill_choice import is_for_any
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import Retriever
from retrieval.request import RetrieveRequest
from retrieval.search.by_signal import speaks_of_other_machines, states_size
from retrieval.search.language_words import foreign_words, is_foreign_heading
from retrieval.search.titles import Titles, contains_signal
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=3)

TITLES = Titles(load_signals())
LONG = " ".join(f"Bytes of row {n} are read once when place {n} is near." for n in range(12))
LANGUAGES = {
    "hip": "Wavefronts read 64 lanes of a row, and memory bandwidth is shared by dies.",
    "triton": "Programs mask their loads; block pointers advance over columns of a tensor.",
    "cute": "Layouts compose, copy atoms are partitioned, and bandwidth follows the atoms.",
}
CHIP = f"""\
# Manual of the chip

## Shared memory bandwidth is 128 bytes a cycle

Keep data in shared memory: the memory bandwidth of shared memory moves many bytes, and memory
bandwidth is what a tile that is read often needs. Larger transfers use the full bandwidth.

## Memory bound: count bytes first

First sentence about HBM. Count what is fetched, then what is needed, before a tile is changed.
{LONG}

## Latency bound

Loads wait for memory bandwidth where too few bytes are in flight.
"""
NOTES = """\
# Notes on the chip

## When the port is full

A kernel is memory-bound from 90 % of the port on: keep the next operator in the slab, and read
bursts of 256 bytes.

## Installation

Run the installer twice.
"""
UNPREPARED = """\
# Handbook of a chip

## Slabs

The slab port moves 32 bytes from DRAM per cycle, and its bandwidth limits most kernels: fuse
operators and reuse what is loaded, because global memory traffic is what a kernel waits for.

## Events

### First group

`SLAB_PORT_BUSY` counts when the slab port is taken.

### Second group

`ROW_BUFFER_HELD` counts when a row stays open.
"""
OF_AN_OPERATOR = """\
# Notes on another chip

## Attention: keys share the port

`memory_bound` decoding reads a key once for the queries of a group.
"""
GENERAL = """\
# Memory bound

## Memory bound: how to check, and when to stop

`memory_bound` is over when the memory bandwidth is reached. Count bytes of memory bandwidth again.

## On a CPU: memory bound loops

`memory_bound` loops of a CPU read memory bandwidth through caches, so block the loops.

## What memory bound means

`memory_bound` says that the bus is full. Fuse what comes next, so that an intermediate result is
never written.
"""
ATTENTION = """\
# Attention

## The memory bandwidth of keys

`memory_bound` attention reads keys at the memory bandwidth, so share them among queries.
"""


@pytest.fixture(scope="module")
def retriever(module_store: Store) -> Retriever:
    store = module_store
    store.submit("chip.md", CHIP, hardware=("h100",))
    store.submit("notes.md", NOTES, hardware=("a100",))
    store.submit("handbook.md", UNPREPARED, hardware=("h200",))
    store.submit("keys.md", OF_AN_OPERATOR, hardware=("mi300x",))
    store.submit("general.md", GENERAL, category="guidance")
    store.submit("attention.md", ATTENTION, category="guidance")
    for language, advice in LANGUAGES.items():
        text = f"# Memory bound {language}\n\n{advice}"
        store.submit(f"{language}.md", text, category="guidance", languages=(language,))
    store.submit("cute-h100.md", "# Layouts\n\nOf tiles.", hardware=("h100",), languages=("cute",))
    store.worker().drain()
    return store.retriever()


def answered(retriever: Retriever, **given: object) -> Answer:
    return retriever.retrieve(RetrieveRequest(**{"hardware": "h100", **given}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("signal", "heading", "least", "most"),
    [
        ("memory_bound", "Memory bound: count bytes first", 1.0, 1.0),
        ("memory_bound", "Ridge points: memory bound against compute bound", 0.3, 0.5),
        ("memory_bound", "Shared memory bandwidth is 128 bytes a cycle", 0.2, 0.4),
        ("memory_bound", "The HBM of this chip", 0.4, 0.6),
        ("memory_bound", "How to install it", 0.0, 0.0),
        ("bank_conflict", "Swizzles against bank conflicts", 0.9, 0.9),
        ("link_error", "The host link is 32 GB/s", 0.2, 0.4),
    ],
)
def test_heading_names_signal(signal: str, heading: str, least: float, most: float) -> None:
    assert least <= TITLES.affinity(heading, signal) <= most


def test_own_section_about_signal_is_first_and_unique(retriever: Retriever) -> None:
    excerpts = answered(retriever, signal="memory_bound").excerpts
    sections = [e.section.rpartition(" > ")[2] for e in excerpts]
    assert sections[0] == "Memory bound: count bytes first"
    assert "What memory bound means" in sections[:3]
    assert len(sections) == len(set(sections))
    assert excerpts[0].text.startswith("First sentence about HBM.")
    assert excerpts[0].text.rstrip().endswith("place 11 is near.")


@pytest.mark.parametrize(
    ("signal", "heading", "named"),
    [
        ("memory_bound", "Latency bound: two loads in flight", 1.0),
        ("memory_bound", "Memory bound, and latency bound beside it", 0.0),
        ("memory_bound", "The queues of this chip", 0.0),
        ("latency_bound", "Latency bound: two loads in flight", 0.0),
    ],
)
def test_heading_is_the_title_of_another_signal(signal: str, heading: str, named: float) -> None:
    assert TITLES.of_another(heading, signal) == named


def test_context_starts_with_chip_and_is_about_signal(retriever: Retriever) -> None:
    answer = answered(retriever, signal="memory_bound")
    cited = [part.citation.rpartition(", ")[2] for part in answer.parts]
    assert cited[0] == "Memory bound: count bytes first"
    assert "What memory bound means" in cited
    assert "Latency bound" not in cited
    other = [part.citation for part in answered(retriever, signal="latency_bound").parts]
    assert other[0].endswith("Latency bound") and not any("bytes first" in c for c in other)


@pytest.mark.parametrize("op", [None, "softmax", "attention"])
def test_operator_guide_is_only_for_that_operator(retriever: Retriever, op: str | None) -> None:
    excerpts = answered(retriever, signal="memory_bound", op=op).excerpts
    titles = [excerpt.document.title for excerpt in excerpts]
    assert ("Attention" in titles) is (op == "attention") and "Memory bound" in titles


def test_meaning_and_remedy_precede_checks_and_other_machines_are_excluded(
    retriever: Retriever,
) -> None:
    answer = answered(retriever, signal="memory_bound")
    headings = [excerpt.section.rpartition(" > ")[2] for excerpt in answer.excerpts]
    meaning = headings.index("What memory bound means")
    assert meaning < headings.index("Memory bound: how to check, and when to stop")
    assert "On a CPU: memory bound loops" not in headings


def test_missing_section_about_signal_gives_hint(retriever: Retriever) -> None:
    sentence = "No document about NVIDIA H100 has a section on"
    assert not any(sentence in h for h in answered(retriever, signal="memory_bound").hints)
    (hint,) = answered(retriever, signal="at_roofline").hints
    assert hint.startswith(sentence) and "kernlore ingest --hardware h100 FILE" in hint


@pytest.mark.parametrize("op", [None, "attention"])
def test_own_remedy_for_requested_operator_is_first(retriever: Retriever, op: str | None) -> None:
    excerpts = answered(retriever, hardware="mi300x", signal="memory_bound", op=op).excerpts
    first = excerpts[0].section.rpartition(" > ")[2]
    assert (first == "Attention: keys share the port") is (op == "attention")


def test_own_remedy_whose_text_names_signal_is_first(retriever: Retriever) -> None:
    answer = answered(retriever, hardware="a100", signal="memory_bound")
    sections = [e.section.rpartition(" > ")[2] for e in answer.excerpts]
    assert sections[0] == "When the port is full" and "What memory bound means" in sections
    assert not any("No document about" in hint for hint in answer.hints)
    assert answer.parts[0].citation.endswith("When the port is full")


def test_manual_about_signal_precedes_general_text(retriever: Retriever) -> None:
    answer = answered(retriever, hardware="h200", signal="memory_bound")
    sections = [e.section.rpartition(" > ")[2] for e in answer.excerpts]
    assert sections[:2] == ["Slabs", "What memory bound means"]


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Two software-managed on-chip SRAMs, a 24MiB SBUF and a\n2MiB PSUM.", True),
        ("Each core has 228 KB of shared memory.", True),
        ("Bandwidth falls if the stride of an SBUF access exceeds 16 KiB.", False),
        ("The device has 32 GiB of HBM.", False),
    ],
)
def test_text_states_size_of_scratchpad(text: str, stated: bool) -> None:
    assert states_size(text, "shared_memory_limit") == stated
    assert not states_size(text, "memory_bound")


@pytest.mark.parametrize(
    ("metric", "section"),
    [("ROW_BUFFER_HELD", "Second group"), ("unit.slab_port_busy", "First group")],
)
def test_text_about_given_metric_is_first(retriever: Retriever, metric: str, section: str) -> None:
    given = {"signal": "memory_bound", "metrics": {metric: 0.9}}
    first = answered(retriever, hardware="h200", categories=("hardware",), **given).excerpts[0]
    assert first.section.endswith(section)


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("`memory_bound` above 90 %", True),
        ("Memory-bound kernels", True),
        ("it is memory bound.", True),
        ("memory boundary", False),
        ("shared memory, bound to a tile", False),
    ],
)
def test_text_names_signal(text: str, called: bool) -> None:
    assert contains_signal(text, "memory_bound") is called


def test_skill_for_operators_needs_named_operator() -> None:
    def head(*ops: str) -> SkillHead:
        return SimpleNamespace(scopes=SimpleNamespace(ops=ops))  # type: ignore[return-value]

    assert is_for_any(head())
    assert not is_for_any(head("conv")) and not is_for_any(head("softmax", "matmul"))


@pytest.mark.parametrize(
    ("heading", "languages", "foreign"),
    [
        ("On a CPU: the load ports", ("triton", "cuda"), True),
        ("On a CPU: the load ports", ("cpp",), False),
        ("On a CPU: the load ports", ("ownlang",), True),
        ("Tiles for the L2", ("triton",), False),
    ],
)
def test_heading_names_its_machines(
    heading: str, languages: tuple[str, ...], foreign: bool
) -> None:
    assert is_foreign_heading(heading, languages) is foreign


def test_query_words_rank_passages_as_without_signal(retriever: Retriever) -> None:
    requested = answered(retriever, signal="memory_bound", query="bytes of shared memory a cycle")
    assert requested.excerpts[0].section.endswith("Shared memory bandwidth is 128 bytes a cycle")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, {"triton", "cute"}),  # declared, and named by a document of the chip
        ({"language": "cute"}, {"cute"}),
        ({"hardware": "mi300x"}, {"triton"}),
        ({"hardware": None}, {"hip", "triton", "cute"}),
    ],
)
def test_only_languages_of_chip_are_shown(
    retriever: Retriever, given: dict[str, str], shown: set[str]
) -> None:
    excerpts = answered(retriever, signal="memory_bound", k=20, **given).excerpts
    titles = {e.document.title.rpartition(" ")[2] for e in excerpts}
    assert titles & {"hip", "triton", "cute"} == shown


def test_answer_is_deterministic(retriever: Retriever) -> None:
    first, second = (answered(retriever, signal="latency_bound") for _ in range(2))
    assert [e.id for e in first.excerpts] == [e.id for e in second.excerpts]
    assert first.context == second.context


@pytest.mark.parametrize(
    ("text", "languages", "count"),
    [
        ("Each warp reads 128 bytes; warps of a thread block share them.", ("cpp",), 3),
        ("Each warp reads 128 bytes; warps of a thread block share them.", ("triton", "cuda"), 0),
        ("Each warp reads 128 bytes.", (), 0),
        ("Each warp reads 128 bytes.", ("novac",), 1),
        ("Vectorise with AVX2 intrinsics.", ("triton", "hip"), 2),
        ("A warped SMALL surface.", ("cpp",), 0),
    ],
)
def test_words_of_other_machines(text: str, languages: tuple[str, ...], count: int) -> None:
    assert foreign_words([text], languages) == count


@pytest.mark.parametrize(
    ("heading", "text", "languages", "foreign"),
    [
        ("Padding", "Pad rows, and check with compute-sanitizer and ptxas.", ("pallas",), True),
        ("Padding", "Pad rows, and check with compute-sanitizer and ptxas.", ("cuda",), False),
        ("Padding", "Pad rows, and check with compute-sanitizer.", ("pallas",), True),
        ("Padding", "Pad rows by one element.", ("pallas",), False),
        ("Padding", "Check with compute-sanitizer.", ("cpp",), False),
        ("Padding", "A warp of a GPU reads rows.", ("novac",), True),
        ("Padding", "A warp of a GPU reads rows.", (), False),
    ],
)
def test_text_for_other_machines(
    heading: str, text: str, languages: tuple[str, ...], foreign: bool
) -> None:
    mark = SimpleNamespace(path=("Guide", heading), text=text)
    assert speaks_of_other_machines([mark], languages) is foreign  # type: ignore[list-item]


def test_reference_page_ranks_below_prose(store: Store) -> None:
    table = "| Function | Syntax |\n| --- | --- |\n| `vadd` | `vadd d, a` adds two rows of it |\n"
    for name, more in (("page.md", "reference: true\n"), ("guide.md", "")):
        front = f"---\ntitle: {name}\n{more}hardware: [h100]\nlanguages: []\nsignals: []\n---\n"
        store.ingest(
            name, f"{front}# Rows\n\n## Adding rows\n\nIt adds the rows of two.\n\n{table}"
        )
    with store.catalog.read() as connection:
        rows = connection.execute(
            sa.select(t.documents.c.title, t.passages.c.prose).join(
                t.passages, t.passages.c.document_id == t.documents.c.id
            )
        ).all()
    assert {prose for title, prose in rows if title == "page.md"} == {REFERENCE}
    assert all(prose >= 0 for title, prose in rows if title == "guide.md")


def test_unknown_names_give_hint_without_error(retriever: Retriever) -> None:
    named = {"language": "tritn", "op": "softmx", "dtype": "float99"}
    hints = " ".join(answered(retriever, signal="memory_bound", **named).hints)
    assert "can be written in 'tritn'; its languages are" in hints
    assert "No operator is known as 'softmx'" in hints and "softmax" in hints
    assert "No element type is known as 'float99'" in hints
    named = {"language": "triton", "op": "layer_norm", "dtype": "torch.bfloat16"}
    hints = " ".join(answered(retriever, signal="memory_bound", **named).hints)
    assert " known as " not in hints and "written in" not in hints
