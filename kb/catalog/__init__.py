"""The SQL catalog. `open_catalog` gives a `Catalog`; the other modules of this package read and
write one subject each.
"""

from kb.catalog.engine import Catalog, open_catalog

__all__ = ["Catalog", "open_catalog"]
