"""How much each tenant sends, and how unsteadily, by laws fitted to published clients (`client_laws.toml`)."""

import tomllib
from pathlib import Path

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

TABLE = Path(__file__).with_suffix(".toml")


class ClientLaws(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Log-normal laws; see the table for what each number is."""

    rate_sigma: float
    week_median: float
    week_sigma: float

    def shares(self, clients: int, rng: Generator) -> NDArray[np.float64]:
        """Each client's share of all jobs, the heaviest first: shape (clients,)."""
        rates = np.sort(rng.lognormal(0.0, self.rate_sigma, clients))[::-1]
        return np.asarray(rates / rates.sum())

    def burstiness(self, clients: int, rng: Generator) -> NDArray[np.float64]:
        """The standard deviation of the logarithm of each client's weekly load: shape (clients,)."""
        return np.asarray(rng.lognormal(np.log(self.week_median), self.week_sigma, clients))


def published() -> ClientLaws:
    """The numbers of `client_laws.toml`."""
    return msgspec.convert(tomllib.loads(TABLE.read_text(encoding="utf-8")), ClientLaws)
