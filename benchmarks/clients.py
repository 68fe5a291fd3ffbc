"""How far simulated tenants are from published clients: how unequal their rates are, and how unsteady their weeks.

    SERVEGEN=FOLDER python -m benchmarks.clients [fitted] [judged]

FOLDER is a checkout of ServeGen (Xiang and others, NSDI 2026; github.com/alibaba/ServeGen): requests per second of each
client of five served models, in windows of ten minutes. `fitted` fits the laws of `simulation/cloud/client_laws.toml`
to the clients with even numbers. `judged` compares clients with a Kolmogorov–Smirnov distance, those with odd numbers
and all of them, with 200,000 tenants of these laws and with as many as shipped without them (Zipf's law, steady weeks):

`rates`  the logarithm of a client's mean rate less the mean logarithm of its model's clients
`weeks`  the absolute logarithm of a client's second week over its first, of those that sent something in both
"""

import os
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtri
from scipy.stats import ks_2samp, norm

from benchmarks.figures import Figure, main
from simulation.cloud.client_laws import ClientLaws, published

Floats = NDArray[np.float64]
WINDOWS_A_WEEK = 7 * 24 * 6
TENANTS, SEED = 200_000, 14
QUANTILES = ndtri((np.arange(200) + 0.5) / 200)
AS_SHIPPED = (0.1, 0.3)  # burstiness without the laws, uniform, as `simulation.cloud.profiles` draws it
ZIPF, ZIPF_TENANTS = 1.1, 200


@cache
def clients() -> dict[str, list[Floats]]:
    """Rates of the clients of each model: shape (windows,)."""
    folder = Path(os.environ.get("SERVEGEN", "ServeGen"))
    files = sorted(folder.glob("data/*/*/chunk-*-trace.csv"), key=lambda file: int(file.name.split("-")[1]))
    if not files:
        raise FileNotFoundError(f"no data/*/*/chunk-*-trace.csv in {folder}: set SERVEGEN")
    found: dict[str, list[Floats]] = {}
    for file in files:
        lines = file.read_text(encoding="ascii").splitlines()
        of_client = np.array([float(line.split(",")[1] or 0.0) for line in lines])
        found.setdefault(file.parent.name, []).append(of_client)
    return found


def rates(chosen: slice) -> Floats:
    """The logarithms of mean rates of the chosen clients of each model, less their mean."""
    parts = []
    for of_model in clients().values():
        means = np.array([one.mean() for one in of_model[chosen]])
        logs = np.log(means[means > 0])
        parts.append(logs - logs.mean())
    return np.concatenate(parts)


def weeks(chosen: slice) -> Floats:
    """Absolute logarithms of the second week over the first, of the chosen clients that sent something in both."""
    whole = [one for of_model in clients().values() for one in of_model[chosen] if len(one) == 2 * WINDOWS_A_WEEK]
    both = np.array([one.reshape(2, WINDOWS_A_WEEK).mean(axis=1) for one in whole])
    both = both[(both > 0).all(axis=1)]
    return np.asarray(np.abs(np.log(both[:, 1] / both[:, 0])))


def fitted() -> Figure:
    """The laws that fit the clients with even numbers best."""
    seen = weeks(slice(0, None, 2))

    def unlikely(of: Floats) -> float:
        deviations = np.sqrt(2.0) * np.exp(of[0] + of[1] * QUANTILES)
        return -float(np.log(norm.pdf(seen[:, None], scale=deviations).mean(axis=1)).sum())

    median, sigma = minimize(unlikely, [-1.0, 1.0], method="Nelder-Mead").x
    return {"rate_sigma": rates(slice(0, None, 2)).std(), "week_median": np.exp(median), "week_sigma": sigma}


def judged() -> Figure:
    """KS distances of published clients from tenants of the laws, and from tenants as shipped."""
    rng = np.random.default_rng(SEED)
    ours, shipped = _drawn(published(), rng), _as_shipped(rng)
    figure: Figure = {}
    for name, of in (("rates", rates), ("weeks", weeks)):
        for half, chosen in (("odd", slice(1, None, 2)), ("all", slice(None))):
            real = of(chosen)
            figure |= {
                f"{name}_{half}_clients": len(real),
                f"{name}_{half}": ks_2samp(real, ours[name]).statistic,
                f"{name}_{half}_as_shipped": ks_2samp(real, shipped[name]).statistic,
            }
        halves = of(slice(0, None, 2)), of(slice(1, None, 2))
        figure[f"{name}_even_against_odd"] = ks_2samp(*halves).statistic
    return figure


def _drawn(laws: ClientLaws, rng: np.random.Generator) -> dict[str, Floats]:
    logs = np.log(laws.shares(TENANTS, rng))
    return {"rates": logs - logs.mean(), "weeks": _week_ratios(laws.burstiness(TENANTS, rng), rng)}


def _as_shipped(rng: np.random.Generator) -> dict[str, Floats]:
    logs = -ZIPF * np.log(np.arange(1, ZIPF_TENANTS + 1))
    return {"rates": logs - logs.mean(), "weeks": _week_ratios(rng.uniform(*AS_SHIPPED, TENANTS), rng)}


def _week_ratios(burstiness: Floats, rng: np.random.Generator) -> Floats:
    return np.asarray(np.abs(rng.normal(0.0, np.sqrt(2.0) * burstiness)))


if __name__ == "__main__":
    main(fitted, judged)
