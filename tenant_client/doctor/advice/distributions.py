"""Student's t and fair coins: the few values of distributions that a tenant needs, to a part in 10¹².

The incomplete beta function is evaluated by its continued fraction (Lentz's method; Abramowitz and Stegun 26.5.8).

    t_quantile(9, 0.975)    # 2.2621571628
"""

import math

MOST_TERMS = 100_000
SMALL = 1e-300  # in place of a zero by which would be divided


def t_below(freedom: float, t: float) -> float:
    """The probability that Student's t is at most `t`."""
    if t * t < freedom:  # between 0 and t; as a tail it would lose its digits
        return 0.5 + math.copysign(_incomplete_beta(0.5, freedom / 2, t * t / (freedom + t * t)) / 2, t)
    tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return tail if t < 0 else 1 - tail


def t_quantile(freedom: float, probability: float) -> float:
    """The value that Student's t is below with this probability, strictly between 0 and 1."""
    if probability == 0.5:
        return 0.0
    if probability > 0.5:
        return -t_quantile(freedom, 1 - probability)
    low, high = -1.0, 0.0
    while t_below(freedom, low) > probability:
        low, high = 2 * low, low
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_below(freedom, middle) < probability else (low, middle)
    return high


def at_least_heads(least: int, tosses: int) -> float:
    """The probability of `least` heads, at least one, or more in `tosses` of a fair coin."""
    return _incomplete_beta(least, tosses - least + 1, 0.5) if least <= tosses else 0.0


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, for `x` from 0 to 1."""
    if x <= 0 or x >= 1:
        return 1.0 if x >= 1 else 0.0
    if x > (a + 1) / (a + b + 2):  # there the fraction converges slowly
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or SMALL)
    fraction = d
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = 1 + term / c or SMALL, 1 / (1 + term * d or SMALL)
            fraction *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return math.exp(log_front) * fraction / a
