"""Half-width of a 95% interval, in standard deviations of an approximately normal estimate."""

from scipy.special import ndtri

NORMAL_95 = float(ndtri(0.975))
