"""Ingestion, answers about the built-in knowledge, and a service under load and kills."""
