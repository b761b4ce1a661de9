"""Loads a checkpoint with `transformers` and compares its logits with those envace computed.

    python check_checkpoint.py CHECKPOINT LOGITS [--tolerance 1e-4]

CHECKPOINT is a folder in Hugging Face layout, such as `<store>/checkpoints/<digest>`. LOGITS is a JSON file made by

    cargo run --release -p envace-model --example logits -- CHECKPOINT LOGITS

with the keys `text` (what was encoded), `token_ids` (how envace encoded it), `logits` (one list a token: the logits
of the token after it) and `continuation` (the most probable tokens after it, one after the other). Checked are: the
tensors of the file are those the architecture has, the tokenizer gives the same ids, no logit differs by more than the
tolerance when both sides compute in 32-bit floats, and each token of the continuation is the one with the largest logit
here too, after the same tokens. Two logits closer than twice the tolerance may change places.

Exit code 0: the same. 1: not the same. 2: a file is missing or not what it should be.
"""

import argparse
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # A folder that is not there is not looked for elsewhere.

import torch  # noqa: E402
import transformers  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", metavar="CHECKPOINT")
    parser.add_argument("logits", metavar="LOGITS")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    if not os.path.isdir(arguments.checkpoint):
        print(f"no checkpoint: {arguments.checkpoint} is not a folder", file=sys.stderr)
        return 2
    try:
        with open(arguments.logits, encoding="utf-8") as file:
            ours = json.load(file)
        text, token_ids, logits = ours["text"], ours["token_ids"], torch.tensor(ours["logits"], dtype=torch.float32)
        continuation = torch.tensor(ours["continuation"], dtype=torch.int64)
        tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.checkpoint)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            arguments.checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2

    wrong = [f"{key}: {sorted(report[key])}" for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if report[key]]
    their_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if their_ids != token_ids:
        wrong.append(f"token ids: transformers {their_ids}, envace {token_ids}")
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([token_ids])).logits[0]
    if theirs.shape != logits.shape:
        wrong.append(f"shape of the logits: transformers {tuple(theirs.shape)}, envace {tuple(logits.shape)}")
    else:
        difference = (theirs - logits).abs().max().item()
        largest = theirs.abs().max().item()
        print(f"{len(token_ids)} tokens, largest logit {largest:.3f}, largest difference {difference:.2e}")
        if not difference <= arguments.tolerance:
            wrong.append(f"largest difference {difference:.2e}, allowed {arguments.tolerance:.0e}")
    with torch.no_grad():
        whole = torch.cat([torch.tensor(token_ids), continuation])
        rows = model(whole[None]).logits[0, len(token_ids) - 1 : -1]
    behind = rows.max(dim=1).values - rows.gather(1, continuation[:, None])[:, 0]
    n_same = int((rows.argmax(dim=1) == continuation).sum())
    print(f"greedy continuation: {n_same} of {len(continuation)} tokens are the most probable here too")
    if not len(continuation) or not behind.max().item() <= 2 * arguments.tolerance:
        wrong.append(f"greedy continuation: a token is {behind.max().item():.2e} behind the most probable one")
    for line in wrong:
        print(line, file=sys.stderr)
    print("not the same" if wrong else "transformers and envace agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
