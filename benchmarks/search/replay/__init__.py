"""Searches replayed over a table of evaluations that were measured once.

`spaces` says which points a problem has, `measuring` fills a table, `table` keeps it, `rediagnosis`
makes its verdicts again by today's rules, `answers` keeps what the knowledge base said about its
points, `arms` runs the search over it, `statistics` compares arms, `audit` follows every move to
the point that it leads to, `earlier` sets the figures beside those of an earlier replay.
"""
