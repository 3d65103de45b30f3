"""Samplers and schedules written out again from their papers, in float64 and without diffusers."""

import math
from collections.abc import Callable, Sequence

from regdiff import SCHEDULERS


def cosine_abar(steps: int) -> list[float]:
    """abar of the cosine schedule (Nichol and Dhariwal 2021), as products of Python floats."""
    f = [math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(steps + 1)]
    abar, product = [], 1.0
    for t in range(steps):
        product *= 1 - min(0.999, 1 - f[t + 1] / f[t])
        abar.append(product)
    return abar


def levels(name: str, steps: int) -> tuple[list[float], list[float]]:
    """Signal and sigma of every timestep, for a `make_scheduler` name."""
    if "flow" in SCHEDULERS[name].prediction_types:
        return [1 - (t + 1) / steps for t in range(steps)], [(t + 1) / steps for t in range(steps)]
    abar = cosine_abar(steps)
    return [math.sqrt(a) for a in abar], [math.sqrt(1 - a) for a in abar]


def posterior(abar: float, before: float, eta: float = 1.0) -> tuple[float, float, float]:
    """Song et al. (2021), eq. 12: x_{t-1} = a x_t + b x_0 + s z; eta = 1 is Ho et al. (2020), eq. 7."""
    s2 = eta**2 * (1 - before) / (1 - abar) * (1 - abar / before)
    a = math.sqrt(max(0.0, 1 - before - s2)) / math.sqrt(1 - abar)
    return a, math.sqrt(before) - a * math.sqrt(abar), math.sqrt(s2)


def predicted(kind: str, x, clean, signal, sigma):
    """What a denoiser of this prediction type says when it believes in `clean`."""
    eps = (x - signal * clean) / sigma
    return {
        "epsilon": lambda: eps,
        "sample": lambda: clean,
        "v_prediction": lambda: signal * eps - sigma * clean,
        "flow": lambda: eps - clean,
    }[kind]()


def step(
    name: str, x, cleans: Sequence, now: tuple[float, ...], after: tuple[float, float], past: Sequence, z, **options
):
    """One step of a sampler, on anything that can be added and scaled.

    Args:
        name: `make_scheduler` name.
        x: At `now` = (signal, sigma, timestep).
        cleans: Estimates of x_0 so far, the latest last.
        after: Signal and sigma after the step; (1, 0) after the last.
        past: (signal, sigma) of the earlier steps, the latest last.
        z: The step's noise.
        **options: eta, order, solver_type, scaling; of TCD the next timestep and the levels at any.
    """
    (signal, sigma, t), (signal2, sigma2) = now, after
    clean = cleans[-1]
    if name in ("ddpm", "ddim", "euler", "euler-ancestral"):  # the last is DDPM in other coordinates
        eta = {"ddpm": 1.0, "euler-ancestral": 1.0, "euler": 0.0}.get(name, options.get("eta", 1.0))
        a, b, s = posterior(signal**2, signal2**2, eta)
        return a * x + b * clean + s * z
    if name == "flow":  # along the straight line to x_0
        return sigma2 / sigma * x + (1 - sigma2 / sigma) * clean
    if name == "lcm":  # Song et al. (2023), eq. 5, sigma_data = 0.5; then Luo et al. (2023), algorithm 3
        scaled = t * options.get("scaling", 10.0)
        skip, out = 0.25 / (scaled**2 + 0.25), scaled / math.sqrt(scaled**2 + 0.25)
        jumped = out * clean + skip * x
        return jumped if sigma2 == 0 else signal2 * jumped + sigma2 * z
    if name == "tcd":  # Zheng et al. (2024), algorithm 2: down to s < t' without noise, and up to t' with it
        if sigma2 == 0:
            return clean
        signal_s, sigma_s = options["at"](math.floor((1 - options.get("eta", 1.0)) * options["next"]))
        kept = signal2 / signal_s
        down = signal_s * clean + sigma_s * (x - signal * clean) / sigma
        return kept * down + math.sqrt(1 - kept**2) * z
    return _dpm(name, x, cleans, (signal, sigma), after, past, z, options)


