"""Paths between two nodes of the provider's fabric, and what speaks against each hop."""
