"""Parsing in a child: limits hold, the parent survives, errors keep their class."""

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
from ingestion.parse_process import (
    ParseLimits,
    ParserProcess,
    memory_is_enforced,
)
from kb.errors import ParseFailed, Unavailable, UnsupportedFormat

pytestmark = pytest.mark.slow(seconds=15)

HERE = "tests.ingestion.test_parse_process"
SMALL = ParseLimits(memory_mib=1024, cpu_seconds=20, wall_seconds=20.0)


# Parsers that the child runs. The bytes of the file say what to do.
def echo(data: bytes, name: str) -> ParsedDocument:
    """A parser that behaves, unless the file tells it not to."""
    order, _, rest = data.decode().partition(" ")
    if order == "bomb":
        hoard = []
        while True:
            hoard.append(bytearray(64 * 1024 * 1024))
    if order == "spin":
        while True:
            pass
    if order == "sleep":
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(rest).write_text(f"{os.getpid()} {grandchild.pid}")
        time.sleep(600)
    if order == "refuse":
        raise UnsupportedFormat("not that one", hint="try another")
    if order == "crash":
        raise LookupError("a bug in the parser")
    if order == "chatter":
        print("a library that prints to standard output")
    return ParsedDocument((Element("text", f"{name} {os.getpid()}"),))


def written(folder: Path, text: str) -> Path:
    path = folder / "document.txt"
    path.write_text(text)
    return path


def echoing(limits: ParseLimits = SMALL) -> ParserProcess:
    return ParserProcess(limits, entry=f"{HERE}:echo")


def gone(pid: int) -> bool:
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


def test_a_document_survives_the_way_through_json() -> None:
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


def test_the_real_parser_runs_in_the_child(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# Banks\n\nShared memory has 32 banks.\n")
    with ParserProcess(ParseLimits(memory_mib=2048)) as parser:
        document = parser.parse(path, "notes.md")
    assert [e.kind for e in document.elements] == ["title", "text"]
    assert "32 banks" in document.elements[1].text


def test_one_worker_reads_many_documents(tmp_path: Path) -> None:
    path = written(tmp_path, "ok")
    with echoing() as parser:
        texts = {parser.parse(path, "a").elements[0].text for _ in range(5)}
    assert len(texts) == 1


def test_a_worker_is_replaced_after_so_many_documents(tmp_path: Path) -> None:
    path = written(tmp_path, "ok")
    with echoing(ParseLimits(memory_mib=1024, recycle_after=2)) as parser:
        pids = [parser.parse(path, "a").elements[0].text for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_complaint_13_a_worker_that_grew_is_replaced(tmp_path: Path) -> None:
    path = written(tmp_path, "ok")
    with echoing(ParseLimits(memory_mib=1024, recycle_mib=1)) as parser:
        pids = {parser.parse(path, "a").elements[0].text for _ in range(2)}
    assert len(pids) == 2


@pytest.mark.skipif(not memory_is_enforced(), reason="this system has no address space limit")
def test_complaint_13_a_memory_bomb_ends_in_the_child(tmp_path: Path) -> None:
    with echoing(ParseLimits(memory_mib=512)) as parser:
        with pytest.raises(ParseFailed, match="out of memory") as caught:
            parser.parse(written(tmp_path, "bomb"), "bomb")
        assert caught.value.hint
        assert parser.parse(written(tmp_path, "ok"), "after").elements


def test_a_parser_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    limits = ParseLimits(memory_mib=1024, wall_seconds=2.0)
    with echoing(limits) as parser:
        with pytest.raises(ParseFailed, match="out of time"):
            parser.parse(written(tmp_path, f"sleep {note}"), "slow")
        child, grandchild = map(int, note.read_text().split())
        assert gone(child) and gone(grandchild)
        assert parser.parse(written(tmp_path, "ok"), "after").elements


def test_a_parser_that_burns_cpu_is_stopped(tmp_path: Path) -> None:
    with (
        echoing(ParseLimits(memory_mib=1024, cpu_seconds=1)) as parser,
        pytest.raises(ParseFailed, match="out of time: the parser used 1 s of CPU"),
    ):
        parser.parse(written(tmp_path, "spin"), "spin")


def test_kill_9_in_the_middle_of_a_document(tmp_path: Path) -> None:
    note = tmp_path / "pids"

    def kill_when_started() -> None:
        while not note.exists() or len(note.read_text().split()) < 2:
            time.sleep(0.02)
        os.kill(int(note.read_text().split()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill_when_started)
    with echoing() as parser:
        killer.start()
        with pytest.raises(ParseFailed, match="killed"):
            parser.parse(written(tmp_path, f"sleep {note}"), "victim")
        killer.join()
        assert gone(int(note.read_text().split()[1]))
        assert parser.parse(written(tmp_path, "ok"), "after").elements


def test_a_parser_ends_with_its_parent_in_the_middle_of_a_document(tmp_path: Path) -> None:
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
    assert eventually(lambda: all(gone(int(pid)) for pid in note.read_text().split()))
    assert eventually(lambda: list(scratch.iterdir()) == [])


def test_errors_come_back_as_what_they_were(tmp_path: Path) -> None:
    with echoing() as parser:
        with pytest.raises(UnsupportedFormat, match="not that one") as caught:
            parser.parse(written(tmp_path, "refuse"), "x")
        assert caught.value.hint == "try another"
        with pytest.raises(ParseFailed, match="LookupError: a bug in the parser"):
            parser.parse(written(tmp_path, "crash"), "x")
        assert parser.parse(written(tmp_path, "chatter"), "x").elements


def test_three_threads_share_a_parser(tmp_path: Path) -> None:
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


def test_a_closed_parser_refuses(tmp_path: Path) -> None:
    parser = echoing()
    parser.close()
    with pytest.raises(Unavailable):
        parser.parse(written(tmp_path, "ok"), "x")
