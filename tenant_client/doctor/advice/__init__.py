"""Advice for the owner from hints and from changes between runs."""
