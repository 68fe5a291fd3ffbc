"""A federation of real parties, in one process or as programs, that lives through a scenario."""
