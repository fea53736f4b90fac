"""What a model says, as a bundle or as what is wrong with it."""
