"""What proposes candidates: recipes, torch's own compiler, language models, other programs."""
