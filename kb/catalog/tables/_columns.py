"""Column shorthands shared by the table modules."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKey, MetaData, String, text

from kb.catalog.dialect import Json

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def id_column() -> Column[str]:
    """The primary key `id`."""
    return Column("id", String, primary_key=True)


def ref(name: str, target: str, *, nullable: bool = False, index: bool = True) -> Column[str]:
    """A foreign key that goes away with what it points to."""
    return Column(
        name, String, ForeignKey(target, ondelete="CASCADE"), nullable=nullable, index=index
    )


def when(name: str = "created_at", *, nullable: bool = False) -> Column[str]:
    """A time: UTC, ISO-8601 text."""
    return Column(name, String, nullable=nullable)


def scope() -> Column[str]:
    """Who may read the row; "all" until there are accounts."""
    return Column("access_scope", String, nullable=False, server_default=text("'all'"))


def json(name: str, *, nullable: bool = False, default: str = "{}") -> Column[Any]:
    """A structured value; `default` is the JSON text that a row gets without one."""
    if nullable:
        return Column(name, Json, nullable=True)
    return Column(name, Json, nullable=False, server_default=text(f"'{default}'"))
