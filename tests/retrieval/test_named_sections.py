"""The section that defines a name of a log or a question comes first."""

from __future__ import annotations

import pytest

from kb.catalog.knowledge.symbols import Symbol
from retrieval.knowledge_base import Retriever
from retrieval.request import RetrieveRequest
from retrieval.search.by_names import is_distinct
from tests.fixtures import Store

FILLER = "\n\n".join(
    f"## Note {n}\n\nAn operand of the wrong type is reported by the compiler, see case {n}."
    for n in range(12)
)
MANUAL = f"""\
# Manual

{FILLER}

## Errors

| Code | Meaning |
| --- | --- |
| QX0417 | A queue is drained twice. |
| QX0418 | A tile is too wide. |

## Compiler error codes

| Code | Meaning | Remedy |
| --- | --- | --- |
| QC-1042 | slab overflow | Reduce the tile or the number of buffers. |
| QC-1043 | the deadline was missed: the kernel timed out | Split the loop. |

## Run-time faults

| Fault | Cause | Remedy |
| --- | --- | --- |
| QF-0x31 | A tile read behind its slab | Check the bounds of the load. |

## Instructions

| Instruction | Syntax | Meaning |
| --- | --- | --- |
| `vdrain.q` | `vdrain.q q, n` | Empties a queue. |
| `vadd.f` | `vadd.f d, a, b` | Adds two registers. |
| `load` | `load d, a` | Reads memory. |
"""


@pytest.fixture(scope="module")
def retriever(module_store: Store) -> Retriever:
    module_store.ingest("manual.md", MANUAL, hardware=("h100",))
    return module_store.retriever()


def first(retriever: Retriever, **given: str) -> str:
    request = RetrieveRequest(hardware="h100", **given)  # type: ignore[arg-type]
    return retriever.retrieve(request).excerpts[0].text


def test_error_code_gives_its_row(retriever: Retriever) -> None:
    log = "k.qs:7: QX0417 operand of the wrong type is reported by the compiler, see case"
    assert "QX0417" in first(retriever, log=log)


@pytest.mark.parametrize(
    ("log", "code", "signal", "remedy"),
    [
        ("QC-1042: slab overflow: needs 786432 bytes", "QC-1042", "compile_error", "Reduce the"),
        ("k.qs:3: QC-1043 at line 3", "QC-1043", "timeout", "Split the loop"),
        ("tile 7 stopped, QF-0x31, cycle 88213", "QF-0x31", "launch_error", "Check the bounds"),
    ],
)
def test_code_defined_by_manual_is_a_known_error(
    retriever: Retriever, log: str, code: str, signal: str, remedy: str
) -> None:
    answer = retriever.retrieve(RetrieveRequest(hardware="h100", log=log))
    (finding,), (known,) = answer.diagnosis.signals, answer.diagnosis.signatures
    assert (finding.id, finding.confidence) == (signal, "C")
    assert known["id"] == f"code-{code}" and remedy in known["remedy"] and known["line"] == log
    assert code in answer.excerpts[0].text and answer.hints == () and answer.moves == ()


def test_signature_takes_precedence_over_code(retriever: Retriever) -> None:
    log = "CUDA error: an illegal memory access was encountered (QC-1042)"
    (finding,) = retriever.retrieve(RetrieveRequest(hardware="h100", log=log)).diagnosis.signals
    assert (finding.id, finding.confidence) == ("illegal_memory_access", "A")


def test_name_in_question_gives_its_definition(retriever: Retriever) -> None:
    requested = "is an operand of the wrong type of vdrain.q reported by the compiler"
    assert "vdrain.q" in first(retriever, query=requested)


