"""Leases as they begin and end: from lines of JSON, over a webhook, and from schedulers."""
