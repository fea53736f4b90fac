"""Which process works on which run, and the mail between a run and an external optimizer, as rows.

A process owns its run while its lease lasts, on whichever machine it is. Knows nothing about how a
run is carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from kb import clock
from kb.catalog.dialect import insert_new
from kb.catalog.engine import Catalog
from kb.catalog.tables.work import run_mail, run_processes
from kb.errors import Conflict, NotFound

STARTING = "starting"  # the owner of a run whose process has not taken it yet
CANCELLED = "cancelled"  # of one that was cancelled before its process had taken it


@dataclass(frozen=True)
class RunProcess:
    """A process that works on a run. `place` is its machine and data directory, `began` when it
    began (Unix time), `seconds` how long the run had gone on before. `alive` says whether its lease
    lasts.
    """

    run_id: str
    owner: str
    place: str
    pid: int
    began: float
    seconds: float
    lease_expires_at: str

    @property
    def alive(self) -> bool:
        return self.lease_expires_at >= clock.now()


_COLUMNS = [run_processes.c[name] for name in RunProcess.__dataclass_fields__]


class ProcessRows:
    """Every method is one transaction."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def find(self, run_id: str) -> RunProcess | None:
        """The process that has, or last had, the run; None where it was given back, or nobody ever
        had it.
        """
        with self._catalog.read() as connection:
            row = connection.execute(
                sa.select(*_COLUMNS).where(run_processes.c.run_id == run_id)
            ).one_or_none()
        return None if row is None else RunProcess(**row._mapping)

    def take(self, process: RunProcess) -> RunProcess | None:
        """Take a run that nobody has, whose process is dead, or is only starting. Returns the
        process that has it otherwise, and nothing changes.
        """
        chosen = run_processes.c.run_id == process.run_id
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(insert_new(connection, run_processes), [vars(process)])
            # Held until the change is kept: who comes at the same moment waits, and sees it.
            row = connection.execute(sa.select(*_COLUMNS).where(chosen).with_for_update()).one()
            holder = RunProcess(**row._mapping)
            free = holder.owner in (STARTING, process.owner) or not holder.alive
            if holder.owner == CANCELLED or not free:
                return holder
            connection.execute(run_processes.update().where(chosen).values(**vars(process)))
        return None

    def cancel_start(self, run_id: str) -> bool:
        """Let no process take a run that none has taken yet. False where one has."""
        with self._catalog.write(rows_only=True) as connection:
            changed = connection.execute(
                run_processes.update()
                .where(run_processes.c.run_id == run_id, run_processes.c.owner == STARTING)
                .values(owner=CANCELLED)
            )
        return changed.rowcount == 1

    def renew(self, run_id: str, owner: str, lease_seconds: float) -> bool:
        """Extend the lease. False where the run is no longer the owner's."""
        with self._catalog.write(rows_only=True) as connection:
            changed = connection.execute(
                run_processes.update()
                .where(run_processes.c.run_id == run_id, run_processes.c.owner == owner)
                .values(lease_expires_at=clock.after(lease_seconds))
            )
        return changed.rowcount == 1

    def give_back(self, run_id: str, owner: str) -> None:
        """The process has ended its work."""
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(
                run_processes.delete().where(
                    run_processes.c.run_id == run_id, run_processes.c.owner == owner
                )
            )


class RunMail:
    """The mail of one run: the context of a node goes out under its number (`step`), and the
    candidate comes back. Every method is one transaction.
    """

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
        """The candidate for this step; None while there is none."""
        query = sa.select(run_mail.c.candidate).where(self._mine, run_mail.c.step == step)
        with self._catalog.read() as connection:
            candidate = connection.execute(query).scalar()
        return None if candidate is None else dict(candidate)

    def withdraw(self, step: int) -> None:
        """Remove the context of a step for which the run no longer waits."""
        with self._catalog.write(rows_only=True) as connection:
            connection.execute(run_mail.delete().where(self._mine, run_mail.c.step == step))

    def open_context(self) -> dict[str, Any] | None:
        """The context that the run waits for now; None where it waits for nothing."""
        query = sa.select(run_mail.c.context, run_mail.c.candidate).where(self._mine)
        with self._catalog.read() as connection:
            rows = connection.execute(query.order_by(run_mail.c.step)).all()
        return next((dict(row.context) for row in rows if row.candidate is None), None)

    def answer(self, step: int, candidate: Mapping[str, Any]) -> None:
        """Hand in the candidate for a step. Raises NotFound where the run does not wait for this
        step, Conflict where it has a candidate already.
        """
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
