"""A catalog's own name in stores on servers, where other catalogs keep what is theirs."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection

from kb.catalog import meta
from kb.catalog.engine import Catalog

_KEY = "store_id"


def store_id(catalog: Catalog) -> str:
    """Twelve hex digits, made when they are first asked for."""
    with catalog.read() as connection:
        known = meta.get(connection, _KEY)
    if known is None:
        with catalog.write() as connection:
            known = meta.get(connection, _KEY)  # another process may have made it
            if known is None:
                known = secrets.token_hex(6)
                meta.put(connection, _KEY, known)
    return str(known)


def forget(connection: Connection) -> None:
    """A copy of a catalog is another store: the first may go on where it was."""
    meta.remove(connection, _KEY)
