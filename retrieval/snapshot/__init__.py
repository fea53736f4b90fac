"""The knowledge base in the form that answers are computed from: immutable, memory-mapped files, no
SQL.

`segment` is the file format of a set of documents, `words` its word index, `snapshot` the interface
for requests, `publish` reads documents from the catalog, `store` holds the current snapshot of a
process.
"""