@pytest.mark.parametrize(
    ("name", "kind", "distinct"),
    [
        ("QX0417", "error", True),
        ("vadd.f", "instruction", True),
        (".tile", "directive", True),
        ("MVMUL", "instruction", True),
        ("load", "instruction", False),
        ("add", "function", False),
    ],
)
def test_common_word_is_not_a_name(name: str, kind: str, distinct: bool) -> None:
    card = Symbol(
        "sym_1", name, kind, "", "", (), "", (), "", (), (), "doc_1", "t", 1, "sec_1", (), 0
    )
    assert is_distinct(name, [card]) is distinct


def test_words_of_a_question_that_nothing_stored_has_are_named(retriever: Retriever) -> None:
    def hints(query: str, hardware: str | None = None) -> str:
        request = RetrieveRequest(query=query, hardware=hardware)
        return " ".join(retriever.retrieve(request).hints)

    question = "Does frobnicate_tile of ZanziLib quixotically drain a queue twice?"
    said = hints(question, "h100")
    assert "contains 'frobnicate_tile' and 'ZanziLib'" in said
    assert "queue" not in said and "quixotically" not in said
    assert "contains" not in hints("Why is a queue drained twice?", "h100")
    assert "contains" not in hints(question)  # no chip: its documents are not all that is stored


PRODUCTS = f"""\
# Products

{FILLER}

## VQDOT: products of four values

A repeat count of eight is required.

## Types of the library

The library qlib wraps the products of the chip; a repeat count belongs to its atoms.
"""


@pytest.mark.parametrize("question", ["QL_VQDOT_TT in qlib", "qlib's ql_vqdot_f_f"])
def test_part_of_a_joined_name_finds_section_titled_with_it(store: Store, question: str) -> None:
    store.ingest("products.md", PRODUCTS, hardware=("h100",))
    asked = f"Which repeat count does {question} need, an atom of the library?"
    answer = store.retriever().retrieve(RetrieveRequest(hardware="h100", query=asked))
    assert answer.excerpts[0].section.endswith("VQDOT: products of four values")


PACKED = """\
# Packed arithmetic

## Packed

Each packed instruction multiplies or adds four 8-bit values or two 16-bit values of a register.
Two operands are packed values; the third may be a scalar that each 8-bit value is multiplied by.
A dot product of packed 8-bit values accumulates in 32 bits.

### Packed dot product operations

| Mnemonic | Description |
| --- | --- |
| px.dot.b rd, rs1, rs2 | rd = rs1[0] * rs2[0] + rs1[1] * rs2[1] + rs1[2] * rs2[2] + ... |
| px.sdot.b rd, rs1, rs2 | rd = rd + rs1[0] * rs2[0] + rs1[1] * rs2[1] + rs1[2] * rs2[2] + ... |
"""


@pytest.mark.parametrize(
    ("question", "heading"),
    [
        ("which packed dot product instruction multiplies four 8-bit values", True),
        ("how are 8-bit values multiplied in a packed dot product", False),
    ],
)
def test_table_of_names_follows_its_heading(store: Store, question: str, heading: bool) -> None:
    store.ingest("packed.md", PACKED, hardware=("h100",))
    answer = store.retriever().retrieve(RetrieveRequest(hardware="h100", query=question))
    assert answer.excerpts[0].section.endswith("operations") is heading


def test_question_that_no_manual_of_the_chip_answers_has_a_hint(store: Store) -> None:
    store.ingest("packed.md", PACKED, hardware=("h100",))
    store.ingest("caches.md", "# Caches\n\nThe L2 cache of an A100 has 40 MB.", category="guidance")
    retriever = store.retriever()

    def hints(question: str) -> str:
        answer = retriever.retrieve(RetrieveRequest(hardware="h200", query=question))
        return " ".join(answer.hints)

    assert "No passage about NVIDIA H200" in hints("how large is the L2 cache")
    manual = "# H200\n\nThe L2 cache has 50 MB. Its clock is set by the driver."
    store.ingest("h200.md", manual, hardware=("h200",))
    assert "No excerpt states such a value" in hints("what is the clock frequency of the H200")
    assert "No passage about" not in hints("how large is the L2 cache")
