"""What searches gain and survive, and what knowledge saves them."""
