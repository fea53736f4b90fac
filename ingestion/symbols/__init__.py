"""The named parts of a chip's languages, as its manual defines them."""
