"""What a person calls: verbs, page, service."""
