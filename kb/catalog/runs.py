"""Runs of the optimizer and the nodes of their trees, which process works on a run, and the mail
between a run and an external optimizer, as rows.

Inserting a node is the checkpoint. A node's `record` is the search's own JSON of it; bundles are
blobs, evaluations have their own table. Knows nothing about how a search works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from kb import clock
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.dialect import insert_new, json_text
from kb.catalog.engine import Catalog, record_of
from kb.catalog.evaluations import counting_answer
from kb.catalog.tables import run_mail
from kb.catalog.work import COLUMNS, Job, Work, job_from
from kb.errors import Conflict, NotFound
from kb.ids import derived_id
from kb.scope import ALL_ACCESS, AccessScope


@dataclass(frozen=True)
class StoredRun:
    """The row of a run; `settings` is the search's own JSON of it."""

    id: str
    problem: str
    hardware: str
    state: str
    settings: Mapping[str, Any]
    cancel_requested: bool
    created_at: str
    finished_at: str | None


@dataclass(frozen=True)
class NodeRow:
    """One node. `bundle_sha256` and `evaluation_key` are None for the reference and for a node
    without candidate or evaluation."""

    number: int
    parent: int | None
    island: int
    memory: str
    synthesizer: str
    state: str
    record: Mapping[str, Any]
    bundle_sha256: str | None = None
    evaluation_key: str | None = None
    retrieval_id: str | None = None
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RunWhere:
    """A filter of runs; an empty field matches any. Each of `words` is part of the run's id, its
    problem's name or the path of its problem."""

    words: str = ""
    hardware: str = ""
    state: str = ""

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        place = json_text(t.runs.c.settings, sa.literal_column("'problem'"))
        columns = (t.runs.c.id, t.problems.c.name, place)
        conditions: list[sa.ColumnElement[bool]] = [
            sa.or_(*(column.icontains(word, autoescape=True) for column in columns))
            for word in self.words.split()
        ]
        if self.hardware:
            conditions.append(t.runs.c.hardware_id == self.hardware)
        if self.state:
            conditions.append(t.runs.c.state == self.state)
        return conditions


EVERY_RUN = RunWhere()


