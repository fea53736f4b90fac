"""How long a candidate takes beside the reference: blocks in two processes, and figures from
them."""
