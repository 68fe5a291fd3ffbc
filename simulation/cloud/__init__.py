"""A cloud with ground truth: scenarios, arrivals, degradation, true hazards."""
