"""The provider's records in SQL."""
