"""OpenDP's exact samplers: the oracle for ours."""

import numpy as np
import opendp.prelude as dp

from crypto.inversion import Integers

dp.enable_features("contrib")


def opendp_gaussian(scale: float, size: int) -> Integers:
    """`size` draws of the discrete Gaussian."""
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return np.array((space >> dp.m.then_gaussian(scale=scale))(np.zeros(size, np.int64)), np.int64)


def opendp_laplace(scale: float, size: int) -> Integers:
    """`size` draws of the discrete Laplace."""
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return np.array((space >> dp.m.then_laplace(scale=scale))(np.zeros(size, np.int64)), np.int64)
