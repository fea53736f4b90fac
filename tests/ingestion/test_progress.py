"""Listing of jobs: filters, pages, counts, and the progress of each document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ingestion.progress import list_jobs, retry_job, show_job
from kb.errors import Conflict, InvalidRequest, NotFound, UnknownHardware
from kb.scope import AccessScope

if TYPE_CHECKING:
    from tests.fixtures import Store


@pytest.fixture
def filled(store: Store) -> Store:
    """Two finished documents, a failed one and a waiting one."""
    store.submit("a.md", "# A\n\nThe first text.\n", hardware=("h100",), group="g1")
    store.submit("b.md", "# B\n\nThe second text.\n", hardware=("h200",), group="g1")
    store.submit("c.md", "---\ntitle: Nothing\n---\n", hardware=("h100",), group="g2")
    store.worker().drain()
    store.submit("d.md", "# D\n\nThe last text.\n", hardware=("h100",), group="g2")
    return store


def titles(store: Store, **filters: Any) -> list[str]:
    return [job.document.title for job in list_jobs(store, **filters).jobs if job.document]


def test_jobs_are_listed_newest_first_with_results(filled: Store) -> None:
    page = list_jobs(filled)
    waiting, failed, second, first = page.jobs
    assert (waiting.state, waiting.stage, waiting.started_at, waiting.seconds) == (
        *("queued", None),
        *(None, None),
    )
    assert waiting.passages is None
    assert failed.error is not None and failed.error.code == "parse_failed" and failed.error.hint
    assert (second.state, second.passages_done, second.passages) == ("ready", 1, 1)
    assert first.document is not None and first.document.hardware == ("h100",)
    assert first.started_at and first.finished_at and first.seconds is not None
    counts = page.counts
    assert (counts.queued, counts.running, counts.ready, counts.failed) == (1, 0, 2, 1)
    assert (counts.passages_done, counts.passages) == (2, 2)
    assert page.cursor is None


def test_running_job_has_stage_and_passage_counts(store: Store) -> None:
    store.submit("a.md", "# A\n\nA text.\n\n## B\n\nAnother text.\n")
    assert store.jobs.claim("w", 60)
    [job] = list_jobs(store).jobs
    assert (job.stage, job.passages, job.seconds is not None) == ("reading", None, True)
    store.jobs.give_back("w")
    store.worker()._read_queued()
    page = list_jobs(store)
    assert (page.jobs[0].stage, page.jobs[0].passages_done, page.jobs[0].passages) == (
        *("embedding", 0),
        2,
    )
    assert (page.counts.running, page.counts.embedding, page.counts.passages) == (1, 1, 2)


def test_filters_narrow_jobs_and_counts(filled: Store) -> None:
    assert titles(filled, state=["queued", "failed"]) == ["d", "c"]
    assert titles(filled, hardware="NVIDIA H200") == ["B"]
    assert titles(filled, group="g1") == ["B", "A"]
    assert titles(filled, hardware="h100", group="g2") == ["d", "c"]
    assert titles(filled, group="nobody") == []
    page = list_jobs(filled, state=["ready"], group="g2")
    assert page.jobs == () and (page.counts.queued, page.counts.failed) == (1, 1)
    with pytest.raises(UnknownHardware):
        list_jobs(filled, hardware="h1000")
    filled.access = AccessScope("team")
    assert list_jobs(filled).jobs == ()


def test_group_can_be_watched_by_end_time(filled: Store) -> None:
    ended = [job for job in list_jobs(filled, group="g1").jobs if job.finished_at]
    newest = max(job.finished_at or "" for job in ended)
    later = list_jobs(filled, group="g1", ended_since=newest)
    assert [job.id for job in later.jobs] == [j.id for j in ended if j.finished_at == newest]
    assert later.counts.ready == 2


def test_pages_hold_each_job_once_while_new_ones_arrive(filled: Store) -> None:
    whole = [job.id for job in list_jobs(filled).jobs]
    seen, cursor = [], ""
    for n in range(len(whole)):
        page = list_jobs(filled, limit=1, cursor=cursor)
        seen += [job.id for job in page.jobs]
        last, cursor = page.cursor, page.cursor or ""
        filled.submit(f"new{n}.md", f"# N{n}\n\nNew.\n")
    assert (seen, last) == (whole, None)


@pytest.mark.parametrize("cursor", ["nonsense", "aGVsbG8=", "\u00e9", "MjAyNiBqb2IgeA=="])
def test_invalid_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="is no cursor"):
        list_jobs(store, cursor=cursor)


@pytest.mark.parametrize("limit", [0, 501])
def test_page_size_is_bounded(store: Store, limit: int) -> None:
    with pytest.raises(InvalidRequest):
        list_jobs(store, limit=limit)


def test_single_job_has_same_shape_and_can_be_retried(filled: Store) -> None:
    waiting, failed, *_ = list_jobs(filled).jobs
    assert show_job(filled, failed.id) == failed
    again = retry_job(filled, failed.id)
    assert (again.state, again.error, again.document) == ("queued", None, failed.document)
    with pytest.raises(Conflict):
        retry_job(filled, waiting.id)
    with pytest.raises(NotFound):
        show_job(filled, "job_nobody")


def test_waiting_file_joins_group_that_sends_it_again(store: Store) -> None:
    text = "# A\n\nThe first text.\n"
    first = store.submit("a.md", text, group="g1")
    again = store.submit("a.md", text, group="g2")
    assert (again.outcome, again.job_id, again.group) == ("unchanged", None, "g2")
    assert [job.id for job in list_jobs(store, group="g2").jobs] == [first.job_id]
    store.worker().drain()
    store.submit("a.md", text, group="g3")
    assert list_jobs(store, group="g3").jobs == ()


def test_invalid_group_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="unusable group"):
        store.submit("a.md", "# A\n\nText.\n", group="no spaces")
