"""Confirming a suspicion: the one micro-benchmark that tests it, its statistics, and which test is worth its minutes.

`sample` says what a benchmark is; `cpu`, `storage`, `pair` and `cuda` measure; `criteria` judges a sample; `pairwise`
finds bad nodes and links among many; `select` weighs risk against minutes; `kept` reads and writes files.
"""
