"""Measures torch with transformers (the peer) and envace (the product) on the same work, in turn, and compares.

    python run.py FOLDER [--product PROGRAM] [--jobs PROGRAM] [--runs 3] [--only WORK,...] [--smoke]

FOLDER gets the checkpoints, the specs and `results.json` with every single run. PROGRAM of --product is the example
`compare`, that of --jobs is `envace-jobs`. Prints a table in Markdown: medians, their ratio, what the aim is, and whether
it is met. Exit code 0: all was measured, whatever came of it. 1: something failed; its row says what.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from statistics import median

import measure
import specs
from measure import Failed

GIB = 2**30
# How far loss and gradient norm may differ, as shares: rounding of sums in 32-bit floats stays well below.
TOLERANCE = {"loss": 1e-4, "gradient_norm": 1e-2}

# The share of the cores that other programs may take during a run.
MOST_DISTURBANCE = 0.03


@dataclass(frozen=True)
class Work:
    """`kind` is what is compared: `rate` tokens per second, `time` of one application, `memory`, or `bandwidth`."""

    model: str
    vocab: int
    kind: str
    aim: float


SMALL, TINY, QWEN = ("small", 8192), ("tiny", 800), ("qwen3-0.6b", 151936)
WORKS = {
    "sample": Work(*SMALL, "rate", 3.0),
    "decode": Work(*QWEN, "rate", 1.3),
    "episode": Work(*SMALL, "rate", 4.0),
    "episode-static": Work(*SMALL, "rate", 4.0),
    "update": Work(*SMALL, "time", 1.0),
    "update-tiny": Work(*TINY, "time", 1.0),
    "update-rollout": Work(*SMALL, "time", 4.0),
    "update-rollout-memory": Work(*SMALL, "memory", 0.6),
    "update-long-memory": Work(*QWEN, "memory", 0.6),
    "single": Work(*QWEN, "bandwidth", 0.7),
}
# Works that the peer does in another way, and their names for the product.
SAME_FOR_PRODUCT = {"episode-static": "episode"}
# The most that the product may hold at all.
MEMORY_LIMITS = {"update-long-memory": 16 * GIB}


@dataclass
class Row:
    """One line of the table."""

    work: str
    peer: str
    product: str
    ratio: str
    aim: str
    met: str


def prepare(name, work, arguments):
    """The model and the spec of a work."""
    model = os.path.join(arguments.folder, "models", work.model)
    models = subprocess.run(
        [sys.executable, os.path.join(measure.HERE, "make_models.py"), os.path.dirname(model), work.model],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if models.returncode != 0:
        raise Failed(f"no checkpoint: {measure.last_line(models.stderr)}")
    folder = os.path.join(arguments.folder, "specs")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{name}.json")
    try:
        spec = specs.make(name, work.vocab, arguments.jobs, os.path.join(arguments.folder, "store"), arguments.smoke)
    except (RuntimeError, OSError) as error:
        raise Failed(f"no spec: {measure.last_line(str(error))}") from error
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec, file)
    return model, path


def measure_work(name, work, arguments):
    """All runs of a work: for each side the list of its measurements, or the text of what failed."""
    try:
        model, spec = prepare(name, work, arguments)
    except Failed as error:
        return {"both": str(error)}
    commands = {"peer": measure.peer(name, model, spec), "product": None}
    if arguments.product is not None:
        commands["product"] = measure.product(arguments.product, SAME_FOR_PRODUCT.get(name, name), model, spec)
    if work.kind == "bandwidth":
        del commands["peer"]
    sides = {side: [] for side in commands}
    # What memory is needed does not change from run to run.
    n_runs = 1 if work.kind == "memory" else arguments.runs
    for run in range(n_runs):
        for side, command in commands.items():
            if isinstance(sides[side], str):
                continue
            print(f"{name}: {side}, run {run + 1} of {n_runs}", file=sys.stderr, flush=True)
            try:
                if command is None:
                    raise Failed("not given: name it with --product")
                sides[side].append(measure.run(command, arguments.threads, arguments.timeout))
            except Failed as error:
                sides[side] = str(error)
    return sides


def middle(runs, value):
    return median(value(run) for run in runs)


def rate(run):
    return run["tokens"] / run["seconds"]


def compared(name, ratio, aim, is_at_least, peer, product):
    is_met = ratio >= aim if is_at_least else ratio <= aim
    sign = "≥" if is_at_least else "≤"
    return Row(name, peer, product, f"{ratio:.2f}", f"{sign} {aim:g}", "yes" if is_met else "no")


def is_other_work(work, peer, product):
    """How the two sides did not do the same, or None."""
    if work.kind == "rate":
        if {run["tokens"] for run in peer + product} != {peer[0]["tokens"]}:
            return f"not the same work: {peer[0]['tokens']} and {product[0]['tokens']} tokens"
        return None
    for field, tolerance in TOLERANCE.items():
        ours, theirs = product[0].get(field), peer[0][field]
        if ours is not None and not abs(ours - theirs) <= tolerance * abs(theirs):
            return f"not the same work: {field} {theirs:.6g} and {ours:.6g}"
    return None


def rows_of(name, work, sides):
    peer, product = sides.get("peer"), sides.get("product")
    failed = [f"{side}: {text}" for side, text in sides.items() if isinstance(text, str)]
    if not failed and peer is not None:
        failed = [text for text in [is_other_work(work, peer, product)] if text]
    sign = "≤" if work.kind == "memory" else "≥"
    if failed:
        yield Row(name, *(shown(work, sides.get(side)) for side in ("peer", "product")), "failed", f"{sign} {work.aim:g}",
                  "; ".join(failed).replace("|", "\\|"))  # fmt: skip
    elif work.kind == "rate":
        ratio = middle(product, rate) / middle(peer, rate)
        yield compared(name, ratio, work.aim, True, shown(work, peer), shown(work, product))
    elif work.kind == "time":
        ratio = middle(peer, seconds) / middle(product, seconds)
        yield compared(name, ratio, work.aim, True, shown(work, peer), shown(work, product))
    elif work.kind == "bandwidth":
        ratio = middle(product, lambda run: rate(run) / (run["bytes_per_second"] / run["weight_bytes"]))
        possible = middle(product, lambda run: run["bytes_per_second"] / run["weight_bytes"])
        yield compared(name, ratio, work.aim, True, f"memory allows {possible:.2f} tokens/s", shown(work, product))
    else:
        yield from (memory_row(name + label, work, peer, product, held) for label, held in MEMORY_ROWS.items())
    if name in MEMORY_LIMITS and isinstance(product, list):
        limit = MEMORY_LIMITS[name] / GIB
        held = middle(product, peak) / GIB
        yield Row(f"{name}, in all", "", f"{held:.2f} GiB", "", f"< {limit:g} GiB", "yes" if held < limit else "no")


def seconds(run):
    return run["seconds"]


def peak(run):
    # What is seen from outside has the end of the process in it, where unloading libraries touches their pages.
    return run.get("peak_bytes", run["max_rss_bytes"])


def above_base(run):
    return peak(run) - run.get("base_bytes", 0)


MEMORY_ROWS = {"": peak, ", less what was loaded at the start": above_base}


def memory_row(name, work, peer, product, held):
    ours, theirs = middle(product, held), middle(peer, held)
    return compared(name, ours / theirs, work.aim, False, f"{theirs / GIB:.2f} GiB", f"{ours / GIB:.2f} GiB")


def shown(work, runs):
    """The median of one side, as text."""
    if not runs or isinstance(runs, str):
        return ""
    if work.kind == "memory":
        return f"{middle(runs, peak) / GIB:.2f} GiB"
    if work.kind == "time":
        return f"{middle(runs, seconds):.2f} s"
    return f"{middle(runs, rate):.4g} tokens/s"


def notes_on(name, work, sides):
    """What the reader of the table must know besides."""
    for side, runs in sides.items():
        if isinstance(runs, str):
            continue
        values = [seconds(run) for run in runs]
        if work.kind != "memory" and max(values) > 1.1 * min(values):
            yield f"{name}: runs of the {side} took {min(values):.2f} to {max(values):.2f} s."
    if work.kind in ("time", "memory") and not any(isinstance(runs, str) for runs in sides.values()):
        if missing := [field for field in TOLERANCE if sides["product"][0].get(field) is None]:
            yield f"{name}: the product gives no {' and no '.join(missing)}, so that was not compared."


def disturbance(runs):
    """Which works were measured while the machine was not free."""
    most = {
        name: max((run["other_share"] for side in sides.values() if isinstance(side, list) for run in side), default=0.0)
        for name, sides in runs.items()
    }
    disturbed = [f"{name} {100 * share:.0f} %" for name, share in most.items() if share > MOST_DISTURBANCE]
    if disturbed:
        yield f"Measure these again: other programs, or the host, took a share of the cores, at most {', '.join(disturbed)}."


def table(rows):
    yield "| work | peer | product | ratio | aim | met |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        yield f"| {row.work} | {row.peer} | {row.product} | {row.ratio} | {row.aim} | {row.met} |"


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", metavar="FOLDER", type=os.path.abspath)
    parser.add_argument("--product", metavar="PROGRAM", type=os.path.abspath)
    parser.add_argument("--jobs", metavar="PROGRAM", type=os.path.abspath)
    parser.add_argument("--runs", metavar="N", type=int, default=3, help="runs of each side; the median counts")
    parser.add_argument("--only", metavar="WORK,...", help=f"some of: {', '.join(WORKS)}")
    parser.add_argument("--threads", metavar="N", type=int, default=2, help="threads of each side")
    parser.add_argument("--timeout", metavar="SECONDS", type=int, default=3600, help="for one run")
    parser.add_argument("--smoke", action="store_true", help="lengths and models so small that only failures count")
    arguments = parser.parse_args(words)
    names = arguments.only.split(",") if arguments.only else list(WORKS)
    if unknown := sorted(set(names) - set(WORKS)):
        parser.error(f"no such work: {', '.join(unknown)}")
    if arguments.runs < 1:
        parser.error("--runs must be 1 or more")
    arguments.works = {name: WORKS[name] for name in names}
    if arguments.smoke:
        arguments.works = {name: Work(*TINY, work.kind, work.aim) for name, work in arguments.works.items()}
    return arguments


def main():
    arguments = arguments_of(sys.argv[1:])
    os.makedirs(arguments.folder, exist_ok=True)
    about, runs, rows, notes = measure.machine(), {}, [], []
    for name, work in arguments.works.items():
        runs[name] = measure_work(name, work, arguments)
        rows += rows_of(name, work, runs[name])
        notes += notes_on(name, work, runs[name])
        result = {"machine": about, "threads": arguments.threads, "smoke": arguments.smoke, "runs": runs}
        result["rows"] = [vars(row) for row in rows]
        with open(os.path.join(arguments.folder, "results.json"), "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    if arguments.smoke:
        print("A check of the scripts, with lengths and models at which the figures mean nothing.\n")
    print("\n".join(table(rows)))
    print(
        f"\n{about['cpu']}, {about['cores']} cores, {about['memory_bytes'] / GIB:.0f} GiB, "
        f"load {about['load_before']} before; {arguments.threads} threads each; torch {about['torch']}, transformers {about['transformers']}, "
        f"rustc {about['rustc']}, envace {about['envace']}"
    )
    notes += disturbance(runs)
    if notes:
        print("\n" + "\n".join(f"- {note}" for note in notes))
    return 1 if any(row.ratio == "failed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
