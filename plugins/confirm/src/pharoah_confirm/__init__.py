"""Tests suspected hardware with micro-benchmarks, judges the results, and selects which tests are worth their time.

`sample` says what a benchmark is; `cpu`, `storage`, `pair` and `cuda` measure; `criteria` judges a sample; `pairwise`
finds bad nodes and links among many; `select` weighs risk against minutes; `kept` reads and writes files. `replay`
computes the same again and again, and `determinism` finds devices that do not.
"""
