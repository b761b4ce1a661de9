#!/usr/bin/env python3
"""Makes bfcl_entries.parquet and bfcl_vectors.parquet: calls, and what the leaderboard's own checker says of them.

    python3 -m venv venv
    venv/bin/pip install pyarrow filelock mpmath==1.3.0
    venv/bin/pip install --no-deps bfcl-eval==2026.3.23
    venv/bin/python jobs/tests/golden/bfcl_vectors.py FOLDER --entries 60 --per-entry 60

Takes at most ENTRIES prompts of each category, evenly spread (0: all), and for each PER_ENTRY variations of right calls:
values of other kinds and spellings, arguments left out or added, calls in another order or number. With the arguments
above it makes the files in the repository; with `--entries 0 --per-entry 50` some 115 thousand vectors, which
`ENVACE_BFCL_VECTORS=FOLDER cargo test --workspace bfcl_vectors` compares.
"""
import argparse
import copy
import json
import math
import os
import random
import sys
import tempfile
import types
from collections import namedtuple
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

# The checker's only use of this module, which would import every vendor's package, is one flag.
os.environ.setdefault("BFCL_PROJECT_ROOT", tempfile.mkdtemp())
Model = namedtuple("Model", "underscore_to_dot is_fc_model")
models = types.ModuleType("bfcl_eval.constants.model_config")
models.MODEL_CONFIG_MAPPING = {"dots/no": Model(True, True), "dots/yes": Model(False, False)}
sys.modules["bfcl_eval.constants.model_config"] = models

import bfcl_eval  # noqa: E402
from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402

DATA = Path(bfcl_eval.__file__).parent / "data"
PYTHON = ["simple_python", "multiple", "parallel", "parallel_multiple"]
LIVE = ["live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"]
CATEGORIES = {name: Language.PYTHON for name in PYTHON + LIVE}
CATEGORIES |= {"simple_java": Language.JAVA, "simple_javascript": Language.JAVASCRIPT}


def records(path):
    return {record["id"]: record for record in map(json.loads, path.read_text().splitlines())}


def right_value(rng, accepted):
    """One of the accepted values, with objects filled in; None if only the empty text is accepted."""
    stated = [value for value in accepted if value != ""]
    if not stated:
        return None
    value = rng.choice(stated)
    fill = lambda fields: {
        key: rng.choice([o for o in options if o != ""] or [""])
        for key, options in fields.items()
        if isinstance(options, list) and not ("" in options and rng.random() < 0.5)
    }
    if isinstance(value, dict):
        return fill(value)
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [fill(item) for item in value]
    return value


def in_source(rng, value, kind, language):
    """A value in the notation of Java or JavaScript."""
    quoted = lambda v: json.dumps(v) if rng.random() < 0.7 or not isinstance(v, str) else "'%s'" % v
    if not isinstance(value, (list, dict)):
        if isinstance(value, bool):
            return "true" if value else "false"
        suffix = {"float": "f", "long": "L", "Bigint": "n"}.get(kind, "") if language == Language.JAVA or kind == "Bigint" else ""
        return value if isinstance(value, str) else f"{value}{suffix}"
    if language == Language.JAVASCRIPT:
        if isinstance(value, dict):
            return "{%s}" % ", ".join(f"{key}: {quoted(item)}" for key, item in value.items())
        inner = ", ".join(quoted(item) for item in value)
        return rng.choice(["[%s]", "[%s]", "new Array(%s)"]) % inner
    if isinstance(value, dict):
        puts = " ".join(f'put("{key}", {json.dumps(item)});' for key, item in value.items())
        return "new HashMap<String, Object>() {{ %s }}" % puts
    inner = ", ".join(json.dumps(item) for item in value)
    if kind == "Array":
        return "new Object[]{%s}" % inner
    if rng.random() < 0.3:
        return "new ArrayList<>() {{ %s }}" % " ".join(f"add({json.dumps(item)});" for item in value)
    return "new ArrayList<>(Arrays.asList(%s))" % inner


def beside(rng, value):
    """The next number above or below, whose last bit is another."""
    return math.nextafter(value, rng.choice([-math.inf, math.inf]))


def next_number(rng, text):
    """The same of a number written as text, with its suffix."""
    bare = text.rstrip("fFlLn")
    try:
        return repr(beside(rng, float(bare))) + text[len(bare):]
    except ValueError:
        return text + "0"


