"""Advantages of synthetic generations: envace beside DuckDB and Polars, on the same Parquet files, in turn.

    cargo build --release --locked --workspace --example advantages
    python3 -m venv target/compare/venv && target/compare/venv/bin/pip install duckdb==2.0.1 polars==2.1.0
    target/compare/venv/bin/python tests/compare/advantages.py [GENERATIONS] [PARTS]

Each side is a process of its own that reads the files, computes with the default settings on two threads and writes Parquet
(zstd). DuckDB runs the query file of envace with one cast added; Polars the same rules as expressions. Their advantages must be
equal to the last bit. Prints medians of three runs of wall time and of the largest resident set.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = TARGET / "release/examples/advantages"
RUNS = 3


def with_duckdb(folder):
    import duckdb

    query = (ROOT / "sql/queries/advantage/advantages.sql").read_text()
    # Its product of two decimals does not grow by itself.
    query = query.replace("reward * 1000000000 AS", "CAST(reward AS DECIMAL(38, 9)) * 1000000000 AS")
    zero = "CAST(0 AS DECIMAL(18, 9))"
    params = {"grouping": "'role'", "weighting": "'generation'", "baseline": "'mean'", "scale": "false", "epsilon": "1e-6",
              "singleton": "'zero'", "zero_variance": "'keep'", "malfunction": "'reward'", "malfunction_reward": zero,
              "blank_penalty": zero, "rehearsal_weight": "1.0"}
    for name in sorted(params, key=len, reverse=True):
        query = query.replace(f"${name}", params[name])
    session = duckdb.connect()
    session.execute("SET threads = 2")
    for table in ("generations", "rewards"):
        session.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{folder}/{table}-*.parquet')")
    session.execute(f"COPY ({query}) TO '{folder}/duckdb.parquet' (FORMAT parquet, COMPRESSION zstd)")


def with_polars(folder):
    import polars as pl

    unit = 10**9
    key = ["task_id", "sample", "generation_index"]
    generations = pl.scan_parquet(f"{folder}/generations-*.parquet").select(
        *key, "role", "user_turn", "n_tokens", "error_code")
    rewards = pl.scan_parquet(f"{folder}/rewards-*.parquet").select(
        "task_id", "sample", "role", "n_kept_user_turns", "reward")
    is_malfunction = (pl.col("role") == "rehearsal") & pl.col("error_code").is_not_null()
    units = (pl.col("reward").cast(pl.Float64) * unit).round().cast(pl.Int64)
    rows = generations.join(rewards, on=["task_id", "sample", "role"], how="left")
    rows = rows.with_columns(units=pl.when(is_malfunction).then(pl.lit(0, pl.Int64)).otherwise(units))
    rows = rows.with_columns(
        exclusion_reason=pl.when(pl.col("user_turn") >= pl.col("n_kept_user_turns")).then(pl.lit("beyond_gate"))
        .when(pl.col("n_tokens") == 0).then(pl.lit("no_tokens"))
        .when(pl.col("units").is_null()).then(pl.lit("ungraded")))
    is_included = pl.col("exclusion_reason").is_null()
    member = pl.when(is_included).then(pl.col("units"))
    group = ["task_id", "role"]
    rows = rows.with_columns(n=member.count().over(group).cast(pl.Int64), sum=member.sum().over(group))
    divisor = (pl.col("n") * unit).cast(pl.Float64)
    centered = (pl.col("units") * pl.col("n") - pl.col("sum")).cast(pl.Float64) / divisor
    rows = rows.select(
        *key, "role",
        pl.when(is_included & (pl.col("n") > 1)).then(pl.col("sum").cast(pl.Float64) / divisor).alias("baseline"),
        pl.col("n").alias("group_size"),
        pl.when(is_included).then(pl.when(pl.col("n") == 1).then(0.0).otherwise(centered)).alias("advantage"),
        is_included.alias("is_included"), "exclusion_reason")
    rows.sort(key).sink_parquet(f"{folder}/polars.parquet", compression="zstd")


def measured(command):
    begun = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, "POLARS_MAX_THREADS": "2", "RAYON_NUM_THREADS": "2"})
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"failed: {command}")
    return time.monotonic() - begun, usage.ru_maxrss / 1024


def check_equal(folder):
    import duckdb

    for peer in ("duckdb", "polars"):
        [(n_rows, n_different)] = duckdb.sql(f"""
            SELECT count(*), count(*) FILTER (WHERE a.advantage IS DISTINCT FROM b.advantage
                OR a.exclusion_reason IS DISTINCT FROM b.exclusion_reason)
            FROM '{folder}/advantages-*.parquet' AS a
            FULL JOIN '{folder}/{peer}.parquet' AS b USING (task_id, sample, generation_index)""").fetchall()
        if n_different:
            sys.exit(f"{n_different} of {n_rows} advantages of {peer} are others")


def main(n_generations="1000000", n_parts="1"):
    folder = ROOT / "target/compare/advantages"
    for file in folder.glob("*.parquet"):
        file.unlink()
    subprocess.run([PROGRAM, "make", folder, n_generations, n_parts], check=True)
    own = [sys.executable, __file__]
    sides = {"envace": [PROGRAM, "run", folder], "duckdb": [*own, "--duckdb", folder], "polars": [*own, "--polars", folder]}
    runs = {side: [] for side in sides}
    for _ in range(RUNS):
        for side, command in sides.items():
            runs[side].append(measured(command))
    check_equal(folder)
    print("| side | seconds | MiB |\n|---|---|---|")
    for side, figures in runs.items():
        seconds, mebibytes = (statistics.median(column) for column in zip(*figures))
        print(f"| {side} | {seconds:.2f} | {mebibytes:.0f} |")


if sys.argv[1:2] == ["--duckdb"]:
    with_duckdb(sys.argv[2])
elif sys.argv[1:2] == ["--polars"]:
    with_polars(sys.argv[2])
else:
    main(*sys.argv[1:])
