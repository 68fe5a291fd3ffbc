"""The verbs of `pharoah-tenant`, by purpose."""
