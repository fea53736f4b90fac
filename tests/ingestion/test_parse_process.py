"""Parsing in a child process: limits apply, the parent survives, errors keep their class."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ingestion.elements import (
    Box,
    Element,
    PageFailure,
    ParsedDocument,
    Table,
    document_from_json,
    document_to_json,
)
from ingestion.limits import DocumentLimits
from ingestion.parse_process import KILLED_TRIES, ParseLimits, ParserProcess, memory_is_enforced
from kb.errors import ParseFailed, Unavailable, UnsupportedFormat

pytestmark = pytest.mark.slow(seconds=15)

HERE = "tests.ingestion.test_parse_process"
SMALL = ParseLimits(memory_mib=1024, cpu_seconds=20, wall_seconds=20.0)


# Parsers that the child runs. The bytes of the file select the behaviour.
def echo(data: bytes, name: str, limits: DocumentLimits) -> ParsedDocument:
    """A parser that succeeds unless the file says otherwise."""
    order, _, rest = data.decode().partition(" ")
    if order == "bomb":
        hoard = [bytearray(64 * 1024 * 1024) for _ in iter(int, 1)]
        del hoard
    if order == "spin":
        while True:
            pass
    if order == "sleep":
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(rest).write_text(f"{os.getpid()} {grandchild.pid}")
        time.sleep(600)
    if order.startswith("die"):
        die(Path(rest), 2 if order == "die-twice" else 1000)
    if order == "refuse":
        raise UnsupportedFormat("not that one", hint="try another")
    if order == "crash":
        raise LookupError("a bug in the parser")
    if order == "chatter":
        print("a library that prints to standard output")
    return ParsedDocument((Element("text", f"{name} {os.getpid()}"),))


def die(deaths: Path, times: int) -> None:
    """Kill this process unless it has been killed `times` times."""
    count = len(deaths.read_text()) if deaths.exists() else 0
    deaths.write_text("x" * (count + 1))
    if count < times:
        os.kill(os.getpid(), signal.SIGKILL)


def written(folder: Path, text: str) -> Path:
    path = folder / "document.txt"
    path.write_text(text)
    return path


def echoing(limits: ParseLimits = SMALL) -> ParserProcess:
    return ParserProcess(limits, entry=f"{HERE}:echo")


def has_ended(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


def test_document_round_trips_through_json() -> None:
    table = Table((("a", "b"), ("c", "d")), (("1", "2"),), "Table 1")
    document = ParsedDocument(
        elements=(
            Element("title", "Straße |", level=2, boxes=(Box(0, "iv", 1.0, 2.0, 3.0, 4.5),)),
            Element("table", "t", table=table),
            Element("code", "x\n  y", language="c"),
        ),
        title="T",
        pages_seen=3,
        failures=(PageFailure(2, None, "scanned"),),
        warnings=("w",),
        front_matter={"signals": ["a"], "n": 1},
    )
    assert document_from_json(document_to_json(document)) == document


def test_real_parser_runs_in_child(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# Banks\n\nShared memory has 32 banks.\n")
    with ParserProcess(ParseLimits(memory_mib=2048)) as parser:
        document = parser.parse(path, "notes.md")
    assert [e.kind for e in document.elements] == ["title", "text"]
    assert "32 banks" in document.elements[1].text


def test_one_worker_parses_many_documents(tmp_path: Path) -> None:
    path = written(tmp_path, "ok")
    with echoing() as parser:
        texts = {parser.parse(path, "a").elements[0].text for _ in range(5)}
    assert len(texts) == 1


def test_worker_is_replaced_after_number_of_documents(tmp_path: Path) -> None:
    path = written(tmp_path, "ok")
    with echoing(ParseLimits(memory_mib=1024, recycle_after=2)) as parser:
        pids = [parser.parse(path, "a").elements[0].text for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_complaint_13_grown_worker_is_replaced(tmp_path: Path) -> None:
    path = written(tmp_path, "ok")
    with echoing(ParseLimits(memory_mib=1024, recycle_mib=1)) as parser:
        pids = {parser.parse(path, "a").elements[0].text for _ in range(2)}
    assert len(pids) == 2


@pytest.mark.skipif(not memory_is_enforced(), reason="this system has no address space limit")
def test_complaint_13_memory_bomb_fails_in_child(tmp_path: Path) -> None:
    with echoing(ParseLimits(memory_mib=512)) as parser:
        with pytest.raises(ParseFailed, match="out of memory") as caught:
            parser.parse(written(tmp_path, "bomb"), "bomb")
        assert caught.value.hint
        assert parser.parse(written(tmp_path, "ok"), "after").elements


def test_hanging_parser_is_killed_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    limits = ParseLimits(memory_mib=1024, wall_seconds=2.0)
    with echoing(limits) as parser:
        with pytest.raises(ParseFailed, match="out of time"):
            parser.parse(written(tmp_path, f"sleep {note}"), "slow")
        child, grandchild = map(int, note.read_text().split())
        assert has_ended(child) and has_ended(grandchild)
        assert parser.parse(written(tmp_path, "ok"), "after").elements


def test_parser_over_its_cpu_limit_is_stopped(tmp_path: Path) -> None:
    with (
        echoing(ParseLimits(memory_mib=1024, cpu_seconds=1)) as parser,
        pytest.raises(ParseFailed, match="out of time: the parser used 1 s of CPU"),
    ):
        parser.parse(written(tmp_path, "spin"), "spin")


def test_document_that_always_kills_its_parser_fails(tmp_path: Path) -> None:
    with echoing() as parser:
        with pytest.raises(ParseFailed, match="each of 3 times") as failed:
            parser.parse(written(tmp_path, f"die {tmp_path / 'deaths'}"), "victim")
        assert "ends its parser" in failed.value.hint
        assert len((tmp_path / "deaths").read_text()) == KILLED_TRIES
        assert parser.parse(written(tmp_path, "ok"), "after").elements


def test_document_is_parsed_again_after_killed_parser(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("x")  # the last of three attempts succeeds
    with echoing() as parser:
        assert parser.parse(written(tmp_path, f"die-twice {deaths}"), "victim").elements
    assert len(deaths.read_text()) == KILLED_TRIES


def test_documents_are_parsed_concurrently(tmp_path: Path) -> None:
    slow, note = tmp_path / "slow.txt", tmp_path / "pids"
    slow.write_text(f"sleep {note}")
    parser = ParserProcess(SMALL, entry=f"{HERE}:echo", children=2)
    refused: list[BaseException] = []

    def read() -> None:
        try:
            parser.parse(slow, "slow")
        except Unavailable as error:
            refused.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert eventually(note.exists)
        assert parser.parse(written(tmp_path, "ok"), "quick").elements
    finally:
        parser.close()  # not delayed by the slow one
    reader.join(5.0)
    assert not reader.is_alive() and refused


def test_parser_exits_with_its_parent(tmp_path: Path) -> None:
    note, scratch = tmp_path / "note", tmp_path / "scratch"
    scratch.mkdir()
    path = written(tmp_path, f"sleep {note}")
    program = (
        "import sys; from pathlib import Path; from ingestion.parse_process import ParserProcess;"
        f"ParserProcess(entry='{HERE}:echo').parse(Path(sys.argv[1]), 'a document')"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        assert eventually(lambda: note.exists() and len(note.read_text().split()) == 2)
    finally:
        parent.kill()
        parent.wait()
    assert eventually(lambda: all(has_ended(int(pid)) for pid in note.read_text().split()))
    assert eventually(lambda: list(scratch.iterdir()) == [])


def test_errors_keep_their_class(tmp_path: Path) -> None:
    with echoing() as parser:
        with pytest.raises(UnsupportedFormat, match="not that one") as caught:
            parser.parse(written(tmp_path, "refuse"), "x")
        assert caught.value.hint == "try another"
        with pytest.raises(ParseFailed, match="LookupError: a bug in the parser"):
            parser.parse(written(tmp_path, "crash"), "x")
        assert parser.parse(written(tmp_path, "chatter"), "x").elements


def test_three_threads_share_one_parser(tmp_path: Path) -> None:
    path = written(tmp_path, "ok")
    texts: list[str] = []
    with echoing() as parser:
        threads = [
            threading.Thread(
                target=lambda: texts.extend(
                    parser.parse(path, "a").elements[0].text for _ in range(3)
                )
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(texts) == 9 and len(set(texts)) == 1


def test_closed_parser_refuses(tmp_path: Path) -> None:
    parser = echoing()
    parser.close()
    with pytest.raises(Unavailable):
        parser.parse(written(tmp_path, "ok"), "x")
