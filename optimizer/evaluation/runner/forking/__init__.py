"""Runners and compilations forked from an interpreter that has its imports done."""
