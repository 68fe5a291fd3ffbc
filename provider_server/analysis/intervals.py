"""Half-width of a 95% interval, in standard deviations of an approximately normal estimate."""

from scipy.stats import norm

NORMAL_95 = float(norm.ppf(0.975))
