"""Cryptographic and privacy primitives, shared by all parties.

Pure: no I/O and no clock. Randomness is an argument, unless the first line of a function says that it draws from the
system's generator.
"""
