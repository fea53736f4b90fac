"""Alembic's entry point, without an alembic.ini. `kb.catalog.schema` passes the connection."""

from alembic import context

from kb.catalog.tables import metadata


def _ours(obj: object, name: str | None, kind: str, reflected: bool, compare_to: object) -> bool:
    """Exclude the tables of FTS5 from autogeneration."""
    return not (kind == "table" and (name or "").startswith("lexical_"))


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    include_object=_ours,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
