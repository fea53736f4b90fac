"""The SQL catalog. `open_catalog` gives a `Catalog`; each other module here reads and writes one
kind of data.
"""

from kb.catalog.engine import Catalog, open_catalog

__all__ = ["Catalog", "open_catalog"]
