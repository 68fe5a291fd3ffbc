"""What tenants' counts add up to: round, release, store, online service, intake."""
