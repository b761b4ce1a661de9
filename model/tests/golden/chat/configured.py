"""Model folders whose `tokenizer_config.json` says more, or something else, than their `tokenizer.json`."""

import json
import pathlib
import tempfile

from tiny_tokenizers import train
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer


def base():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 300)
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    tokenizer.add_tokens([AddedToken("<plain>", normalized=False)])
    return tokenizer


def token(content, **flags):
    return {
        "content": content,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": False,
    } | flags


END, PLAIN = {"300": token("<|end|>", special=True)}, {"301": token("<plain>")}
NEW = {
    "302": token("<|new|>", special=True),
    "303": token("<more>", rstrip=True, lstrip=True),
    "304": token("word", single_word=True),
    "305": token("<|r|>", special=True, rstrip=True),
}
LEFT_OUT = {"302": {"content": "<|New|>", "special": True}, "303": {"content": "<More>"}}
SPECIAL_PLAIN = {"301": token("<plain>", special=True)}
STRIPPING = {"300": token("<|end|>", special=True, rstrip=True), "301": token("<plain>", lstrip=True)}
LIMITS = {
    "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": {"Fixed": 30},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 300,
        "pad_type_id": 0,
        "pad_token": "<|end|>",
    },
}
# Name: changes of `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`.
FOLDERS = {
    "new tokens": ({}, {"eos_token": "<|end|>", "added_tokens_decoder": END | PLAIN | NEW}, None),
    "flags left out": ({}, {"eos_token": "<|end|>", "added_tokens_decoder": END | PLAIN | LEFT_OUT}, None),
    "flags left out, lower case": (
        {"normalizer": {"type": "Lowercase"}},
        {"eos_token": "<|end|>", "added_tokens_decoder": END | PLAIN | LEFT_OUT},
        None,
    ),
    "other special tokens": (
        {},
        {"eos_token": "<|end|>", "added_tokens_decoder": {"300": token("<|end|>")} | SPECIAL_PLAIN},
        None,
    ),
    "other stripping": ({}, {"eos_token": "<|end|>", "added_tokens_decoder": STRIPPING}, None),
    "additional": ({}, {"eos_token": "<|end|>", "additional_special_tokens": ["<plain>", "er"]}, None),
    "named words": ({}, {"eos_token": "er", "pad_token": "<plain>"}, None),
    "named elsewhere": ({}, {}, {"eos_token": {"content": "<plain>"}, "additional_special_tokens": ["er"]}),
    "limits": (LIMITS, {"eos_token": "<|end|>"}, None),
}
TEXTS = [
    "a <|end|> b",
    "a<plain>b",
    "a  <plain>  b",
    "the user asks her",
    "words word aword word",
    "x <|new|> y <|New|> z",
    "x  <More>  <more>  y",
    "<|r|>  z <|r|>\nq",
    "<|end|>   <|end|>\n",
    "THE <|END|> <PLAIN>",
]


def cases(folder):
    """Writes the common `tokenizer.json` and returns what each of the folders makes of the texts."""
    base().save(str(folder / "tokenizer.json"), pretty=False)
    out = []
    for name, (changes, config, special_tokens_map) in FOLDERS.items():
        with tempfile.TemporaryDirectory() as place:
            place = pathlib.Path(place)
            file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")) | changes
            (place / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
            full = config | {"tokenizer_class": "PreTrainedTokenizerFast"}
            (place / "tokenizer_config.json").write_text(json.dumps(full))
            if special_tokens_map is not None:
                (place / "special_tokens_map.json").write_text(json.dumps(special_tokens_map))
            tokenizer = AutoTokenizer.from_pretrained(place)
        ids = lambda literal: [
            tokenizer(text, add_special_tokens=False, split_special_tokens=literal)["input_ids"] for text in TEXTS
        ]
        out.append(
            {
                "name": name,
                "tokenizer_changes": changes,
                "tokenizer_config": config,
                "special_tokens_map": special_tokens_map,
                "special": sorted(index for index, one in tokenizer.added_tokens_decoder.items() if one.special),
                "ids": ids(False),
                "literal_ids": ids(True),
            }
        )
    return out