def heun(x, clean: Callable, now: tuple[float, float], after: tuple[float, float]):
    """Karras et al. (2022), algorithm 1 without churn: the mean of the slopes at both ends, in s = sigma / signal.

    There the last step alone, to s = 0, has one slope; here each that takes s to less than a third of itself.
    """
    (signal, sigma), (signal2, sigma2) = now, after
    s, s2, y = sigma / signal, sigma2 / signal2, x / signal
    slope = (y - clean(x, signal, sigma)) / s
    euler = y + (s2 - s) * slope
    if s > 3 * s2:  # no correction where it would amplify errors, the last step included
        return signal2 * euler
    slope2 = (euler - clean(signal2 * euler, signal2, sigma2)) / s2
    return signal2 * (y + (s2 - s) * (slope + slope2) / 2)


def _dpm(name, x, cleans, now, after, past, z, options):
    """DPM-Solver++ (Lu et al. 2022), an exponential integrator in l = log(signal / sigma).

    ODE: x' = sigma'/sigma x + signal' int_0^h e^(s - h) clean(s) ds, the clean sample extrapolated from its latest
    values. Of order 2, "heun" is the integral of the line and "midpoint" takes the line's middle. SDE: the exponent is
    doubled, and noise of variance sigma'^2 (1 - e^(-2h)) is added. Order 3 gives the curvature the weight of the
    authors' own code, which is half of the parabola's.
    """
    sigma, (signal2, sigma2) = now[1], after
    order = min(options.get("order", 2), len(cleans))
    if sigma2 == 0:
        return cleans[-1]  # h is infinite: nothing of x or of the slopes is left
    lam = [math.log(a / s) for a, s in (*past, now)]
    h = math.log(signal2 / sigma2) - lam[-1]
    rate = 2.0 if name == "sde-dpmsolver++" else 1.0
    # phi_k: integral of the kernel rate e^(rate (s - h)) times s^(k - 1) / (k - 1)!
    phi1 = 1 - math.exp(-rate * h)
    phi2 = h - phi1 / rate
    phi3 = h**2 / 2 - phi2 / rate
    result = sigma2 / sigma * math.exp(-(rate - 1) * h) * x + signal2 * phi1 * cleans[-1]
    if order >= 2:
        slope = (cleans[-1] - cleans[-2]) / (lam[-1] - lam[-2])
        if order == 2 and options.get("solver_type", "midpoint") == "midpoint":
            result = result + signal2 * phi1 * h / 2 * slope
        elif order == 2:
            result = result + signal2 * phi2 * slope
        else:
            older = (cleans[-2] - cleans[-3]) / (lam[-2] - lam[-3])
            curve = (slope - older) / (lam[-1] - lam[-3])
            slope = slope + curve * (lam[-1] - lam[-2])
            result = result + signal2 * phi2 * slope + signal2 * phi3 * curve
    if rate == 2:
        result = result + sigma2 * math.sqrt(1 - math.exp(-2 * h)) * z
    return result


def chain(name: str, steps: int, timesteps: Sequence[int], x, clean: Callable, noises: Sequence, **options) -> list:
    """x after every step; `clean(x, signal, sigma)` is the denoiser."""
    signal, sigma = levels(name, steps)
    cleans, past, result = [], [], []
    for i, t in enumerate(timesteps):
        after = (1.0, 0.0) if i + 1 == len(timesteps) else (signal[timesteps[i + 1]], sigma[timesteps[i + 1]])
        if name == "heun":
            x = heun(x, clean, (signal[t], sigma[t]), after)
            result.append(x)
            continue
        if name == "tcd":
            options |= {"at": lambda s: (signal[s], sigma[s]), "next": (*timesteps, 0)[i + 1]}
        cleans.append(clean(x, signal[t], sigma[t]))
        if len(timesteps) < 15:
            options["order"] = min(options.get("order", 2), len(timesteps) - i)
        x = step(name, x, cleans, (signal[t], sigma[t], t), after, past, noises[i], **options)
        past.append((signal[t], sigma[t]))
        result.append(x)
    return result
