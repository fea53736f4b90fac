"""What a library that began empty learns from runs, and what that saves other searches."""
