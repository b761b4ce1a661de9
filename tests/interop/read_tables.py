"""Reads every table of a store with pyarrow, DuckDB and Polars, and checks that they see the same.

    python read_tables.py STORE

STORE is a local store: the folder that holds `tables/`. For each table the three readers, each by its own code and
each taking `run`, `stage`, `step` and `attempt` from the folders, must agree on

- the names of the columns, and which of them come from the folders,
- the number of rows, in all and of each (run, stage, step, attempt),
- the number of NULLs of every column,
- the sum of every column of numbers or booleans (to 1e-9 of the sum of the absolute values), and the number of
  characters of every column of text.

Exit code 0: all agree. 1: they do not, a table cannot be read, or it is none of envace's. 2: there is no such store.
"""

import argparse
import glob
import math
import os
import sys

import duckdb
import polars
import pyarrow
import pyarrow.compute
import pyarrow.dataset

FOLDERS = ["run", "stage", "step", "attempt"]
TABLES = [
    "tasks", "trajectories", "messages", "generations", "sequences", "verdicts", "judge_calls", "rewards",
    "advantages", "updates", "sft_losses", "evaluations", "pass_rates", "timings",
]  # fmt: skip


def kind_of(arrow_type):
    """How a column is summed up: `number`, `text`, `list`."""
    types = pyarrow.types
    if types.is_dictionary(arrow_type):
        return kind_of(arrow_type.value_type)
    if types.is_string(arrow_type) or types.is_large_string(arrow_type):
        return "text"
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return "list"
    is_number = types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_decimal(arrow_type)
    if is_number or types.is_boolean(arrow_type):
        return "number"
    raise ValueError(f"no column of envace has the type {arrow_type}")


def by_pyarrow(folder):
    partitioning = pyarrow.dataset.partitioning(
        pyarrow.schema(
            [("run", pyarrow.string()), ("stage", pyarrow.string()), ("step", pyarrow.int64()), ("attempt", pyarrow.int64())]
        ),
        flavor="hive",
    )
    table = pyarrow.dataset.dataset(folder, format="parquet", partitioning=partitioning).to_table()
    compute = pyarrow.compute
    columns = {}
    for name in table.column_names:
        column, kind = table[name], kind_of(table[name].type)
        if kind == "number":
            numbers = compute.cast(column, pyarrow.float64())
            total = compute.sum(numbers).as_py() or 0.0, compute.sum(compute.abs(numbers)).as_py() or 0.0
        else:
            length = compute.utf8_length(column) if kind == "text" else compute.list_value_length(column)
            total = compute.sum(length).as_py() or 0, 0
        columns[name] = kind, column.null_count, total
    counts = table.group_by(FOLDERS).aggregate([([], "count_all")]).to_pylist()
    parts = {tuple(row[name] for name in FOLDERS): row["count_all"] for row in counts}
    return columns, parts


def by_duckdb(folder, kinds):
    connection = duckdb.connect()
    pattern = os.path.join(folder, "**", "*.parquet").replace("'", "''")
    types = "{'run': VARCHAR, 'stage': VARCHAR, 'step': BIGINT, 'attempt': BIGINT}"
    connection.execute(
        f"CREATE VIEW t AS SELECT * FROM read_parquet('{pattern}', hive_partitioning = true, hive_types = {types})"
    )
    names = [row[0] for row in connection.execute("DESCRIBE t").fetchall()]
    columns = {}
    for name in names:
        kind = kinds.get(name, "number")
        value = {"number": f'"{name}"::DOUBLE', "text": f'length("{name}")', "list": f'len("{name}")'}[kind]
        n_nulls, total, absolute = connection.execute(
            f'SELECT count(*) - count("{name}"), coalesce(sum({value}), 0), coalesce(sum(abs({value})), 0) FROM t'
        ).fetchone()
        columns[name] = kind, n_nulls, (total, absolute if kind == "number" else 0)
    group = ", ".join(FOLDERS)
    rows = connection.execute(f"SELECT {group}, count(*) FROM t GROUP BY {group}").fetchall()
    return columns, {tuple(row[:-1]): row[-1] for row in rows}


def by_polars(folder, kinds):
    types = {"run": polars.String, "stage": polars.String, "step": polars.Int64, "attempt": polars.Int64}
    table = polars.scan_parquet(folder, hive_partitioning=True, hive_schema=types).collect()
    columns = {}
    for name in table.columns:
        column, kind = table[name], kinds.get(name, "number")
        if kind == "number":
            numbers = column.cast(polars.Float64)
            total = numbers.sum() or 0.0, numbers.abs().sum() or 0.0
        else:
            length = column.str.len_chars() if kind == "text" else column.list.len()
            total = length.sum() or 0, 0
        columns[name] = kind, column.null_count(), total
    parts = {row[:-1]: row[-1] for row in table.group_by(FOLDERS).len().rows()}
    return columns, parts


def is_same_total(ours, theirs):
    (total, absolute), (other, other_absolute) = ours, theirs
    total, other = float(total), float(other)
    if math.isnan(total) or math.isnan(other):
        return math.isnan(total) and math.isnan(other)
    return abs(total - other) <= 1e-9 * max(1.0, float(absolute), float(other_absolute))


def differences(name, first, other, reader):
    """What `reader` sees otherwise than pyarrow, in words."""
    (columns, parts), (other_columns, other_parts) = first, other
    if sorted(columns) != sorted(other_columns):
        only = sorted(set(columns) ^ set(other_columns))
        yield f"{name}: {reader} and pyarrow do not see the same columns: {', '.join(only)}"
    if parts != other_parts:
        yield f"{name}: {reader} counts {other_parts}, pyarrow {parts}"
    for column in sorted(set(columns) & set(other_columns)):
        _, n_nulls, total = columns[column]
        _, other_nulls, other_total = other_columns[column]
        if n_nulls != other_nulls:
            yield f"{name}.{column}: {reader} sees {other_nulls} NULLs, pyarrow {n_nulls}"
        if not is_same_total(total, other_total):
            yield f"{name}.{column}: {reader} sums to {other_total[0]}, pyarrow to {total[0]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("store", metavar="STORE", help="the folder that holds `tables/`")
    tables = os.path.join(parser.parse_args().store, "tables")
    if not os.path.isdir(tables):
        print(f"no store: {tables} is not a folder", file=sys.stderr)
        return 2
    unknown = sorted(set(os.listdir(tables)) - set(TABLES))
    wrong = [f"unknown table: {name}" for name in unknown]
    n_read = 0
    for name in TABLES:
        folder = os.path.join(tables, name)
        n_files = len(glob.glob(os.path.join(folder, "**", "*.parquet"), recursive=True))
        if n_files == 0:
            print(f"{name:14} -  not in this store")
            continue
        n_read += 1
        try:
            first = by_pyarrow(folder)
            kinds = {column: kind for column, (kind, _, _) in first[0].items()}
            for reader, read in [("DuckDB", by_duckdb), ("Polars", by_polars)]:
                wrong.extend(differences(name, first, read(folder, kinds), reader))
        except (pyarrow.ArrowException, duckdb.Error, polars.exceptions.PolarsError, ValueError) as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            continue
        n_rows = sum(first[1].values())
        print(f"{name:14} {n_files} files, {len(first[1])} outputs, {n_rows} rows, {len(first[0])} columns")
    if n_read == 0:
        wrong.append("the store holds no table")
    sys.stdout.flush()
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(wrong)} problems" if wrong else f"pyarrow, DuckDB and Polars agree on {n_read} tables")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
