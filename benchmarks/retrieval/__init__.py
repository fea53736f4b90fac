"""How well and how fast retrieval ranks, beside plain baselines, other encoders, llama-index."""
