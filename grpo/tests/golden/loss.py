"""Writes loss.json: losses and gradients by automatic differentiation of the plain formulas.

Python 3.11, numpy 2.4.6 for the numbers; the derivative is taken by complex-step differentiation
(numpy complex128, step 1e-30), which is exact to rounding and knows nothing of the hand-written one.
"""

import json
import pathlib

import numpy as np

STEP = 1e-30


def pick(condition, one, two):
    return one if condition else two


def minimum(one, two):
    return pick(one.real <= two.real, one, two)


def token_loss(policy, sampling, ref, advantage, config):
    ratio = np.exp(policy - sampling)
    low, high, dual = config["low"], config["high"], config["dual"]
    clamped = pick(ratio.real < 1 - low, complex(1 - low), pick(ratio.real > 1 + high, complex(1 + high), ratio))
    cost = -minimum(ratio * advantage, clamped * advantage)
    if dual is not None and advantage < 0:
        cost = minimum(cost, complex(-dual * advantage))
    kl = 0j
    if ref is not None:
        d = policy - ref
        kl = {"k1": d, "k2": d * d / 2, "k3": np.exp(-d) - 1 + d}[config["kl"]]
    return cost, kl


def total(sequences, config, policies):
    """Policy part and divergence part of the loss of a whole batch."""
    n_tokens = sum(s["len"] for q in sequences for s in q["spans"])
    n_sequences = sum(any(s["len"] for s in q["spans"]) for q in sequences)
    n_generations = sum(s["len"] > 0 for q in sequences for s in q["spans"])
    policy_part, kl_part = 0j, 0j
    for q, policy in zip(sequences, policies):
        in_sequence = sum(s["len"] for s in q["spans"])
        for s in q["spans"]:
            for t in range(s["start"], s["start"] + s["len"]):
                weight = {
                    "token": 1 / n_tokens,
                    "sequence": 1 / (n_sequences * in_sequence),
                    "generation": 1 / (n_generations * s["len"]),
                }[config["aggregation"]]
                ref = q["ref"][t] if q["ref"] is not None else None
                cost, kl = token_loss(policy[t], q["sampling"][t], ref, s["advantage"], config)
                policy_part += weight * cost
                kl_part += weight * config["coefficient"] * kl
    return policy_part, kl_part


def gradients(sequences, config):
    base = [np.array(q["policy"], dtype=complex) for q in sequences]
    result = []
    for i, q in enumerate(sequences):
        row = []
        for t in range(len(q["policy"])):
            moved = [b.copy() for b in base]
            moved[i][t] += 1j * STEP
            row.append(sum(total(sequences, config, moved)).imag / STEP)
        result.append(row)
    return result


def main():
    rng = np.random.default_rng(20240607)

    def f32(values):
        return [float(np.float32(v)) for v in values]

    def sequence(n, spans, with_ref):
        sampling = -rng.exponential(1.0, n)
        return {
            "policy": f32(sampling + rng.normal(0, 0.4, n)),
            "sampling": f32(sampling),
            "ref": f32(sampling + rng.normal(0, 0.5, n)) if with_ref else None,
            "spans": [{"start": a, "len": k, "advantage": float(v)} for a, k, v in spans],
        }

    cases = []
    for aggregation in ("token", "sequence", "generation"):
        for kl in (None, "k1", "k2", "k3"):
            config = {"low": 0.2, "high": 0.28, "dual": 1.5 if kl in (None, "k2") else None,
                      "aggregation": aggregation, "kl": kl or "k3", "coefficient": 0.3 if kl else 0.0}
            ref = kl is not None
            sequences = [
                sequence(12, [(1, 4, 0.75), (6, 5, -0.5)], ref),
                sequence(5, [(2, 3, -1.25)], ref),
                sequence(7, [(0, 1, 0.5), (1, 0, 2.0), (3, 3, 0.0)], ref),
                sequence(3, [], ref),
            ]
            base = [np.array(q["policy"], dtype=complex) for q in sequences]
            policy_part, kl_part = total(sequences, config, base)
            cases.append({"config": config, "sequences": sequences, "policy_loss": policy_part.real,
                          "kl_loss": kl_part.real, "gradients": gradients(sequences, config)})
    out = pathlib.Path(__file__).with_suffix(".json")
    out.write_text(json.dumps(cases, indent=1) + "\n")


main()
