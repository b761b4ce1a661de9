"""Writes objectives.json: losses and gradients of every objective and correction by PyTorch's autograd.

Python 3.11, torch 2.15.0, in 64-bit floats. The formulas are written from the papers, over whole tensors, with `detach` where a
paper stops the gradient.
"""

import itertools
import json
import pathlib

import torch

LOW, HIGH = 0.2, 0.28


def clipped(ratio, advantage):
    """PPO, eq. 7, as a cost."""
    return -torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - LOW, 1 + HIGH) * advantage)


def generation_cost(loss, policy, old, advantage):
    """Cost of each token of one generation."""
    log_ratio = policy - old
    if loss == "ppo":
        return clipped(torch.exp(log_ratio), advantage)
    if loss == "gspo":
        # The sequence's own likelihood ratio, length-normalized, counts for each of its tokens.
        return clipped(torch.exp(log_ratio.mean()), advantage).expand(len(policy))
    if loss == "cispo":
        return -torch.clamp(torch.exp(log_ratio), 1 - LOW, 1 + HIGH).detach() * advantage * policy
    return -advantage * policy


def correction(kind, old, sampling):
    """Importance weight of each token of one generation."""
    if kind is None:
        return torch.ones_like(old)
    level, limit = kind
    difference = old - sampling
    if level == "generation":
        difference = difference.sum().expand(len(old))
    if level == "geometric_mean":
        difference = difference.mean().expand(len(old))
    weight = torch.exp(difference)
    if limit[0] == "truncate":
        return torch.clamp(weight, max=limit[1])
    return torch.where((weight < limit[1]) | (weight > limit[2]), torch.zeros_like(weight), weight)


def total(sequences, config, policies):
    spans = [(q, policy, s) for q, policy in zip(sequences, policies) for s in q["spans"] if s["len"] > 0]
    n_tokens = sum(s["len"] for _, _, s in spans)
    n_sequences = sum(any(s["len"] for s in q["spans"]) for q in sequences)
    loss = torch.zeros((), dtype=torch.float64)
    for q, policy, s in spans:
        cut = slice(s["start"], s["start"] + s["len"])
        sampling = torch.tensor(q["sampling"], dtype=torch.float64)[cut]
        old = sampling if q["old"] is None else torch.tensor(q["old"], dtype=torch.float64)[cut]
        cost = generation_cost(config["loss"], policy[cut], old, s["advantage"])
        cost = cost * correction(config["correction"] if q["old"] else None, old, sampling)
        if config["aggregation"] == "token":
            loss = loss + cost.sum() / n_tokens
        elif config["aggregation"] == "sequence":
            loss = loss + cost.sum() / sum(o["len"] for o in q["spans"]) / n_sequences
        elif config["aggregation"] == "generation":
            loss = loss + cost.mean() / len(spans)
        else:
            loss = loss + cost.sum() / config["aggregation"] / len(spans)
    return loss


def main():
    generator = torch.Generator().manual_seed(20260401)

    def f32(values):
        return [float(v) for v in values.to(torch.float32)]

    def sequence(n, spans, with_old):
        noise = lambda scale: scale * torch.randn(n, generator=generator, dtype=torch.float64)
        sampling = torch.log(torch.rand(n, generator=generator, dtype=torch.float64))
        old = sampling + noise(0.3) if with_old else None
        return {
            "policy": f32((sampling if old is None else old) + noise(0.3)),
            "sampling": f32(sampling),
            "old": None if old is None else f32(old),
            "spans": [{"start": a, "len": k, "advantage": v} for a, k, v in spans],
        }

    corrections = [None] + [
        (level, limit)
        for level in ("token", "generation", "geometric_mean")
        for limit in (("truncate", 1.25), ("mask", 0.8, 1.4))
    ]
    aggregations = itertools.cycle(["token", "sequence", "generation", 16])
    cases = []
    for loss, kind in itertools.product(["ppo", "gspo", "cispo", "reinforce"], corrections):
        for aggregation in [next(aggregations)] if kind else ["token", "sequence", "generation", 16]:
            config = {"loss": loss, "low": LOW, "high": HIGH, "correction": kind, "aggregation": aggregation}
            sequences = [
                sequence(12, [(1, 4, 0.75), (6, 5, -0.5)], kind is not None),
                sequence(5, [(2, 3, -1.25)], kind is not None),
                sequence(7, [(0, 1, 0.5), (1, 0, 2.0), (3, 3, 1.5)], kind is not None),
            ]
            policies = [torch.tensor(q["policy"], dtype=torch.float64, requires_grad=True) for q in sequences]
            value = total(sequences, config, policies)
            value.backward()
            cases.append({"config": config, "sequences": sequences, "loss": value.item(),
                          "gradients": [p.grad.tolist() for p in policies]})
    out = pathlib.Path(__file__).with_suffix(".json")
    out.write_text(json.dumps(cases) + "\n")


main()
