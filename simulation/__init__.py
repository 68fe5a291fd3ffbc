"""A cloud with ground truth that runs the real tenant, trustee and provider code, and replays of real data."""
