"""Writes the golden files of `tests/numerics/lora.rs`: adapters of two of the models of `numerics.py`, by the formula.

    python -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0 safetensors numpy
    venv/bin/python model/tests/golden/lora.py

For each case, `numerics/lora_<case>/` is an adapter in the layout of PEFT
(<https://huggingface.co/docs/peft/main/en/developer_guides/checkpoint>) and `numerics/lora_<case>.safetensors` holds
what `transformers` (eager attention, f32) makes of the model with weights `W + scale * B @ A`:

- `token_ids`: (tokens), those of the model's own golden file;
- `logits`: (tokens, vocabulary), and `base_logits`, those without the adapter;
- `coefficients`: (tokens - 1);
- `logprobs`: (tokens - 1), of each next token at temperature 1;
- `gradient.<name>`: of sum(coefficient * logprob) with respect to each factor, by torch's automatic differentiation.

PEFT 0.21.2 (`PeftModel.from_pretrained` on the written folders) has these logits to 6e-6 and writes tensors of the same
names.
"""

import json
import math
import pathlib

import torch
from safetensors.torch import load_file, save_file
from torch.func import functional_call
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent / "numerics"
CASES = {
    # Tied embedding; every projection, so every piece of each fused matrix.
    "qwen3": {
        "r": 3,
        "lora_alpha": 6,
        "use_rslora": False,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
    # Own output projection and biases; some pieces of the fused matrices, one matrix of one layer, root of the rank.
    "qwen2": {
        "r": 4,
        "lora_alpha": 2.5,
        "use_rslora": True,
        "target_modules": ["q_proj", "v_proj", "up_proj", "layers.1.mlp.down_proj"],
    },
}


def write(name: str, settings: dict) -> None:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(HERE / name, attn_implementation="eager", dtype=torch.float32).eval()
    rank = settings["r"]
    scale = settings["lora_alpha"] / (math.sqrt(rank) if settings["use_rslora"] else rank)
    factors, changed = {}, {}
    for key, weight in model.named_parameters():
        module = key.removesuffix(".weight")
        if any(module == target or module.endswith("." + target) for target in settings["target_modules"]):
            n_out, n_in = weight.shape
            a = torch.nn.Parameter(torch.randn(rank, n_in) / math.sqrt(n_in))
            b = torch.nn.Parameter(0.3 * torch.randn(n_out, rank))
            factors[f"base_model.model.{module}.lora_A.weight"] = a
            factors[f"base_model.model.{module}.lora_B.weight"] = b
            changed[key] = weight.detach() + scale * (b @ a)
    folder = HERE / f"lora_{name}"
    folder.mkdir(exist_ok=True)
    save_file({key: value.detach().clone() for key, value in factors.items()}, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": f"../{name}",
        "lora_dropout": 0.0,
        "bias": "none",
        "use_dora": False,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | settings, indent=2) + "\n")

    token_ids = load_file(HERE / f"{name}.safetensors")["token_ids"]
    targets = token_ids.long()
    logits = functional_call(model, changed, (targets[None],), {"use_cache": False}).logits[0]
    logprobs = torch.log_softmax(logits[:-1], -1).gather(1, targets[1:, None])[:, 0]
    coefficients = torch.randn(len(logprobs))
    (coefficients * logprobs).sum().backward()
    golden = {
        "token_ids": token_ids,
        "logits": logits.detach().contiguous(),
        "base_logits": model(targets[None]).logits[0].detach().contiguous(),
        "coefficients": coefficients,
        "logprobs": logprobs.detach(),
    }
    for key, value in factors.items():
        golden[f"gradient.{key}"] = value.grad
    save_file(golden, HERE / f"lora_{name}.safetensors", {"settings": json.dumps({"temperature": 1.0})})
    print(name, scale, len(factors), float((golden["logits"] - golden["base_logits"]).abs().max()))


for case, settings in CASES.items():
    write(case, settings)
