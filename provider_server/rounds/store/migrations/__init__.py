"""The schema of the provider's store, step by step. `upgrade` takes a database through the steps that it lacks."""
