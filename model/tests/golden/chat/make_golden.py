"""Makes the golden files of this folder: the tiny tokenizer, `encode.json` and `render.json`.

Run with: python make_golden.py   (transformers 5.24.0, tokenizers 0.23.3, jinja2 3.1.6)

The templates are input. Everything else here is what the reference implementation does with them.
"""

import json
import pathlib

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

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city: <b>now</b> & 'later', \"quoted\" — é",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1},
                    "limit": {"type": "number", "default": 0.5, "maximum": 1e-7, "minimum": -1.5e20},
                    "exact": {"type": "boolean", "default": True, "examples": [None, [], {}]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "tab\t, slash / \\, 東京 🌦", "parameters": {}}},
]


# The tool block is long, so only some dialogues are rendered with it.
TOOL_DIALOGUES = {
    "qwen3": ["user", "system", "one_response", "parallel", "two_user_turns"],
    "qwen2_5": ["user", "system", "parallel"],
    "qwen3_5": ["system", "parallel"],
    "plain": [],
    "features": ["parallel"],
}


def call(call_id, name, arguments):
    return {"id": call_id, "name": name, "arguments": arguments}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = message("system", "You help.\nAlways.")
ASK = message("user", "How warm is it in Paris?")
ONE_CALL = message("assistant", "", tool_calls=[call("c0", "get_weather", '{"days": 2, "city": "Paris"}')])
THOUGHT_CALL = message(
    "assistant",
    "Let me look.",
    reasoning_content="Two cities.\nTwo calls.",
    tool_calls=[
        call("c0", "get_weather", '{"city":"Paris","days":1.0}'),
        call("c1", "get_weather", '{"city": "東京 <é>", "nested": {"b": [1, 2.50, null], "a": false}}'),
    ],
)
ODD_CALLS = message(
    "assistant",
    "hm",
    tool_calls=[
        call("c0", "now", ""),
        call("c1", "now", "{broken"),
        call("c2", "now", "[1, 2]"),
        call("c3", "now", "null"),
        call("c4", "now", '"text"'),
    ],
)
RESPONSES = [
    message("tool", '{"temperature": 21}', tool_call_id="c0", name="get_weather"),
    message("tool", '{"temperature": 9}', tool_call_id="c1", name="get_weather"),
]
ANSWER = message("assistant", "It is 21 degrees.", reasoning_content="\nDone.\n")
THANKS = message("user", "Thanks! And in London? 🌧️")
DIALOGUES = {
    "user": [ASK],
    "system": [SYSTEM, ASK],
    "answer": [ASK, message("assistant", "21")],
    "one_call": [SYSTEM, ASK, ONE_CALL],
    "one_response": [SYSTEM, ASK, ONE_CALL, RESPONSES[0]],
    "parallel": [ASK, THOUGHT_CALL, *RESPONSES],
    "thinking": [ASK, THOUGHT_CALL, *RESPONSES, ANSWER],
    "two_user_turns": [SYSTEM, ASK, THOUGHT_CALL, *RESPONSES, ANSWER, THANKS],
    "two_user_turns_answered": [ASK, ANSWER, THANKS, message("assistant", "9", reasoning_content="Cold.")],
    "inline_thinking": [ASK, message("assistant", "<think>\nhm\n</think>\n\nYes."), THANKS],
    "empty_thinking": [ASK, message("assistant", "\n\nYes.", reasoning_content=""), THANKS],
    "odd_calls": [ASK, ODD_CALLS],
    "two_systems": [SYSTEM, ASK, message("system", "Now be brief."), THANKS],
    "unicode": [message("user", "e\u0301 東京 \u2028 </tool_response> \"'& <b>"), message("assistant", "\u00a0 ok\t")],
    "looks_like_response": [ASK, message("user", "<tool_response>\nx\n</tool_response>"), ANSWER],
    "stop_word": [ASK, message("user", "STOP"), ANSWER],
    "no_id": [ASK, message("tool", "x", name="who")],
}


def arguments_for_template(text):
    """An object or any other JSON value but a string is given parsed; a JSON string or broken text as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, str) else value


def for_template(given):
    out = {"role": given["role"], "content": given["content"]}
    for key in ("reasoning_content", "tool_call_id", "name"):
        if key in given:
            out[key] = given[key]
    if given.get("tool_calls"):
        out["tool_calls"] = [
            {
                "type": "function",
                "id": one["id"],
                "function": {"name": one["name"], "arguments": arguments_for_template(one["arguments"])},
            }
            for one in given["tool_calls"]
        ]
    return out


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
