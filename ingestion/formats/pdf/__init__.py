"""PDF: from characters on a page to elements."""
