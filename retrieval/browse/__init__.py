"""Looking around without a question: the knowledge tree and the coverage of a chip."""
