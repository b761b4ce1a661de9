#!/usr/bin/env bash
# Reads a store with other people's programs: its tables with pyarrow, DuckDB and Polars, a checkpoint with transformers.
#
#   tests/interop/run.sh STORE [CHECKPOINT]
#
# STORE       a local store, such as the one `envace-jobs quickstart` leaves
# CHECKPOINT  a model folder; left out, the checkpoint in STORE that was written last
#
# Makes a Python virtual environment in target/interop, once, from the requirements beside this file. PyTorch is most of
# it (several GB with CUDA on Linux): TABLES_ONLY=1 leaves the checkpoint out, PYTHON=… takes an interpreter that has
# all of it already.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

if [[ $# -lt 1 || $# -gt 2 ]]; then
    sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
store="$(realpath "$1")"
checkpoint="${2:-}"
if [[ -z "$checkpoint" && -d "$store/checkpoints" ]]; then
    checkpoint="$(find "$store/checkpoints" -name config.json -printf '%T@ %h\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)"
fi
[[ -z "$checkpoint" ]] || checkpoint="$(realpath "$checkpoint")"
cd "$here/../.."

python="${PYTHON:-}"
if [[ -z "$python" ]]; then
    python=target/interop/bin/python
    [[ -x "$python" ]] || python3 -m venv target/interop
    "$python" -m pip install --quiet -r "$here/requirements.txt"
    [[ -n "${TABLES_ONLY:-}" ]] || "$python" -m pip install --quiet -r "$here/requirements-checkpoint.txt"
fi

echo "=== tables of $store"
"$python" "$here/read_tables.py" "$store"

if [[ -n "${TABLES_ONLY:-}" ]]; then
    exit 0
fi
if [[ -z "$checkpoint" ]]; then
    echo "no checkpoint in $store: name one" >&2
    exit 2
fi
echo "=== checkpoint $checkpoint"
logits="$(mktemp)"
trap 'rm -f "$logits"' EXIT
cargo run --quiet --release --locked -p envace-model --example logits -- "$checkpoint" "$logits"
"$python" "$here/check_checkpoint.py" "$checkpoint" "$logits"
