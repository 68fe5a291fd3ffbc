"""Pictures of what was learnt, for people who look before they read: rates, mismatches, calibration and contexts."""
