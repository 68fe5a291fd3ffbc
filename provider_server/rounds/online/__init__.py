"""The online service that tenants ask between rounds."""
