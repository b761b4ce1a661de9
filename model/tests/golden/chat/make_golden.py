"""Makes the golden files of this folder: the tiny tokenizer, `encode.json` and `render.json`.

Run with: python make_golden.py   (transformers 5.24.0, tokenizers 0.23.3, jinja2 3.1.6)

The templates are input. Everything else here is what the reference implementation does with them.
"""

import json
import pathlib

from dialogues import DIALOGUES, TOOLS, for_template
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
CORPUS = [
    "The user asks for the weather in Paris and the assistant calls the tool.",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
    '{"temperature": 21, "sky": "clear"}',
    "system user assistant tool think",
    "You are a helpful assistant. You may call one or more functions to assist with the user query.",
    "It is 21 degrees and clear in Paris, and it rains in London.",
]


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS * 3,
        trainers.BpeTrainer(
            vocab_size=400,
            min_frequency=3,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in PLAIN])
    return tokenizer


TEXTS = [
    "",
    " ",
    "Hello, world!",
    "the user asks the assistant",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call><|im_end|>",
    "naïve café, e\u0301 and \u00e9, 東京 🌦️ \u200b",
    "tabs\tand\r\nlines\n\n\n  end  ",
    "12345 6.78e-9",
    "it's we'll I'D",
    "<|im_end|<|im_end|>|>",
    "\u0000\u0001\ufffd\u2028",
]

# The tool block is long, so only some dialogues are rendered with it.
TOOL_DIALOGUES = {
    "qwen3": ["user", "system", "one_response", "parallel", "two_user_turns"],
    "qwen2_5": ["user", "system", "parallel"],
    "qwen3_5": ["system", "parallel"],
    "plain": [],
    "features": ["parallel"],
}


def render_cases(tokenizer):
    cases = []
    for template in ["qwen3", "qwen2_5", "qwen3_5", "plain", "features"]:
        # Jinja reads files the way transformers does, in text mode.
        tokenizer.chat_template = (HERE / "templates" / f"{template}.jinja").read_text(encoding="utf-8")
        for dialogue, messages in DIALOGUES.items():
            for tools in [[], TOOLS]:
                for prompt, thinking in [(False, None), (True, None), (True, False), (True, True)]:
                    if template != "qwen3" and thinking is True or template in ("plain", "features") and thinking is False:
                        continue
                    if tools and dialogue not in TOOL_DIALOGUES[template]:
                        continue
                    extra = {"date_string": "31 Jan 2026"} if template == "features" else {}
                    if thinking is not None:
                        extra["enable_thinking"] = thinking
                    try:
                        expected = tokenizer.apply_chat_template(
                            [for_template(one) for one in messages],
                            tools=tools or None,
                            tokenize=False,
                            add_generation_prompt=prompt,
                            **extra,
                        )
                    except Exception:
                        expected = None
                    cases.append(
                        {
                            "template": template,
                            "dialogue": dialogue,
                            "tools": bool(tools),
                            "add_generation_prompt": prompt,
                            "enable_thinking": thinking,
                            "expected": expected,
                        }
                    )
    return cases


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, indent=1, sort_keys=False)
    (HERE / name).write_text(text + "\n", encoding="utf-8")


def main():
    (HERE / "tiny").mkdir(exist_ok=True)
    raw = make_tokenizer()
    raw.save(str(HERE / "tiny" / "tokenizer.json"), pretty=False)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    write(
        "tiny/tokenizer_config.json",
        {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    )
    encodings = []
    for text in TEXTS:
        ids = fast(text, add_special_tokens=False)["input_ids"]
        encodings.append({"text": text, "ids": ids, "decoded": fast.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)})
    # What is left of a character whose bytes were cut, and of a byte that starts none.
    cut = fast("🌦", add_special_tokens=False)["input_ids"]
    partial = []
    for ids in [cut[:-1], cut[1:], cut[:1], cut[:-1] + fast("a", add_special_tokens=False)["input_ids"]]:
        partial.append({"ids": ids, "decoded": fast.decode(ids, clean_up_tokenization_spaces=False)})
    write("encode.json", {"encodings": encodings, "partial": partial})
    cases = render_cases(fast)
    write("render.json", {"dialogues": DIALOGUES, "tools": TOOLS, "cases": cases})
    print(len(encodings), "encodings,", len(cases), "renderings,", sum(c["expected"] is None for c in cases), "refused")


if __name__ == "__main__":
    main()
