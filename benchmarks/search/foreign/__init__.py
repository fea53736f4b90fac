"""Problems that no recipe was written for: drawn by seed from a grammar, searched, and reported."""
