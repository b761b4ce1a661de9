"""Writes the golden files of `update_gradient.rs`: one minibatch, its loss, and the gradient of the whole objective.

    python -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0 safetensors numpy
    venv/bin/python jobs/tests/golden/update/update.py

`policy/` and `reference/` are two tiny random models in f32. The minibatch has two tasks in groups of two samples:
each sample has an actor sequence with two generations and a rehearsal sequence with one. The actor sequences of a
group share their prompt and all of them its head, the rehearsal sequences share another head. Logprobs come from
`transformers` (eager attention, f32); the loss is written here from its formulas, in f64, and derived by autograd.

- `minibatch.json`: the sequences, the clip and divergence settings, and for each objective and role the two parts of
  the loss and what was clipped;
- `gradients.safetensors`: for each tensor of the model its gradients, (rows, *shape), in the order of the `rows` of
  the JSON. A row of one role has the loss of its generations alone, divided by the totals of the whole minibatch.

Rounding must not decide what is clipped: the seed is the first one at which no ratio and no divergence lies within
`MARGIN` of a bound, and at which every bound holds somewhere.
"""

import json
import math
import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
TEMPERATURE = 0.7
CLIP_LOW, CLIP_HIGH, DUAL = 0.2, 0.2, 3.0
KL_COEFFICIENT, K3_LIMIT = 0.1, 10.0
MARGIN = 2e-3
CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "torch_dtype": "float32",
}
# (task, sample, role): for each generation the tokens before it since the last one, its length, its advantage.
SHAPES = [
    ("one", 0, "actor", [(0, 5, 0.75), (4, 6, 0.75)]),
    ("one", 0, "rehearsal", [(5, 7, 0.5)]),
    ("one", 1, "actor", [(0, 7, -0.75), (6, 3, -1.25)]),
    ("one", 1, "rehearsal", [(3, 4, -0.5)]),
    ("two", 0, "actor", [(0, 3, -1.0), (3, 8, -1.0)]),
    ("two", 0, "rehearsal", [(6, 3, -1.5)]),
    ("two", 1, "actor", [(0, 6, 0.25), (5, 1, 1.0)]),
    ("two", 1, "rehearsal", [(4, 6, 1.5)]),
]
N_SYSTEM, N_USER, N_REHEARSAL_HEAD = 12, 8, 14
AGGREGATIONS = ["token", "sequence", "generation"]
ROLES = ["all", "actor", "rehearsal"]
OBJECTIVES = [(aggregation, dual) for aggregation in AGGREGATIONS for dual in (None, DUAL)]


def random_model(name):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", torch_dtype=torch.float32)
    for key, parameter in model.named_parameters():
        center = 1.0 if "norm" in key else 0.0
        parameter.data = (center + 0.3 * torch.randn_like(parameter)).contiguous()
    return model.eval()


def near(model, deviation):
    """A model whose weights lie around those of another."""
    other = random_model("reference")
    for one, two in zip(other.parameters(), model.parameters()):
        one.data = two.data + deviation * torch.randn_like(two)
    return other


def draw(n):
    return torch.randint(0, CONFIG["vocab_size"], (n,)).tolist()


def minibatch():
    system, rehearsal_head = draw(N_SYSTEM), draw(N_REHEARSAL_HEAD)
    user = {task: draw(N_USER) for task in ("one", "two")}
    sequences = []
    for task, sample, role, generations in SHAPES:
        token_ids = list(system + user[task]) if role == "actor" else list(rehearsal_head)
        spans, trained = [], []
        for n_before, n_tokens, advantage in generations:
            token_ids += draw(n_before)
            spans.append({"start": len(trained), "len": n_tokens, "advantage": advantage})
            trained += range(len(token_ids), len(token_ids) + n_tokens)
            token_ids += draw(n_tokens)
        sequences.append(
            {"task": task, "sample": sample, "role": role, "token_ids": token_ids, "trained": trained, "spans": spans}
        )
    return sequences


def logprobs(model, sequence):
    token_ids = torch.tensor(sequence["token_ids"])
    logits = model(token_ids[None]).logits[0, :-1] / TEMPERATURE
    of_next = torch.log_softmax(logits, -1).gather(1, token_ids[1:, None])[:, 0]
    return of_next[torch.tensor(sequence["trained"]) - 1].double()


def token_terms(policy, sampling, reference, advantage, dual):
    """Policy and divergence term of the tokens of one generation, and which bound holds each."""
    ratio = torch.exp(policy - sampling)
    clamped = torch.clamp(ratio, 1 - CLIP_LOW, 1 + CLIP_HIGH)
    cost = -torch.minimum(ratio * advantage, clamped * advantage)
    low = (ratio < 1 - CLIP_LOW) & (advantage < 0)
    high = (ratio > 1 + CLIP_HIGH) & (advantage >= 0)
    held = torch.zeros_like(low)
    if dual is not None and advantage < 0:
        limit = torch.full_like(cost, -dual * advantage)
        held = cost > limit
        cost = torch.minimum(cost, limit)
    difference = policy - reference
    k3 = torch.clamp(torch.exp(-difference) - 1 + difference, max=K3_LIMIT)
    return cost, k3, {"low": int(low.sum()), "high": int(high.sum()), "dual": int(held.sum())}


