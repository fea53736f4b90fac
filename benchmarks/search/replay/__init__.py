"""Searches replayed over a table of evaluations that were measured once.

`spaces` lists the points of a problem, `measuring` fills a table, `table` stores it and derives its
verdicts again by today's rules, `answers` stores the answers of the knowledge base for its points,
`arms` runs the search over it, `statistics` compares arms, `audit` follows every move to the point
that it leads to, `reporting` writes the tables, beside the figures of an earlier replay.
"""
