"""The knowledge base as answers are computed from: immutable, mapped from files, without SQL.

`segment` is the file of some documents, `words` its word index, `snapshot` what a request reads,
`publish` makes snapshots of the catalog, `store` holds the current one of a process.
"""
