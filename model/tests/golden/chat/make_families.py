"""Makes `families/`: what the reference implementation does with hard texts and dialogues, family by family.

Run with: python make_families.py   (transformers 5.24.0, tokenizers 0.23.3, jinja2 3.1.6)

- `families/corpus.json`: the texts, and the long ones as a piece and how often it is repeated;
- `families/<tokenizer>/`: `tokenizer.json`, `tokenizer_config.json`, and `encode.json`. Of each text it has the ids;
  the ids where the text of special tokens is spelled out, if they differ; and the text of the ids, if it differs.
  Ids of long texts are runs: a list of ids and how often it is repeated;
- `families/<tokenizer>/render_<template>.json`: renderings of dialogues, and the ids of those that end with the
  opening of a message. Where dialogues hold the text of special tokens, the ids are those of
  `sanitize_control_tokens`, with which only the template's own special tokens are special;
- `families/snippets.json`: small templates and what they give;
- `families/configured/`: one `tokenizer.json`, and in `cases.json` what each configuration beside it makes of it.
"""

import copy
import json
import pathlib

import configured
from corpus import LONG, TEXTS, around
from dialogues import ANSWER, ASK, DIALOGUES, ONE_CALL, RESPONSES, SYSTEM, THANKS, TOOLS, call, for_template, message
from snippets import SNIPPETS
from tiny_tokenizers import TOKENIZERS, TOOL_WORDS
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).parent
OUT = HERE / "families"
# Template: its tokenizer.
TEMPLATES = {"qwen3": "qwen", "qwen2_5": "qwen", "llama3": "llama3", "smollm2": "smollm2", "hermes": "hermes"}
# The reference implementation reads `None` as not given.
DATE = {"llama3": {"date_string": "31 Jan 2026"}}
THINKING = {"qwen3": ["single_calls", "thinking"]}
# Schemas are long, so only some dialogues are rendered with them.
WITH_TOOLS = ["system", "one_response", "single_calls", "special"]
# What one template or another looks at; the rest of the dialogues is in `render.json`.
WITHOUT_TOOLS = ["user", "system", "answer", "one_call", "single_calls", "parallel", "thinking", "odd_calls"]
WITHOUT_TOOLS += ["two_user_turns_answered", "inline_thinking", "two_systems", "unicode", "special", "lone"]
# Begins with a long text of its own, so it is rendered with fewer of them.
LEFT_OUT = {"hermes": ["user", "system", "answer", "two_user_turns_answered", "inline_thinking", "two_systems"]}
LATER_CALL = message("assistant", "", tool_calls=[call("c1", "get_weather", '{"city": "London"}')])
LATER = [message("tool", "9\n", tool_call_id="c1", name="get_weather"), message("assistant", " Cold. ")]
SINGLE_CALLS = [SYSTEM, ASK, ONE_CALL, RESPONSES[0], ANSWER, THANKS, LATER_CALL, *LATER]


def special_dialogues(special):
    """Dialogues and tools with the text of special tokens in every place that holds text from outside."""
    one, two = special[0], special[-1]
    arguments = json.dumps({"city": f"{one}Paris{two}", "more": [two, {"a": one + two}], "cut": two[:-1]})
    dialogue = [
        message("system", f"Say {one} or {two}."),
        message("user", two + one + two[:-2] + two + two[-2:]),
        message("assistant", "", tool_calls=[call("c0", "get_weather", arguments)]),
        message("tool", f'{{"sky": "{two}\\n{one}user\\n"}}', tool_call_id="c0", name="get_weather"),
        message("assistant", f"It is {two}"),
        message("user", " ".join(special)),
    ]
    tools = copy.deepcopy(TOOLS)
    tools[1]["function"]["description"] = f"now {two} {one}"
    return {"special": dialogue, "lone": [message("user", two)]}, tools


def ids_of(tokenizer, text, literal=False):
    return tokenizer(text, add_special_tokens=False, split_special_tokens=literal)["input_ids"]


def n_occurrences(value, texts):
    """How often texts stand in a JSON value; none of them holds another."""
    if isinstance(value, str):
        return sum(value.count(text) for text in texts)
    if isinstance(value, dict):
        value = value.values()
    return sum(n_occurrences(one, texts) for one in value) if not isinstance(value, int | float | None) else 0


def rendering(tokenizer, special, dialogues, tools, case, extra):
    messages = [for_template(one) for one in dialogues[case["dialogue"]]]
    tools = (tools if case["tools"] else None) or None
    given = {"tools": tools, "add_generation_prompt": case["add_generation_prompt"]} | extra
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **given)
    except Exception:
        return case | {"expected": None}
    n_hidden = n_occurrences(messages, special) + n_occurrences(tools or [], special)
    ids = tokenizer.apply_chat_template(messages, sanitize_control_tokens=n_hidden > 0, **given)["input_ids"]
    out = case | {"n_hidden": n_hidden, "expected": text}
    return out | {"ids": ids} if case["add_generation_prompt"] else out


