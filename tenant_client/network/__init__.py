"""The ways out of a tenant's machine: Flower's SuperLink, the provider's online service, the trustees."""
