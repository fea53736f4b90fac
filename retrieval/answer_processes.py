"""Processes beside the service's own that answer retrievals.

A retrieval is computing, and a process of Python computes on one processor at a time: a service
with eight callers on eight processors answers no more than with one. Each process here opens the
data directory for itself, keeps words and vectors in memory, and reads; the log of retrievals stays
with the service. What a process cannot answer, because the documents have just changed or because
the request is wrong, the service answers itself.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
import threading
from collections.abc import Hashable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import structlog

from kb.errors import KernloreError
from kb.index.in_memory import KeptInMemory
from kb.index.near import NearIndex, is_in_memory
from kb.settings import Settings
from retrieval.journal import Answered, Unwanted
from retrieval.knowledge_base import KnowledgeBase
from retrieval.ranking import WEIGHTS
from retrieval.request import RetrieveRequest
from retrieval.stages import passed, watching

NAME = "kernlore answers"  # of each process
LOOK_SECONDS = 0.2  # between two looks of a new process whether its words are in memory
ANSWER_SECONDS = 60.0  # after which a process that does not answer is replaced
AGAIN_SECONDS = 1.0  # before a process is started in place of one that has ended
END_SECONDS = 5.0  # for a process that was told to end

# Asked before anybody asks: the tokenizer and much else are loaded with a process's first answer.
FIRST = RetrieveRequest(query="shared memory of a thread block")

_Stages = list[tuple[str, float]]
_Reply = tuple[Answered, _Stages] | None

log = structlog.get_logger(__name__)


class AnswerProcesses:
    """So many processes between `start` and `stop`. `answer` may be called from any thread."""

    def __init__(self, settings: Settings, count: int) -> None:
        self._settings = settings
        self._count = count
        self._free: queue.LifoQueue[_Process] = queue.LifoQueue()  # the warmest first
        self._stop = threading.Event()
        self._lock = threading.Lock()  # protects all below
        self._able = 0
        self._processes: list[_Process] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start them; each is asked from when its words and vectors are in memory."""
        for _ in range(self._count):
            self._add()

    def stop(self) -> None:
        """End them all."""
        self._stop.set()
        with self._lock:
            processes, threads = list(self._processes), list(self._threads)
        for process in processes:
            process.end()
        for thread in threads:
            thread.join()

    @property
    def ready(self) -> int:
        """How many answer, at work or not."""
        with self._lock:
            return self._able

    def answer(self, request: RetrieveRequest, unwanted: Unwanted) -> Answered | None:
        """The answer of a process; None where none is free, or where it gives none. The order for a
        signal alone is kept by the service itself, for whoever asks next.
        """
        if not request.in_words and not request.metrics:
            return None
        try:
            process = self._free.get_nowait()
        except queue.Empty:
            return None
        try:
            reply = process.ask(request, unwanted)
        except (EOFError, OSError) as error:
            with self._lock:
                self._able -= 1
            if not self._stop.is_set():
                log.warning("a process that answers has ended", reason=type(error).__name__)
                self._add(process)
            return None
        self._free.put(process)
        if reply is None:
            return None
        answered, stages = reply
        for name, seconds in stages:
            passed(name, seconds)
        return answered

    def _add(self, ended: _Process | None = None) -> None:
        """Start a process in a thread of its own, in place of one that has ended."""
        thread = threading.Thread(target=self._begin, args=(ended,), name="answers", daemon=True)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _begin(self, ended: _Process | None) -> None:
        if ended is not None:
            ended.end()
            self._stop.wait(AGAIN_SECONDS)
        while not self._stop.is_set():
            process = _Process(self._settings)
            with self._lock:
                if ended is not None and ended in self._processes:
                    self._processes.remove(ended)
                self._processes.append(process)
            if process.is_ready(self._stop):
                with self._lock:
                    self._able += 1
                self._free.put(process)
                return
            ended = process
            process.end()
            if not self._stop.wait(AGAIN_SECONDS):
                log.warning("a process that answers could not be started, and is again")


class _Process:
    """One process, with the pipe to it."""

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take locks of threads along
        self._pipe, other = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_work, args=(settings, other), name=NAME, daemon=True
        )
        self._process.start()
        other.close()

    def is_ready(self, stop: threading.Event) -> bool:
        """Wait until it says that it can answer; False where it has ended, or is to."""
        try:
            while not self._pipe.poll(LOOK_SECONDS):
                if stop.is_set():
                    return False
            self._pipe.recv()
        except (EOFError, OSError):
            return False
        return True

    def ask(self, request: RetrieveRequest, unwanted: Unwanted) -> _Reply:
        """Its reply. Raises EOFError or OSError where it has ended or does not answer."""
        self._pipe.send((request, unwanted))
        if not self._pipe.poll(ANSWER_SECONDS):
            raise TimeoutError
        reply: _Reply = self._pipe.recv()
        return reply

    def end(self) -> None:
        """End it: it does when the pipe is closed, and is made to where it is busy."""
        with suppress(OSError):
            self._pipe.close()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


# -- in the process


def _work(settings: Settings, pipe: Connection) -> None:
    """Answer what comes through the pipe until it is closed, by whatever end of the service."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, meant for the service
    base = KnowledgeBase(settings)
    model = base.embedder.fingerprint
    base.dense_ready = True
    base.__dict__["index"] = NearIndex(base.catalog, model, None)
    base.retriever.warm(settings.models_dir)
    memory = KeptInMemory(base.catalog, WEIGHTS.heading, lambda: model)
    memory.start()
    try:
        while not is_in_memory(base.catalog, model):
            if pipe.poll(LOOK_SECONDS):
                return  # nothing is sent to a process that is not ready: the pipe is closed
        _reply(base, FIRST, Unwanted(frozenset(), frozenset()))
        pipe.send("ready")
        current: Hashable = None
        while True:
            request, unwanted = pipe.recv()
            # What is in memory may be older than the documents only after some change.
            if (version := base.catalog.version()) != current:
                current = version if is_in_memory(base.catalog, model) else None
            pipe.send(None if current is None else _reply(base, request, unwanted))
    except (EOFError, OSError):
        pass
    finally:
        memory.stop()
        base.close()


def _reply(base: KnowledgeBase, request: RetrieveRequest, unwanted: Unwanted) -> _Reply:
    stages: _Stages = []
    try:
        with watching(lambda name, seconds: stages.append((name, seconds))):
            answered = base.retriever.answered(request, unwanted)
    except KernloreError:
        return None  # the service says what is wrong
    return answered, stages