def loss_of(sequences, known, aggregation, dual, roles):
    """The parts of the loss that the roles have, divided by the totals of all sequences."""
    n_tokens = sum(span["len"] for sequence in sequences for span in sequence["spans"])
    n_generations = sum(len(sequence["spans"]) for sequence in sequences)
    parts = {role: {"policy": 0.0, "kl": 0.0, "low": 0, "high": 0, "dual": 0} for role in roles}
    for sequence, (policy, sampling, reference) in zip(sequences, known):
        if sequence["role"] not in roles:
            continue
        in_sequence = sum(span["len"] for span in sequence["spans"])
        own = parts[sequence["role"]]
        for span in sequence["spans"]:
            here = slice(span["start"], span["start"] + span["len"])
            weight = {
                "token": 1 / n_tokens,
                "sequence": 1 / (len(sequences) * in_sequence),
                "generation": 1 / (n_generations * span["len"]),
            }[aggregation]
            cost, k3, held = token_terms(policy[here], sampling[here], reference[here], span["advantage"], dual)
            own["policy"] += weight * cost.sum()
            own["kl"] += weight * KL_COEFFICIENT * k3.sum()
            for bound, n in held.items():
                own[bound] += n
    return parts


def is_clear(sequences, known):
    """Whether no token lies at a bound, and each bound holds for a token of each role."""
    held = {role: set() for role in ("actor", "rehearsal")}
    for sequence, (policy, sampling, reference) in zip(sequences, known):
        ratio = torch.exp(policy - sampling)
        difference = policy - reference
        k3 = torch.exp(-difference) - 1 + difference
        for values, bound in [(ratio, 1 - CLIP_LOW), (ratio, 1 + CLIP_HIGH), (ratio, DUAL), (k3, K3_LIMIT)]:
            if bool(((values - bound).abs() < MARGIN).any()):
                return False
        for span in sequence["spans"]:
            here = slice(span["start"], span["start"] + span["len"])
            cost, _, bounds = token_terms(policy[here], sampling[here], reference[here], span["advantage"], DUAL)
            held[sequence["role"]] |= {bound for bound, n in bounds.items() if n}
            if len(cost) > sum(bounds.values()):
                held[sequence["role"]].add("free")
        if bool((k3 > K3_LIMIT).any()):
            held[sequence["role"]].add("k3")
    return all(len(bounds) == 5 for bounds in held.values())


def attempt(seed):
    torch.manual_seed(seed)
    model = random_model("policy")
    reference = near(model, 0.12)
    sequences = minibatch()
    known = []
    for sequence in sequences:
        policy = logprobs(model, sequence)
        # Most ratios lie near 1; every fifth is moved far away.
        noise = 0.15 * torch.randn(len(policy))
        noise[torch.arange(len(policy)) % 5 == 2] += torch.tensor(1.4)
        sampling = torch.clamp(policy.detach() - noise, max=0.0).float()
        sequence["sampling_logprobs"] = sampling.tolist()
        known.append((policy, sampling.double(), logprobs(reference, sequence).detach()))
    return model, reference, sequences, known


def main():
    seed = 1
    while True:
        model, reference, sequences, known = attempt(seed)
        if is_clear(sequences, known):
            break
        seed += 1
        assert seed < 100_000
    for name, weights in [("policy", model), ("reference", reference)]:
        tensors = {key: parameter.data for key, parameter in weights.named_parameters()}
        save_file(tensors, HERE / name / "model.safetensors", {"format": "pt"})
    gradients = {key: [] for key, _ in model.named_parameters()}
    rows = []
    for aggregation, dual in OBJECTIVES:
        for role in ROLES:
            roles = ROLES[1:] if role == "all" else [role]
            parts = loss_of(sequences, known, aggregation, dual, roles)
            loss = sum(own["policy"] + own["kl"] for own in parts.values())
            model.zero_grad()
            loss.backward(retain_graph=True)
            for key, parameter in model.named_parameters():
                gradients[key].append(parameter.grad.clone())
            rows.append(
                {
                    "aggregation": aggregation,
                    "dual": dual,
                    "role": role,
                    "parts": {
                        name: {key: value.item() if torch.is_tensor(value) else value for key, value in own.items()}
                        for name, own in parts.items()
                    },
                }
            )
    save_file({key: torch.stack(values) for key, values in gradients.items()}, HERE / "gradients.safetensors")
    settings = {"clip_low": CLIP_LOW, "clip_high": CLIP_HIGH, "kl_coefficient": KL_COEFFICIENT}
    settings |= {"temperature": TEMPERATURE, "seed": seed}
    lines = [json.dumps(settings)[:-1], f'"rows": [\n{",".join(json.dumps(row) + chr(10) for row in rows)}]']
    lines.append(f'"sequences": [\n{",".join(json.dumps(sequence) + chr(10) for sequence in sequences)}]}}')
    (HERE / "minibatch.json").write_text(",\n".join(lines) + "\n")
    for row in rows:
        print(row)
    ratios = torch.cat([torch.exp(policy - sampling) for policy, sampling, _ in known])
    print("seed", seed, "ratios", ratios.min().item(), ratios.max().item(), "of", len(ratios))
    assert all(math.isfinite(value) for row in rows for own in row["parts"].values() for value in own.values())


main()
