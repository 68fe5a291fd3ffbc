"""Findings for people: text, and rows for JSON."""
