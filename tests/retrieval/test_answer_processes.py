"""Processes beside the service's own give the answers that it gives, and may end at any time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kb.answers import Answer
from kb.errors import UnknownHardware
from kb.settings import Settings
from retrieval.answer_processes import NAME, AnswerProcesses
from retrieval.journal import Unwanted
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest
from retrieval.stages import stage, watching
from tests.catalogs import environment_of
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=20)

MANUAL = (
    "# Chip\n\n## Memory bound\n\nA kernel that is memory_bound moves fewer bytes when rows stay"
    " in shared memory.\n\n## Occupancy\n\nOccupancy falls with the registers of a thread.\n"
)
NOTHING = Unwanted(frozenset(), frozenset())
QUESTION = RetrieveRequest(query="registers of a thread", hardware="h100")
STARTED = 60.0  # seconds within which a process has to be there


@pytest.fixture
def store(tmp_path: Any, embedder: Any, parsers: Any, tagger: Any) -> Iterator[Store]:
    store = Store(tmp_path, embedder, parsers, tagger)
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    yield store
    store.catalog.close()


@pytest.fixture
def base(store: Store, model_cache: Any) -> Iterator[KnowledgeBase]:
    (store.data_dir / "models").symlink_to(model_cache)
    catalog = environment_of(store.data_dir).get("KERNLORE_CATALOG")  # of a process of its own
    base = KnowledgeBase(Settings(data_dir=store.data_dir, catalog=catalog))
    base.dense_ready = True
    yield base
    base.close()


@pytest.fixture
def processes(base: KnowledgeBase) -> Iterator[AnswerProcesses]:
    processes = AnswerProcesses(base.settings, 1)
    processes.start()
    until(lambda: processes.ready == 1)
    yield processes
    processes.stop()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + STARTED
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def children() -> set[int]:
    """Processes that answer for this one."""
    spawned = multiprocessing.active_children()
    return {child.pid for child in spawned if child.name == NAME and child.pid is not None}


def said(answer: Answer) -> dict[str, Any]:
    whole = answer.as_json()
    whole.pop("retrieval_id")
    return whole


def test_a_process_answers_as_the_service_does_and_says_where_its_time_went(
    base: KnowledgeBase, processes: AnswerProcesses
) -> None:
    stages: dict[str, float] = {}

    @stage("other")
    def asked() -> Any:
        return processes.answer(QUESTION, NOTHING)

    with watching(lambda name, seconds: stages.update({name: seconds})):
        answered = asked()
    assert answered is not None and answered.answer.excerpts
    assert said(answered.answer) == said(base.retriever.retrieve(QUESTION))
    assert stages["ranking"] > 0 and stages["context"] > 0


def test_a_signal_alone_and_a_wrong_request_stay_with_the_service(
    base: KnowledgeBase, processes: AnswerProcesses
) -> None:
    assert processes.answer(RetrieveRequest(signal="memory_bound"), NOTHING) is None
    unknown = RetrieveRequest(query="registers", hardware="no-such-chip")
    assert processes.answer(unknown, NOTHING) is None
    base.retriever.answer_elsewhere(processes.answer)
    with base.retriever.attendance.asked(), pytest.raises(UnknownHardware):
        base.retriever.retrieve(unknown)
    assert processes.ready == 1


def test_a_document_that_has_just_arrived_is_in_the_next_answer(
    store: Store, base: KnowledgeBase, processes: AnswerProcesses
) -> None:
    base.retriever.answer_elsewhere(processes.answer)
    with base.retriever.attendance.asked():  # else it is alone, and the service answers
        before = base.retriever.retrieve(QUESTION)
        text = "# More\n\n## Spilling\n\nRegisters of a thread that spill cost memory traffic.\n"
        store.ingest("more.md", text, hardware=("h100",))
        after = base.retriever.retrieve(QUESTION)
        until(lambda: processes.answer(QUESTION, NOTHING) is not None)
        later = processes.answer(QUESTION, NOTHING)
    assert "spill" not in before.context and "spill" in after.context
    assert later is not None and later.answer.context == after.context


def test_a_killed_process_is_replaced_and_the_service_answers_meanwhile(
    base: KnowledgeBase, processes: AnswerProcesses
) -> None:
    base.retriever.answer_elsewhere(processes.answer)
    [killed] = children()
    os.kill(killed, signal.SIGKILL)
    with base.retriever.attendance.asked():
        assert base.retriever.retrieve(QUESTION).excerpts
    until(lambda: processes.ready == 1)
    assert killed not in children() and len(children()) == 1
    assert processes.answer(QUESTION, NOTHING) is not None


def test_many_callers_are_answered_by_both_and_nothing_is_left_at_the_end(
    base: KnowledgeBase, processes: AnswerProcesses
) -> None:
    elsewhere = []

    def asked(request: RetrieveRequest, unwanted: Unwanted) -> Any:
        answered = processes.answer(request, unwanted)
        elsewhere.append(answered is not None)
        return answered

    base.retriever.answer_elsewhere(asked)
    answers: list[Answer] = []
    callers = [
        threading.Thread(
            target=lambda n=n: answers.append(
                base.retriever.retrieve(RetrieveRequest(query=f"registers {n}", hardware="h100"))
            )
        )
        for n in range(12)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(answers) == 12 and all(answer.excerpts for answer in answers)
    assert True in elsewhere
    base.retriever.close()  # writes what the log still holds
    with base.catalog.read() as connection:
        logged = connection.exec_driver_sql("SELECT count(*) FROM retrievals").scalar()
    assert logged == 12
    processes.stop()
    assert children() == set()


SERVICE = """
import multiprocessing, pathlib, sys, time
from kb.settings import Settings
from retrieval.answer_processes import AnswerProcesses

processes = AnswerProcesses(Settings(data_dir=pathlib.Path(sys.argv[1])), 2)
processes.start()
while processes.ready < 2:
    time.sleep(0.05)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


def test_processes_end_with_a_service_that_is_killed(base: KnowledgeBase) -> None:
    command = [sys.executable, "-c", SERVICE, str(base.settings.data_dir)]
    environment = os.environ | environment_of(base.settings.data_dir)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as service:
        assert service.stdout is not None
        answering = [int(pid) for pid in service.stdout.readline().split()]
        assert len(answering) == 2 and all(map(is_there, answering))
        service.kill()
    until(lambda: not any(map(is_there, answering)))


def is_there(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
