"""What Kernlore claims about itself, measured: one command per question, results in `results/`.

    python -m benchmarks.retrieval_quality    how good the answers are, beside simpler methods
    python -m benchmarks.retrieval_ablation   what each ingredient of the ranking brings
    python -m benchmarks.retrieval_latency    how long a request takes, and what the service holds
    python -m benchmarks.ingestion            how fast documents get in, and what encoders cost

No part of the product imports this package.
"""
