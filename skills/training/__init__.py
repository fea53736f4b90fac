"""Trajectories as training data: state, action and reward in the shapes that trainers load."""
