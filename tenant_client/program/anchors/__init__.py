"""The journal as a chain of facts, which trustees anchor week by week, so that a claim can rest on it."""
