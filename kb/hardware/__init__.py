"""Hardware as data: descriptions, lineage and local devices. Nothing here opens the catalog."""
