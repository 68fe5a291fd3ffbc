"""Compares findings with the truth that only the simulation knows."""
