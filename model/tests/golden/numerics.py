"""Writes the golden files of `tests/numerics.rs`: tiny random models of each family, their logits and gradients.

    python -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0 safetensors numpy
    venv/bin/python model/tests/golden/numerics.py

For each case, `numerics/<case>/` is a model folder in f32 and `numerics/<case>.safetensors` holds what
`transformers` (eager attention, f32) says about one sequence:

- `token_ids`: (tokens);
- `logits`: (tokens, vocabulary);
- `coefficients`: (tokens - 1), zero where a token is not trained;
- `logprobs`: (tokens - 1), of each next token at the temperature in the metadata;
- `gradient.<name>`: of sum(coefficient * logprob) with respect to each tensor.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent / "numerics"
TEMPERATURE = 0.7
COMMON = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 64,
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
}


def write(name: str, special: dict) -> None:
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(COMMON | special, indent=2) + "\n")
    torch.manual_seed(len(name) + ord(name[-1]))
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", torch_dtype=torch.float32)
    weights = {}
    for key, parameter in model.named_parameters():
        center = 1.0 if "norm" in key else 0.0
        parameter.data = (center + 0.25 * torch.randn_like(parameter)).contiguous()
        weights[key] = parameter.data
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    token_ids = torch.randint(0, COMMON["vocab_size"], (24,))
    coefficients = torch.randn(23) * (torch.arange(23) % 3 != 1)
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
    save_file(golden, HERE / f"{name}.safetensors", {"temperature": str(TEMPERATURE)})


for case, settings in CASES.items():
    write(case, settings)