class Runs:
    """Every method is one transaction."""

    def __init__(self, catalog: Catalog, access_scope: AccessScope = ALL_ACCESS) -> None:
        self._catalog = catalog
        self._scope = access_scope

    def begin(
        self,
        run_id: str,
        problem_sha256: str,
        hardware: str,
        policy: str,
        seed: int,
        settings: Mapping[str, Any],
    ) -> None:
        """Store a running run. The problem's row must exist: its first evaluation creates it."""
        with self._catalog.write() as connection:
            connection.execute(
                sa.insert(t.runs).values(
                    id=run_id,
                    problem_id=derived_id("prb", problem_sha256),
                    hardware_id=hardware,
                    state="running",
                    policy=policy,
                    seed=seed,
                    goal=settings.get("goal", {}),
                    settings=dict(settings),
                    cost_usd=0.0,
                    created_at=clock.now(),
                    access_scope=self._scope.owner,
                )
            )

    def find(self, run_id: str) -> StoredRun:
        """The run with this id. Raises NotFound."""
        with self._catalog.read() as connection:
            row = connection.execute(self._select().where(t.runs.c.id == run_id)).one_or_none()
        if row is None:
            raise NotFound(f"no run {run_id}", hint="`kernlore runs list` shows all runs.")
        return _stored(row)

    def latest(
        self, limit: int = 50, offset: int = 0, where: RunWhere = EVERY_RUN
    ) -> list[StoredRun]:
        """Matching runs, newest first, after the first `offset`."""
        query = self._select().where(*where.conditions())
        query = query.order_by(t.runs.c.created_at.desc(), t.runs.c.id)
        with self._catalog.read() as connection:
            return [_stored(row) for row in connection.execute(query.limit(limit).offset(offset))]

    def count(self, where: RunWhere = EVERY_RUN) -> int:
        """How many runs match."""
        return self._count(self._select().where(*where.conditions()))

    def size(self, run_id: str) -> int:
        """How many nodes a run has."""
        return self._count(sa.select(t.nodes.c.id).where(t.nodes.c.run_id == run_id))

    def _count(self, query: sa.Select[Any]) -> int:
        counted = sa.select(sa.func.count()).select_from(query.subquery())
        with self._catalog.read() as connection:
            return int(connection.execute(counted).scalar_one())

    def _select(self) -> sa.Select[Any]:
        return (
            sa.select(t.runs, t.problems.c.name.label("problem"))
            .join(t.problems, t.problems.c.id == t.runs.c.problem_id)
            .where(visible.runs(self._scope))
        )

    def update(
        self, run_id: str, state: str, settings: Mapping[str, Any], cost_usd: float = 0.0
    ) -> None:
        """Store state, settings and cost in USD; `finished_at` is set unless it is running."""
        self._change(
            run_id,
            state=state,
            settings=dict(settings),
            summary=dict(settings.get("result") or {}),
            cost_usd=cost_usd,
            finished_at=None if state == "running" else clock.now(),
        )

    def note(self, run_id: str, name: str, value: Mapping[str, Any]) -> None:
        """Replace one of the settings of a run; an unknown run is no error."""
        with self._catalog.write() as connection:
            query = sa.select(t.runs.c.settings).where(t.runs.c.id == run_id)
            settings = connection.execute(query.with_for_update()).scalar_one_or_none()
            if settings is not None:
                changed = {**settings, name: dict(value)}
                row = sa.update(t.runs).where(t.runs.c.id == run_id)
                connection.execute(row.values(settings=changed))

    def request_cancel(self, run_id: str) -> None:
        """Ask the process of the run to end it. Raises NotFound."""
        self.find(run_id)
        self._change(run_id, cancel_requested_at=clock.now())

    def clear_cancel(self, run_id: str) -> None:
        """Withdraw the request to cancel, so that a resumed run does not end at once."""
        self._change(run_id, cancel_requested_at=None)

    def _change(self, run_id: str, **values: Any) -> None:
        with self._catalog.write() as connection:
            connection.execute(sa.update(t.runs).where(t.runs.c.id == run_id).values(**values))

    def add(self, run_id: str, node: NodeRow) -> None:
        """Store a node. It is durable when the call returns."""
        parent = None if node.parent is None else derived_id("nod", run_id, node.parent)
        candidate = derived_id("cnd", node.bundle_sha256) if node.bundle_sha256 else None
        evaluation = derived_id("evl", node.evaluation_key) if node.evaluation_key else None
        proposal = node.record.get("proposal") or {}
        with self._catalog.write() as connection:
            connection.execute(
                sa.insert(t.nodes).values(
                    id=derived_id("nod", run_id, node.number),
                    run_id=run_id,
                    number=node.number,
                    parent_id=parent,
                    island=node.island,
                    memory=node.memory,
                    synthesizer=node.synthesizer,
                    state=node.state,
                    candidate_id=candidate,
                    evaluation_id=evaluation,
                    retrieval_id=node.retrieval_id or None,
                    shown=node.record.get("shown") or {},
                    claimed=list(proposal.get("claimed") or ()),
                    attributed=list(proposal.get("attributed") or ()),
                    usage=dict(node.usage or {}),
                    record=dict(node.record),
                    created_at=clock.now(),
                )
            )

    def nodes(self, run_id: str) -> list[Mapping[str, Any]]:
        """Records of the run's nodes, by number."""
        query = sa.select(t.nodes.c.record).where(t.nodes.c.run_id == run_id)
        with self._catalog.read() as connection:
            return list(connection.scalars(query.order_by(t.nodes.c.number)))

    def winners(
        self,
        op_family: str,
        dtype: str | None,
        hardware: tuple[str, ...],
        problem_sha256: str,
        limit: int,
    ) -> list[tuple[Mapping[str, Any], bool]]:
        """Earlier nodes with the highest certain speed-up for this family, dtype and lineage.

        Returns (record, whether it was measured on exactly this problem), one pair for each
        candidate: those of this problem first, then best first. Candidates that a person refused
        are left out.
        """
        cases = t.evaluation_cases
        best = sa.func.max(cases.c.speedup_low).label("best")
        first = sa.func.min(t.nodes.c.id).label("node_id")
        this_problem = sa.case((t.problems.c.sha256 == problem_sha256, 1), else_=0)
        same = sa.func.max(this_problem).label("same")
        with self._catalog.read() as connection:
            rows = connection.execute(
                _evaluated(sa.select(first, best, same))
                .join(cases, cases.c.evaluation_id == t.evaluations.c.id)
                .where(
                    cases.c.op_family == op_family,
                    cases.c.hardware_id.in_(hardware),
                    cases.c.speedup_low > 1.0,
                    t.evaluations.c.validity == "correct",
                    t.nodes.c.candidate_id.is_not(None),
                    *([cases.c.dtype == dtype] if dtype else []),
                )
                .group_by(t.nodes.c.candidate_id)
                .order_by(same.desc(), best.desc(), first)
                .limit(limit)
            ).all()
            chosen = {row.node_id: bool(row.same) for row in rows}
            records = connection.execute(
                sa.select(t.nodes.c.id, t.nodes.c.record).where(t.nodes.c.id.in_(chosen))
            ).all()
        by_id = {row.id: row.record for row in records}
        return [(by_id[node_id], here) for node_id, here in chosen.items()]

    def untimed(
        self, hardware: tuple[str, ...], problem_sha256: str, limit: int
    ) -> list[Mapping[str, Any]]:
        """Records of nodes of exactly this problem that are right and have no figure, the newest
        first. Candidates that a person refused are left out."""
        query = (
            _evaluated(sa.select(t.nodes.c.record))
            .join(t.runs, t.runs.c.id == t.nodes.c.run_id)
            .where(
                t.nodes.c.state == "unmeasured",
                t.runs.c.hardware_id.in_(hardware),
                t.problems.c.sha256 == problem_sha256,
            )
            .order_by(t.nodes.c.created_at.desc(), t.nodes.c.number.desc())
        )
        with self._catalog.read() as connection:
            return list(connection.scalars(query.limit(limit)))


