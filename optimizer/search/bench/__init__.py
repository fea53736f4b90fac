"""What a search needs of this machine and of the catalog: measuring, the view of a problem, stored
rows.

Imports torch (through problems and runners); `catalog_store` alone imports SQLAlchemy too. The
search itself knows these parts by protocols and imports none of them.
"""
