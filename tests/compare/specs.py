"""What each work consists of: token ids and counts, the same for both sides.

Ids are drawn from a seed that is the work's name, so a spec is the same on every machine. `update-rollout` is not
drawn: its sequences are those of a rollout stage that `envace-jobs` makes of the bundled policy and world.
"""

import json
import os
import random
import shutil
import subprocess

# Of the works themselves.
FULL = {
    "sample": {"n_prompts": 16, "n_prompt": 128, "n_new": 128},
    "decode": {"n_prompts": 16, "n_prompt": 128, "n_new": 17},
    "single": {"n_prompts": 1, "n_prompt": 128, "n_new": 33},
    "episode": {
        "n_tasks": 8, "n_samples": 4, "n_turns": 6, "n_actor": 48, "n_response": 64, "n_glue": 12,
        "n_system": (60, 340), "n_user": 40, "n_head": (150, 300),
    },
    "update": {"n_sequences": 32, "n_tokens": 512, "recompute": False},
    "update-rollout": {"n_tasks": 8, "group_size": 4},
    "update-long": {"n_sequences": 1, "n_tokens": 4096, "recompute": True, "on_disk": True},
}  # fmt: skip

# Of the check that the scripts work.
SMOKE = {
    "sample": {"n_prompts": 2, "n_prompt": 8, "n_new": 8},
    "decode": {"n_prompts": 2, "n_prompt": 8, "n_new": 33},
    "single": {"n_prompts": 1, "n_prompt": 8, "n_new": 9},
    "episode": {
        "n_tasks": 2, "n_samples": 2, "n_turns": 2, "n_actor": 4, "n_response": 6, "n_glue": 2,
        "n_system": (4, 12), "n_user": 5, "n_head": (6, 10),
    },
    "update": {"n_sequences": 4, "n_tokens": 32, "recompute": False},
    "update-rollout": {"n_tasks": 2, "group_size": 2},
    "update-long": {"n_sequences": 1, "n_tokens": 128, "recompute": True, "on_disk": True},
}  # fmt: skip

MICRO_BATCH_TOKENS = 4096
LEARNING_RATE = 1e-5

# The rollout stage of the quickstart, but for the number of tasks and the size of a group.
ROLLOUT_CONFIG = """
[policy]
checkpoint = "bundled"
[tasks]
set = "world"
split = "train"
per_step = {n_tasks}
per_part = {n_tasks}
[rollout]
group_size = {group_size}
[rollout.actor]
max_new_tokens = 96
[rollout.rehearsal]
max_new_tokens = 96
[rollout.episode]
max_turns = 10
[rollout.episode.rehearsal]
wording = "compact"
whitelist = "called"
few_shot = "none"
latest_message = false
"""
RUN = "compare"
N_STORED_TASKS = 64


def draw(generator, n, vocab):
    return [generator.randrange(vocab) for _ in range(n)]


def prompts(generator, vocab, n_prompts, n_prompt, n_new):
    return {
        "prompts": [draw(generator, n_prompt, vocab) for _ in range(n_prompts)],
        "n_new": n_new,
        "temperature": 1.0,
    }


def episode(generator, vocab, cache, n_tasks, n_samples, n_turns, n_actor, n_response, n_glue, n_system, n_user, n_head):
    """The first ids of the system prompts are the same for all tasks, and so are those of the rehearsal heads."""
    common_system, common_head = draw(generator, n_system[0], vocab), draw(generator, n_head[0], vocab)
    tasks = [
        {
            "system": common_system + draw(generator, n_system[1], vocab),
            "user": draw(generator, n_user, vocab),
            "rehearsal_head": common_head + draw(generator, n_head[1], vocab),
        }
        for _ in range(n_tasks)
    ]
    return {
        "tasks": tasks,
        "n_samples": n_samples,
        "n_turns": n_turns,
        "n_actor": n_actor,
        "n_response": n_response,
        "glue": draw(generator, n_glue, vocab),
        "temperature": 1.0,
        "cache": cache,
    }


def update(sequences, recompute, on_disk=False):
    return {
        "sequences": sequences,
        "micro_batch_tokens": MICRO_BATCH_TOKENS,
        "learning_rate": LEARNING_RATE,
        "recompute": recompute,
        # Gradients and moments in a file: of envace alone, the peer has no such thing.
        "on_disk": on_disk,
    }


def whole_sequences(generator, vocab, n_sequences, n_tokens, recompute, on_disk=False):
    """Sequences of which all but the first token is trained."""
    sequences = [
        {"token_ids": draw(generator, n_tokens, vocab), "trained": list(range(1, n_tokens))}
        for _ in range(n_sequences)
    ]
    return update(sequences, recompute, on_disk)


def call(jobs, store, *arguments):
    result = subprocess.run([jobs, *arguments, "--store", store], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"`envace-jobs {arguments[0]}` failed: {result.stderr.strip()}")
    return result.stdout


def rollout_sequences(jobs, store, vocab, n_tasks, group_size):
    """The sequences of one rollout stage, each with its sampled spans: what an update trains on."""
    if jobs is None:
        raise RuntimeError("the sequences are made by `envace-jobs`: name it with --jobs")
    shutil.rmtree(store, ignore_errors=True)
    os.makedirs(store)
    config = os.path.join(store, "rollout.toml")
    with open(config, "w", encoding="utf-8") as file:
        file.write(ROLLOUT_CONFIG.format(n_tasks=n_tasks, group_size=group_size))
    n_stored = str(N_STORED_TASKS)
    call(jobs, store, "tasks", "generate", "--train", n_stored, "--held-out", "0", "--drift", "0")
    call(jobs, store, "rollout", "--run", RUN, "--step", "0", "--config", config)

    def read(table, columns):
        query = f"SELECT task_id, sample, sequence_index, {columns} FROM {table} WHERE run = '{RUN}'"
        return [json.loads(line) for line in call(jobs, store, "sql", "--format", "jsonl", query).splitlines()]

    def key_of(row):
        return row["task_id"], row["sample"], row["sequence_index"]

    spans = {}
    for row in read("generations", "span_start, n_tokens"):
        spans.setdefault(key_of(row), []).append([row["span_start"], row["n_tokens"]])
    rows = sorted(read("sequences", "token_ids"), key=key_of)
    sequences = [{"token_ids": row["token_ids"], "spans": sorted(spans[key_of(row)])} for row in rows]
    if max(max(sequence["token_ids"]) for sequence in sequences) >= vocab:
        raise RuntimeError(f"the rollout has ids beyond the {vocab} of the model")
    return sequences


def make(work, vocab, jobs, store, is_smoke):
    """The spec of `work`, as what becomes its JSON file."""
    sizes = SMOKE if is_smoke else FULL
    generator = random.Random(work.removesuffix("-static"))
    if work in ("sample", "decode", "single"):
        return prompts(generator, vocab, **sizes[work])
    if work in ("episode", "episode-static"):
        cache = "dynamic" if work == "episode" else "static"
        return episode(generator, vocab, cache, **sizes["episode"])
    if work in ("update", "update-tiny"):
        return whole_sequences(generator, vocab, **sizes["update"])
    if work == "update-long-memory":
        return whole_sequences(generator, vocab, **sizes["update-long"])
    if work in ("update-rollout", "update-rollout-memory"):
        sequences = rollout_sequences(jobs, store, vocab, **sizes["update-rollout"])
        return update(sequences, recompute=work == "update-rollout-memory")
    raise ValueError(f"no such work: {work}")
