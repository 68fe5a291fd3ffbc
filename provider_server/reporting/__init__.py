"""Findings for people: text, rows for JSON, figures and one HTML page."""
