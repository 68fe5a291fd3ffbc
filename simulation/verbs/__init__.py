"""The verbs of `pharoah-sim`: a module is imported when one of its verbs is called."""
