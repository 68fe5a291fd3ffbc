"""The tenant's half: describes, records, counts and contributes. Nothing readable leaves it."""
