"""Alembic's entry point. The connection is handed in by `kb.catalog.engine`; there is no
alembic.ini.
"""

from alembic import context

from kb.catalog.tables import metadata


def _ours(obj: object, name: str | None, kind: str, reflected: bool, compare_to: object) -> bool:
    """FTS5 keeps its data in tables of its own; `only` limits autogeneration to some tables."""
    only = context.config.attributes.get("only")
    if kind == "table" and only is not None and name not in only:
        return False
    return not (kind == "table" and (name or "").startswith("lexical_"))


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    include_object=_ours,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
