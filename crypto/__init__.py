"""What both trust domains share: the wire contract and the privacy primitives.

Everything here is pure: no I/O, no clock. Randomness comes in as an argument, except where a function's first
line says that it draws from the system's generator. Neither the tenant's nor the provider's code is imported.
"""