def _evaluated(select: sa.Select[Any]) -> sa.Select[Any]:
    """Nodes with their evaluation and its problem, without refused ones."""
    return (
        select.select_from(t.nodes)
        .join(t.evaluations, t.evaluations.c.id == t.nodes.c.evaluation_id)
        .join(t.problems, t.problems.c.id == t.evaluations.c.problem_id)
        .where(sa.func.coalesce(counting_answer(), "") != "refused")
    )


def _stored(row: sa.Row[Any]) -> StoredRun:
    cancel = row.cancel_requested_at is not None
    return record_of(StoredRun, row, hardware=row.hardware_id, cancel_requested=cancel)


# -- processes

STARTING = "starting"  # the owner of a run whose process has not taken it yet
CANCELLED = "cancelled"  # of one that was cancelled before its process had taken it
_PAYLOAD = ("place", "pid", "began", "seconds")
_OWNERS = {"queued": STARTING, "failed": CANCELLED}  # by the state of the work


@dataclass(frozen=True)
class RunProcess:
    """A process that works on a run. `place` is its machine and data directory, `began` when it
    began (Unix time), `seconds` how long the run had gone on before."""

    run_id: str
    owner: str
    place: str
    pid: int
    began: float
    seconds: float
    lease_expires_at: str

    @property
    def alive(self) -> bool:
        """Whether its lease lasts."""
        return self.lease_expires_at >= clock.now()


