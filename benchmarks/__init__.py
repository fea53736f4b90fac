"""Measurements of Kernlore: one command per question, one page per result in `results/`.

    knowledge/    ingestion, error logs, answers to signals, a service under load and kills
    retrieval/    quality, latency, comparison with plain retrievers, unchanged answers
    evaluation/   the harness against itself and against cheats, planted defects
    search/       gains without a model, models on drawn chips, killed runs
    cluster/      an installation whose parts are killed
    samples/      checks of whole kernels that ship
    source_shape  sizes of the source and journeys through it

Every module is a command: `python -m benchmarks.retrieval.quality --help`. No part of the product
imports this package.
"""
