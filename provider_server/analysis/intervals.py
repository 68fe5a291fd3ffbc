"""Where an interval of 95% ends, in standard deviations of an estimate that is about normal."""

from scipy.stats import norm

NORMAL_95 = float(norm.ppf(0.975))
