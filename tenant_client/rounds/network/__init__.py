"""All network connections of a tenant: Flower's SuperLink, the provider's online service, the trustees."""