class RunProcesses(Work):
    """Which process works on which run, on any machine. The work is queued while its process is
    starting, and removed when the process has ended; one that was cancelled before is failed."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog, "run")

    def process_of(self, run_id: str) -> RunProcess | None:
        """The process that has, or last had, the run; None if the run was released, or no process
        ever had it."""
        job = self.find(run_id)
        return None if job is None else _process(job)

    def without_row(self) -> list[tuple[RunProcess, Mapping[str, Any]]]:
        """Runs that a process has begun and not stored yet, newest first: the process, and the
        requested problem and hardware."""
        stored = sa.select(t.runs.c.id).where(t.runs.c.id == t.work.c.id).exists()
        with self._catalog.read() as connection:
            jobs = self.matching(connection, ~stored, t.work.c.state != "failed")
        return [(_process(job), job.progress) for job in reversed(jobs)]

    def take_run(
        self, process: RunProcess, about: Mapping[str, Any] | None = None
    ) -> RunProcess | None:
        """Take a run that no process has, whose process is dead, or is only starting. Returns the
        process that has it otherwise, and nothing changes. `about` describes a new run."""
        starting = process.owner == STARTING
        values: dict[str, Any] = {
            "state": "queued" if starting else "running",
            "payload": {name: getattr(process, name) for name in _PAYLOAD},
            "lease_owner": None if starting else process.owner,
            "lease_expires_at": process.lease_expires_at,
            "started_at": clock.now(),
        }
        chosen = t.work.c.id == process.run_id
        fixed = {"id": process.run_id, "kind": "run", "created_at": clock.now()}
        empty: dict[str, Any] = {"progress": dict(about or {}), "result": {}}
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(insert_new(connection, t.work), [{**fixed, **empty, **values}])
            # Locked until the end: a concurrent process waits, then sees the row.
            row = connection.execute(sa.select(*COLUMNS).where(chosen).with_for_update()).one()
            holder = _process(job_from(row))
            free = holder.owner in (STARTING, process.owner) or not holder.alive
            if holder.owner == CANCELLED or not free:
                return holder
            attempts = t.work.c.attempts + (0 if starting else 1)
            connection.execute(t.work.update().where(chosen).values(**values, attempts=attempts))
        return None

    def cancel_start(self, run_id: str) -> bool:
        """Prevent processes from taking a queued run. Returns False if one has taken it already."""
        starting = (self._mine, t.work.c.id == run_id, t.work.c.state == "queued")
        with self._catalog.write(rows_only=True) as connection:
            changed = connection.execute(t.work.update().where(*starting).values(state="failed"))
        return changed.rowcount == 1

    def remove(self, run_id: str, owner: str) -> None:
        """Remove the row of a run's process that has ended, if `owner` holds it."""
        held = t.work.c.state == "queued" if owner == STARTING else self._held(owner)
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(t.work.delete().where(self._mine, held, t.work.c.id == run_id))


def _process(job: Job) -> RunProcess:
    owner = _OWNERS.get(job.state, job.lease_owner or "")
    return RunProcess(
        run_id=job.id, owner=owner, lease_expires_at=job.lease_expires_at or "", **job.payload
    )


class RunMail:
    """The mail of one run: the context of a node goes out under its number (`step`), and the
    candidate comes back. Every method is one transaction."""

    def __init__(self, catalog: Catalog, run_id: str) -> None:
        self._catalog = catalog
        self._mine = run_mail.c.run_id == run_id
        self._run_id = run_id

    def ask(self, step: int, context: Mapping[str, Any]) -> None:
        """Publish the context of node `step`, in place of an earlier one."""
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(run_mail.delete().where(self._mine, run_mail.c.step == step))
            connection.execute(
                run_mail.insert().values(run_id=self._run_id, step=step, context=dict(context))
            )

    def candidate_for(self, step: int) -> dict[str, Any] | None:
        """The candidate for this step; None until it is submitted."""
        query = sa.select(run_mail.c.candidate).where(self._mine, run_mail.c.step == step)
        with self._catalog.read() as connection:
            candidate = connection.scalar(query)
        return None if candidate is None else dict(candidate)

    def withdraw(self, step: int) -> None:
        """Remove the context of a step for which the run no longer waits."""
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(run_mail.delete().where(self._mine, run_mail.c.step == step))

    def open_context(self) -> dict[str, Any] | None:
        """The context of the step that the run waits for; None if it does not wait."""
        query = sa.select(run_mail.c.context, run_mail.c.candidate).where(self._mine)
        with self._catalog.read() as connection:
            rows = connection.execute(query.order_by(run_mail.c.step)).all()
        return next((dict(row.context) for row in rows if row.candidate is None), None)

    def answer(self, step: int, candidate: Mapping[str, Any]) -> None:
        """Hand in the candidate for a step. Raises NotFound if the run does not wait for this
        step, Conflict if it has a candidate already."""
        chosen = self._mine, run_mail.c.step == step
        with self._catalog.write(rows_only=True) as connection:
            row = connection.execute(
                sa.select(run_mail.c.candidate).where(*chosen).with_for_update()
            ).one_or_none()
            if row is None:
                raise NotFound(
                    f"the run does not wait for node {step}",
                    hint="Get the context; it has the step.",
                )
            if row.candidate is not None:
                raise Conflict(f"node {step} has a candidate", hint="Get the next context.")
            # The run has its own copy of the context, which quotes documents.
            connection.execute(
                run_mail.update().where(*chosen).values(candidate=dict(candidate), context={})
            )
