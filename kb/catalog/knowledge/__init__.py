"""Documents, their versions, passages, moves and recipes, and what finds them."""
