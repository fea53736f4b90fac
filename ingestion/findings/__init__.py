"""What is read out of sections beside their text: signals, scopes, facts, moves."""