def varied(rng, value):
    """Something near a value, mostly wrong."""
    if isinstance(value, str):
        forms = [value.upper(), value.lower(), value.title(), value.replace(" ", ""), value.replace(" ", "_"), value + ".",
                 value + "x", f" {value} ", value.replace("'", '"'), value.replace("-", "/"), value[:-1], value[1:], value + "é",
                 next_number(rng, value), f'"{value}"', "", "-", 5, 0.5, None, True, [value], {value: value}, value + "L", value + "f", value.rstrip("fFlLn")]
        return rng.choice(forms)
    if isinstance(value, bool):
        return rng.choice([not value, int(value), float(value), str(value), str(value).lower(), None])
    if isinstance(value, int):
        return rng.choice([value + 1, float(value), str(value), bool(value), None, -value, [value], value + 0.5, 10**15 + value,
                           beside(rng, float(value))])
    if isinstance(value, float):
        whole = int(value) if abs(value) < 1e15 else 0
        return rng.choice([whole, value + 0.5, str(value), None, value * (1 + 1e-15), -value, value == 1.0, beside(rng, value),
                           beside(rng, value), 0.1 + value])
    if isinstance(value, list):
        same = copy.deepcopy(value)
        if rng.random() < 0.3 and same:
            index = rng.randrange(len(same))
            same[index] = varied(rng, same[index])
            return same
        return rng.choice([
            same[::-1], same[:-1], same + same[:1], [], [str(item) for item in same], {"items": same}, "x", [same],
            [item.upper() if isinstance(item, str) else item for item in same],
            [float(item) if type(item) is int else item for item in same],
            [int(item) if type(item) is float and abs(item) < 1e15 else item for item in same],
            same[0] if same else None,
        ])
    if isinstance(value, dict):
        same = copy.deepcopy(value)
        keys = list(same)
        step = rng.randrange(6)
        if step == 0 and keys:
            same.pop(rng.choice(keys))
        elif step == 1:
            same["unheard_of"] = 1
        elif step in (2, 3) and keys:
            key = rng.choice(keys)
            same[key] = varied(rng, same[key])
        elif step == 4:
            return [same]
        else:
            return {} if rng.random() < 0.5 else "x"
        return same
    return rng.choice([0, "", "None", [], False, {}])


def right_calls(rng, entry, answer, language, dots):
    calls = []
    for expected in answer:
        (name, parameters), = expected.items()
        function = next((one for one in entry["function"] if one["name"] == name), None)
        arguments = {}
        for parameter, accepted in parameters.items():
            if "" in accepted and rng.random() < 0.5:
                continue
            value = right_value(rng, accepted)
            if value is None:
                continue
            declared = function["parameters"]["properties"].get(parameter, {}) if function else {}
            if language != Language.PYTHON:
                value = in_source(rng, value, declared.get("type", ""), language)
            arguments[parameter] = value
        if rng.random() < 0.1:
            arguments = dict(sorted(arguments.items(), key=lambda _: rng.random()))
        calls.append([name if dots else name.replace(".", "_"), arguments])
    return calls


def variation(rng, calls):
    calls = copy.deepcopy(calls)
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 2])):
        if not calls:
            break
        step, index = rng.random(), rng.randrange(len(calls))
        name, arguments = calls[index]
        if step < 0.72 and arguments:
            parameter = rng.choice(list(arguments))
            arguments[parameter] = varied(rng, arguments[parameter])
        elif step < 0.80 and arguments:
            arguments.pop(rng.choice(list(arguments)))
        elif step < 0.85:
            arguments["unheard_of"] = "x"
        elif step < 0.89:
            calls[index][0] = rng.choice([name + "x", name.replace(".", "_"), name.upper()])
        elif step < 0.92:
            calls.pop(index)
        elif step < 0.95:
            calls.append(copy.deepcopy(calls[index]))
        else:
            rng.shuffle(calls)
    return calls


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--entries", type=int, default=60)
    arguments.add_argument("--per-entry", type=int, default=60)
    given = arguments.parse_args()
    rng = random.Random(20260323)
    entries, vectors = [], []
    for category, language in CATEGORIES.items():
        prompts = records(DATA / f"BFCL_v4_{category}.json")
        answers = records(DATA / "possible_answer" / f"BFCL_v4_{category}.json")
        names = list(prompts)
        if 0 < given.entries < len(names):
            names = [names[index * len(names) // given.entries] for index in range(given.entries)]
        for name in names:
            entry, answer = prompts[name], answers[name]["ground_truth"]
            functions = [{"name": one["name"], "parameters": bare(one["parameters"])} for one in entry["function"]]
            entries.append({"id": name, "category": category, "language": language.value.lower(),
                            "functions": json.dumps(functions), "expected": json.dumps(answer)})
            for index in range(given.per_entry):
                dots = index % 2 == 1
                calls = variation(rng, right_calls(rng, entry, answer, language, dots))
                as_decoded = [{call: dict(values)} for call, values in copy.deepcopy(calls)]
                try:
                    said = ast_checker(entry["function"], as_decoded, answer, language, category, "dots_yes" if dots else "dots_no")
                    is_valid, error = said["valid"], None if said["valid"] else said["error_type"]
                except Exception:  # The checker has no rule for it.
                    is_valid, error = False, "undefined"
                vectors.append({"id": name, "has_dots": dots, "calls": json.dumps(calls), "is_valid": is_valid, "error": error})
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("entries", entries), ("vectors", vectors)):
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, given.folder / f"bfcl_{name}.parquet", compression="zstd", compression_level=19)
    print(len(entries), "entries,", len(vectors), "vectors,", sum(row["is_valid"] for row in vectors), "valid")


def bare(schema):
    """A declaration without its prose."""
    if isinstance(schema, dict):
        return {key: bare(value) for key, value in schema.items() if key != "description" or isinstance(value, dict)}
    return [bare(item) for item in schema] if isinstance(schema, list) else schema


main()
