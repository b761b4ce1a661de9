"""Writes the golden files of `tests/numerics/golden.rs`: tiny random models of each family, and what they say.

    python -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0 safetensors numpy
    venv/bin/python model/tests/golden/numerics.py

For each case, `numerics/<case>/` is a model folder in f32 and `numerics/<case>.safetensors` holds what
`transformers` (eager attention, f32) makes of it. Of one sequence:

- `token_ids`: (tokens);
- `logits`: (tokens, vocabulary);
- `coefficients`: (tokens - 1), zero where a token is not trained;
- `logprobs`: (tokens - 1), of each next token at the temperature in the metadata;
- `gradient.<name>`: of sum(coefficient * logprob) with respect to each tensor.

Of each prompt `i`, `prompt.<i>`: (tokens), and `continuation.<i>`: (64), its greedy continuation by `generate`.
Rounding must not decide what the likeliest token is, so the prompts are the first ones drawn at which the likeliest
logit leads the second by more than `LEAST_GAP` at all 64 steps, and the seed of the weights is the first one with
which such prompts are found whose continuations do not only repeat a few tokens.

The metadata has one key, `settings`, a JSON text: the temperature, the seed and the smallest lead of each prompt.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent / "numerics"
TEMPERATURE = 0.7
PROMPT_LENGTHS = [8, 3, 29]
N_NEW = 64
LEAST_GAP = 1e-3
# Different tokens among the 64 of a continuation.
LEAST_DIFFERENT = 12
TRIES_FOR_A_PROMPT = 200
COMMON = {
    "hidden_size": 16,
    "intermediate_size": 13,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}
CASES = {
    "qwen3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 6,
        "rope_theta": 1000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    "qwen2": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "tie_word_embeddings": False,
    },
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "head_dim": 8,
        "rope_theta": 100.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 2.0,
            "original_max_position_embeddings": 32,
        },
        "tie_word_embeddings": False,
        "attention_bias": True,
    },
    # As SmolLM2: plain rotary embedding, the output projection is the embedding, no biases.
    "smollm2": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "rope_theta": 2000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
    },
}
# More than twice the positions that the scaling of the rotary embedding starts from.
LENGTHS = {"llama": 72}
DEFAULT_LENGTH = 24


def random_model(folder: pathlib.Path, seed: int):
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", torch_dtype=torch.float32)
    for key, parameter in model.named_parameters():
        center = 1.0 if "norm" in key else 0.0
        parameter.data = (center + 0.25 * torch.randn_like(parameter)).contiguous()
    return model.eval()


def continuation(model, prompt):
    """The greedy continuation of a prompt, and the smallest lead of its tokens."""
    out = model.generate(
        prompt[None],
        attention_mask=torch.ones_like(prompt)[None],
        do_sample=False,
        max_new_tokens=N_NEW,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    token_ids = out.sequences[0, len(prompt) :]
    assert len(token_ids) == N_NEW
    best = torch.stack([step[0].topk(2).values for step in out.logits])
    return token_ids, float((best[:, 0] - best[:, 1]).min())


def continuations(model):
    """For each length the first prompt that will do, its continuation and its lead; `None` where there is none."""
    found = []
    for length in PROMPT_LENGTHS:
        for _ in range(TRIES_FOR_A_PROMPT):
            prompt = torch.randint(0, COMMON["vocab_size"], (length,))
            token_ids, gap = continuation(model, prompt)
            if gap > LEAST_GAP and len(token_ids.unique()) >= LEAST_DIFFERENT:
                found.append((prompt, token_ids, gap))
                break
        else:
            return None
    return found


def write(name: str, special: dict) -> None:
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(COMMON | special, indent=2) + "\n")
    seed, found = 0, None
    while found is None:
        seed += 1
        model = random_model(folder, seed)
        found = continuations(model)
    weights = {key: parameter.data for key, parameter in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    n = LENGTHS.get(name, DEFAULT_LENGTH)
    token_ids = torch.randint(0, COMMON["vocab_size"], (n,))
    coefficients = torch.randn(n - 1) * (torch.arange(n - 1) % 3 != 1)
    logits = model(token_ids[None]).logits[0]
    logprobs = torch.log_softmax(logits[:-1] / TEMPERATURE, -1).gather(1, token_ids[1:, None])[:, 0]
    (coefficients * logprobs).sum().backward()
    golden = {
        "token_ids": token_ids.to(torch.int32),
        "logits": logits.detach().contiguous(),
        "coefficients": coefficients,
        "logprobs": logprobs.detach(),
    }
    for key, parameter in model.named_parameters():
        golden[f"gradient.{key}"] = parameter.grad
    for i, (prompt, generated, _) in enumerate(found):
        golden[f"prompt.{i}"] = prompt.to(torch.int32)
        golden[f"continuation.{i}"] = generated.to(torch.int32)
    settings = {"temperature": TEMPERATURE, "seed": seed, "gaps": [gap for _, _, gap in found]}
    save_file(golden, HERE / f"{name}.safetensors", {"settings": json.dumps(settings)})
    print(name, settings, [len(generated.unique()) for _, generated, _ in found])


for case, settings in CASES.items():
    write(case, settings)
