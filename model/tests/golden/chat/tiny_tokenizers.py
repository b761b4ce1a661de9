"""Tiny tokenizers, each with the normalizer, pre-tokenizer and kind of special tokens of one family of models."""

import json

from corpus import TRAINING
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TOOL_WORDS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# The published split of Llama 3: up to three digits, and what the Qwen models took over from it.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(tokenizer, vocab_size, special=(), alphabet=True):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if alphabet else [],
    )
    tokenizer.train_from_iterator(TRAINING * 3, trainer)


def qwen():
    """Canonical composition, one digit at a time, special tokens behind the vocabulary, tool words not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 580)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    plain = [*TOOL_WORDS, "<think>", "</think>"]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return tokenizer, {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def llama3():
    """No normalizer, three digits at a time, words of the vocabulary before merges, a first token when asked for."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 580)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    special += ["<|eom_id|>", "<|python_tag|>"]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    first = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    template = processors.TemplateProcessing("<|begin_of_text|> $A", "<|begin_of_text|> $A $B", [first])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def smollm2():
    """Digits alone, the split of GPT-2, special tokens at the start of the vocabulary itself."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>"]
    train(tokenizer, 590, special)
    return tokenizer, {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
        "additional_special_tokens": special[1:3],
    }


def hermes():
    """As Mistral and Llama 2: spaces are a character, unknown characters are bytes, one word is the whole text."""
    draft = Tokenizer(models.BPE())
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    draft.normalizer = normalizers.Sequence(marks)
    # Only for training: merges that stay within words.
    draft.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    train(draft, 330, alphabet=False)
    base = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    words = [word for word, _ in sorted(draft.get_vocab().items(), key=lambda item: item[1]) if word not in base]
    vocab = {word: index for index, word in enumerate(base + words)}
    merges = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in merges_of(draft)]
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(marks)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", "<|im_end|>", "<|im_start|>"]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in TOOL_WORDS])
    return tokenizer, {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>", "pad_token": "</s>"}


def merges_of(tokenizer):
    return json.loads(tokenizer.to_str())["model"]["merges"]


TOKENIZERS = {"qwen": qwen, "llama3": llama3, "smollm2": smollm2, "hermes": hermes}
