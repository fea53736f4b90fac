"""Alembic's entry point, without an alembic.ini. `kb.catalog.schema` passes the connection."""

from alembic import context

from kb.catalog.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
