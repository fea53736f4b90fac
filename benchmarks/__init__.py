"""What Kernlore claims about itself, measured: one command per question, results in `results/`.

    knowledge/    how fast documents get in, what is covered, what a service holds
    retrieval/    how good and how fast answers are, beside simpler methods and other encoders
    evaluation/   the harness against itself and against cheats, planted kernels, baselines
    search/       what searches gain and survive, and what knowledge saves them
    skills/       what the library costs, what the curator does, and what learning brings

Every module is a command: `python -m benchmarks.retrieval.quality --help`. No part of the product
imports this package.
"""
