"""Writes checkpoints with random weights, in Hugging Face layout.

    python make_models.py FOLDER NAME...

Each NAME of `MODELS` becomes FOLDER/NAME with `config.json` and `model.safetensors` in 32-bit floats. What is there
already is left alone. Matrices are normal with deviation 0.02 from a seed, norms are one. There is no tokenizer: every
work begins with token ids.
"""

import json
import os
import sys
import zlib

import torch
from safetensors.torch import save_file


def config(hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, rope_theta):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": intermediate,
        "max_position_embeddings": 8192,
        "model_type": "qwen3",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocab,
    }


MODELS = {
    # 0.9 M parameters
    "tiny": config(
        hidden=128, layers=4, heads=4, kv_heads=2, head_dim=32, intermediate=384, vocab=800, rope_theta=10000.0
    ),
    # 29 M parameters
    "small": config(
        hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64, intermediate=1536, vocab=8192, rope_theta=10000.0
    ),
    # 596 M parameters: the shape of Qwen3-0.6B
    "qwen3-0.6b": config(
        hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, intermediate=3072, vocab=151936, rope_theta=1e6
    ),
}  # fmt: skip


def shapes(sizes):
    """Name and shape of every tensor; a vector is a norm."""
    hidden, head_dim, intermediate = sizes["hidden_size"], sizes["head_dim"], sizes["intermediate_size"]
    query, key = sizes["num_attention_heads"] * head_dim, sizes["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (sizes["vocab_size"], hidden)
    for layer in range(sizes["num_hidden_layers"]):
        of_layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key, hidden),
            "self_attn.v_proj": (key, hidden),
            "self_attn.o_proj": (hidden, query),
            "self_attn.q_norm": (head_dim,),
            "self_attn.k_norm": (head_dim,),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (intermediate, hidden),
            "mlp.up_proj": (intermediate, hidden),
            "mlp.down_proj": (hidden, intermediate),
        }
        for name, shape in of_layer.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)


def write(folder, name):
    """Writes the model `name` to `folder`, unless it is there with the same configuration."""
    text = json.dumps(MODELS[name], indent=2) + "\n"
    config_path, weights_path = os.path.join(folder, "config.json"), os.path.join(folder, "model.safetensors")
    if os.path.exists(weights_path) and os.path.exists(config_path):
        with open(config_path, encoding="utf-8") as file:
            if file.read() == text:
                return
    os.makedirs(folder, exist_ok=True)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    tensors = {
        tensor: torch.ones(shape) if len(shape) == 1 else torch.normal(0.0, 0.02, shape, generator=generator)
        for tensor, shape in shapes(MODELS[name])
    }
    n_parameters = sum(tensor.numel() for tensor in tensors.values())
    save_file(tensors, weights_path + ".new", metadata={"format": "pt"})
    os.replace(weights_path + ".new", weights_path)
    # Written last: with it the folder counts as whole.
    with open(config_path, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"made {name}: {n_parameters / 1e6:.1f} M parameters", file=sys.stderr)


def main():
    if len(sys.argv) < 3 or not set(sys.argv[2:]) <= set(MODELS):
        print(f"usage: make_models.py FOLDER NAME... with names of: {', '.join(MODELS)}", file=sys.stderr)
        return 2
    for name in sys.argv[2:]:
        write(os.path.join(sys.argv[1], name), name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
