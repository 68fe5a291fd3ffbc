"""Benchmarks of `pharoah-sim bench`."""
