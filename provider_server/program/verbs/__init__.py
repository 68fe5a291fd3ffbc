"""The verbs of `pharoah-provider`, by purpose."""
