"""Access of a search to this machine and to the catalog: measuring, the view of a problem, stored
rows.

Imports torch (through problems and runners); `catalog_store` alone imports SQLAlchemy too. The
search itself knows these parts by protocols and imports none of them.
"""
