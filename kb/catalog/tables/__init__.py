"""The catalog's tables, one module per subject. The columns are the contract that later work must
not migrate away.

Written once for SQLite and PostgreSQL (`kb.catalog.dialect`). Times are UTC ISO-8601 text
(sortable, no driver surprises), structured values are JSON, ids are prefixed text. Every table that
holds somebody's content has `access_scope`."""

from kb.catalog.tables import hardware, jobs, keys, knowledge, search, skills, work
from kb.catalog.tables._columns import metadata

__all__ = ["hardware", "jobs", "keys", "knowledge", "metadata", "search", "skills", "work"]
