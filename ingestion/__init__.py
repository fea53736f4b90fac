"""Documents in: parsed into elements, cut into sections and passages, tagged, and stored."""
