"""Language models as proposers: a prompt is rendered from the context, a structured answer is
parsed. litellm is imported at the first call."""
