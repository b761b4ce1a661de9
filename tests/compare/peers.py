"""One measurement of torch and transformers.

    python peers.py WORK --model DIR --spec FILE

Prints one line of JSON: `seconds` and `tokens` of what is measured, `peak_bytes`, the largest resident set of the
process, and `base_bytes`, the resident set once everything is imported. An update adds `loss` and `gradient_norm` of its
first application, whose weights are those of the checkpoint: both sides must agree on them.

Threads: OMP_NUM_THREADS, by default 2.
"""

import argparse
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"  # A folder that is not there is not looked for elsewhere.

import torch  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, StaticCache  # noqa: E402
from transformers.models.qwen3 import modeling_qwen3  # noqa: E402, F401  (counted with the imports)


def resident_bytes(field):
    """`VmRSS` or `VmHWM` of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def seconds_of(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


# Sampling


def generate(model, spec, n_new):
    """`generate` on all prompts at once; nothing ends a generation before its `n_new` tokens."""
    ids = torch.tensor(spec["prompts"])
    config = GenerationConfig(
        do_sample=True,
        temperature=spec["temperature"],
        top_k=0,
        top_p=1.0,
        min_new_tokens=n_new,
        max_new_tokens=n_new,
        eos_token_id=None,
        pad_token_id=0,
    )
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    assert out.shape == (ids.shape[0], ids.shape[1] + n_new), out.shape


def sample(model, spec):
    n_new = spec["n_new"]
    generate(model, spec, min(8, n_new))
    seconds = seconds_of(lambda: generate(model, spec, n_new))
    return {"seconds": seconds, "tokens": len(spec["prompts"]) * n_new}


def decode(model, spec):
    n_new = spec["n_new"]
    generate(model, spec, 1)
    only_prompts = seconds_of(lambda: generate(model, spec, 1))
    whole = seconds_of(lambda: generate(model, spec, n_new))
    return {"seconds": whole - only_prompts, "tokens": len(spec["prompts"]) * (n_new - 1)}


# The rollout of episodes


def draw(model, ids, cache, n_new, temperature):
    """`n_new` tokens of each row after `ids`, which continue what is in `cache`. The last one stays out of the cache."""
    drawn = []
    for _ in range(n_new):
        logits = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        ids = torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1)
        drawn.append(ids)
    return torch.cat(drawn, dim=1)


def new_cache(model, spec, n_tokens):
    """A cache that grows with each token, or one that is made for `n_tokens`."""
    if spec["cache"] == "static":
        return StaticCache(config=model.config, max_cache_len=n_tokens)
    return DynamicCache(config=model.config)


def play(model, spec, n_turns, n_actor, n_response):
    """All trajectories as one batch: they have the same lengths throughout, so nothing is padded and none waits."""
    temperature = spec["temperature"]
    rows = [task for task in spec["tasks"] for _ in range(spec["n_samples"])]
    head = torch.tensor([task["rehearsal_head"] for task in rows])
    glue = torch.tensor([spec["glue"]]).expand(len(rows), -1)
    conversation = torch.tensor([task["user"] for task in rows])
    new_to_actor = torch.tensor([task["system"] + task["user"] for task in rows])
    n_of_turn = n_actor + n_response + 2 * glue.shape[1]
    actor_cache = new_cache(model, spec, new_to_actor.shape[1] + n_turns * n_of_turn + n_actor)
    for turn in range(n_turns + 1):
        call = draw(model, new_to_actor, actor_cache, n_actor, temperature)
        if turn == n_turns:
            break
        conversation = torch.cat([conversation, call], dim=1)
        prompt = torch.cat([head, glue, conversation, glue], dim=1)
        cache = new_cache(model, spec, prompt.shape[1] + n_response)
        response = draw(model, prompt, cache, n_response, temperature)
        answer = torch.cat([glue, response, glue], dim=1)
        conversation = torch.cat([conversation, answer], dim=1)
        new_to_actor = torch.cat([call[:, -1:], answer], dim=1)


def episode(model, spec):
    n_turns, n_actor, n_response = spec["n_turns"], spec["n_actor"], spec["n_response"]
    play(model, spec, 1, 2, 2)
    seconds = seconds_of(lambda: play(model, spec, n_turns, n_actor, n_response))
    n_trajectories = len(spec["tasks"]) * spec["n_samples"]
    return {"seconds": seconds, "tokens": n_trajectories * (n_turns * (n_actor + n_response) + n_actor)}


# Updates


def rows_of(sequences):
    """Token ids and trained positions of each row: the sequence itself, or one row for each of its spans."""
    for sequence in sequences:
        ids = sequence["token_ids"]
        if "trained" in sequence:
            yield ids, sequence["trained"]
        else:
            for start, length in sequence["spans"]:
                yield ids[: start + length], list(range(start, start + length))


def micro_batches(rows, max_tokens):
    """Rows by length, as many at a time as fit `max_tokens` when all are as long as the longest of them."""
    batch = []
    for row in sorted(rows, key=lambda row: len(row[0])):
        if batch and len(row[0]) * (len(batch) + 1) > max_tokens:
            yield padded(batch)
            batch = []
        batch.append(row)
    yield padded(batch)


def padded(batch):
    """Ids, the mask of what is no padding (or None), where hidden states are needed, and the tokens they predict."""
    width = max(len(ids) for ids, _ in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for index, (row, _) in enumerate(batch):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = 1
    row_indices = torch.tensor([index for index, (_, trained) in enumerate(batch) for _ in trained])
    positions = torch.tensor([position for _, trained in batch for position in trained])
    is_padded = not bool(mask.all())
    return ids, mask if is_padded else None, (row_indices, positions - 1), ids[row_indices, positions]


def accumulate(model, batches, n_trained):
    """Adds the gradient of the mean negative logprob of all trained tokens; returns that mean."""
    loss = 0.0
    for ids, mask, needed, targets in batches:
        hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        part = cross_entropy(model.lm_head(hidden[needed]), targets, reduction="sum") / n_trained
        part.backward()
        loss += part.item()
    return loss


def apply(model, optimizer):
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    optimizer.zero_grad()
    return norm


def adamw(model, learning_rate, is_fused):
    return torch.optim.AdamW(
        model.parameters(),
        lr=learning_rate,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.01,
        fused=True if is_fused else None,
    )


def faster_optimizer(model, learning_rate):
    """The default AdamW or the fused one, whichever makes its second step sooner; the gradient is used as it is."""
    seconds = {}
    for is_fused in (False, True):
        optimizer = adamw(model, learning_rate, is_fused)
        optimizer.step()
        seconds[is_fused] = seconds_of(optimizer.step)
    return seconds[True] < seconds[False]


def update(model, spec):
    """One application after one to warm up. Of memory the fused AdamW takes least, so that one is taken there."""
    model.train()
    if spec["recompute"]:
        model.activation_checkpointing_enable()
    rows = list(rows_of(spec["sequences"]))
    batches = list(micro_batches(rows, spec["micro_batch_tokens"]))
    n_trained = sum(len(trained) for _, trained in rows)
    loss = accumulate(model, batches, n_trained)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item()
    is_fused = spec["recompute"] or faster_optimizer(model, spec["learning_rate"])
    optimizer = adamw(model, spec["learning_rate"], is_fused)
    apply(model, optimizer)

    def measured():
        accumulate(model, batches, n_trained)
        apply(model, optimizer)

    return {
        "seconds": seconds_of(measured),
        "tokens": sum(ids.numel() for ids, *_ in batches),
        "loss": loss,
        "gradient_norm": norm,
        "n_micro_batches": len(batches),
        "optimizer": "fused" if is_fused else "default",
    }


WORKS = {
    "sample": sample,
    "decode": decode,
    "episode": episode,
    "episode-static": episode,
    "update": update,
    "update-tiny": update,
    "update-rollout": update,
    "update-rollout-memory": update,
    "update-long-memory": update,
}
SAMPLES = (sample, decode, episode)


def main():
    base_bytes = resident_bytes("VmRSS")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", metavar="WORK", choices=WORKS)
    parser.add_argument("--model", metavar="DIR", required=True)
    parser.add_argument("--spec", metavar="FILE", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(0)
    with open(arguments.spec, encoding="utf-8") as file:
        spec = json.load(file)
    model, work = load(arguments.model), WORKS[arguments.work]
    with torch.inference_mode(work in SAMPLES):
        measured = work(model, spec)
    measured |= {"peak_bytes": resident_bytes("VmHWM"), "base_bytes": base_bytes}
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