def renderings(template, tokenizer):
    special = [token.content for _, token in sorted(tokenizer.added_tokens_decoder.items()) if token.special]
    own, own_tools = special_dialogues([one for one in special if one.startswith("<|")])
    dialogues = DIALOGUES | own | {"single_calls": SINGLE_CALLS}
    tokenizer.chat_template = (HERE / "templates" / f"{template}.jinja").read_text(encoding="utf-8")
    cases = []
    for dialogue in dict.fromkeys(WITHOUT_TOOLS + WITH_TOOLS):
        for with_tools in [False, True]:
            if dialogue not in (WITH_TOOLS if with_tools else WITHOUT_TOOLS) or dialogue in LEFT_OUT.get(template, []):
                continue
            for prompt in [False, True]:
                thinks = prompt and dialogue in THINKING.get(template, [])
                for thinking in [None, False, True] if thinks else [None]:
                    case = {
                        "dialogue": dialogue,
                        "tools": with_tools,
                        "add_generation_prompt": prompt,
                        "enable_thinking": thinking,
                    }
                    extra = dict(DATE.get(template, {}))
                    if thinking is not None:
                        extra["enable_thinking"] = thinking
                    tools = own_tools if dialogue == "special" else TOOLS
                    cases.append(rendering(tokenizer, special, dialogues, tools, case, extra))
    used = {name: dialogues[name] for name in dict.fromkeys(WITHOUT_TOOLS + WITH_TOOLS)}
    return {
        "extra": DATE.get(template, {}),
        "dialogues": used,
        "tools": TOOLS,
        "special_tools": own_tools,
        "cases": cases,
    }


def runs(ids):
    """Ids as lists that are repeated: [[ids, repetitions], ...]."""
    out, start = [], 0
    while start < len(ids):
        best = (1, 1)
        for period in range(1, 13):
            block, n = ids[start : start + period], 1
            while ids[start + n * period : start + (n + 1) * period] == block:
                n += 1
            if n > 2 and n * period > best[0] * best[1]:
                best = (period, n)
        period, n = best
        if n == 1 and out and out[-1][1] == 1:
            out[-1][0].append(ids[start])
        else:
            out.append([ids[start : start + period], n])
        start += period * n
    assert [one for block, n in out for one in block * n] == ids
    return out


def encodings(tokenizer, texts, pack):
    out = []
    for text in texts:
        ids, literal = ids_of(tokenizer, text), ids_of(tokenizer, text, literal=True)
        decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        case = {"ids": pack(ids)}
        if literal != ids:
            case["literal_ids"] = pack(literal)
        if decoded != text:
            case["decoded"] = decoded
        out.append(case)
    return out


def snippets(tokenizer):
    out = []
    for template in SNIPPETS:
        tokenizer.chat_template = template
        try:
            expected = tokenizer.apply_chat_template([for_template(ASK)], tokenize=False)
        except Exception:
            expected = None
        out.append({"template": template, "expected": expected})
    return out


def write(path, value):
    """JSON with one line for each entry of each list of the first level."""
    lines = []
    for key, entry in value.items():
        text = json.dumps(entry, ensure_ascii=False)
        if isinstance(entry, list) and entry and isinstance(entry[0], dict | list | str):
            text = "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in entry) + "\n]"
        lines.append(f"{json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main():
    OUT.mkdir(exist_ok=True)
    tokenizers, texts = {}, list(TEXTS)
    for name, make in TOKENIZERS.items():
        folder = OUT / name
        folder.mkdir(exist_ok=True)
        raw, settings = make()
        raw.save(str(folder / "tokenizer.json"), pretty=False)
        settings = {key: value for key, value in settings.items() if value is not None}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
        tokenizers[name] = AutoTokenizer.from_pretrained(folder)
        # Added tokens that are not special stay tokens wherever they stand.
        tokenizers[name].chat_control_tokens = []
        texts += [one for token in list(settings.values())[:1] if isinstance(token, str) for one in around(token)]
    texts += [one for token in ["<|im_end|>", "<|eot_id|>", "</s>", TOOL_WORDS[0]] for one in around(token)]
    texts = list(dict.fromkeys(texts))
    write(OUT / "corpus.json", {"texts": texts, "long": LONG})
    for name, tokenizer in tokenizers.items():
        long = encodings(tokenizer, [piece * n for piece, n in LONG], runs)
        # What is left of a character whose bytes were cut, and of a byte that starts none.
        cut = ids_of(tokenizer, "\U0001f980")
        partial = [{"ids": ids, "decoded": tokenizer.decode(ids)} for ids in [cut[:-1], cut[-2:], cut[:-1] + cut]]
        for case in long:
            # The text of the ids is that of the corpus, composed or not; it is too long to be stored.
            case.pop("decoded", None)
        value = {"texts": encodings(tokenizer, texts, list), "long": long, "partial": partial}
        write(OUT / name / "encode.json", value)
    for template, name in TEMPLATES.items():
        value = renderings(template, tokenizers[name])
        write(OUT / name / f"render_{template}.json", value)
        n_refused = sum(case["expected"] is None for case in value["cases"])
        print(template, len(value["cases"]), "renderings,", n_refused, "refused")
    write(OUT / "snippets.json", {"message": ASK, "snippets": snippets(tokenizers["llama3"])})
    folder = OUT / "configured"
    folder.mkdir(exist_ok=True)
    write(folder / "cases.json", {"texts": configured.TEXTS, "cases": configured.cases(folder)})


if __name__ == "__main__":
    main()
