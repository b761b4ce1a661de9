#!/usr/bin/env bash
# Measures envace beside torch with transformers on the same checkpoints, in turn, and prints a table.
#
#   tests/compare/run.sh [--runs 3] [--only WORK,...] [--product PROGRAM] [--jobs PROGRAM] [--smoke]
#
# --runs     runs of each side; the median counts
# --only     some of the works; README.md lists them
# --product  the built example `compare`, --jobs the built `envace-jobs`; with either of them nothing is built
# --smoke    tiny models and lengths: shows in some minutes that everything runs, and measures nothing
#
# Makes a Python virtual environment in target/compare/venv, once, from the requirements beside this file (several GB
# with CUDA on Linux); COMPARE_PYTHON=… takes an interpreter that has all of it already. Everything else that is made is
# in target/compare too: checkpoints (2.5 GB), specs, and results.json with every single run.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

usage() {
    sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

product="" jobs="" options=()
while [[ $# -gt 0 ]]; do
    case "$1" in
        --smoke) options+=("$1") && shift && continue ;;
        --runs | --only | --product | --jobs) [[ $# -ge 2 ]] || usage ;;
        *) usage ;;
    esac
    case "$1" in
        --product) product="$(realpath "$2")" ;;
        --jobs) jobs="$(realpath "$2")" ;;
        *) options+=("$1" "$2") ;;
    esac
    shift 2
done
python="${COMPARE_PYTHON:-}"
[[ "$python" != */* ]] || python="$(realpath --no-symlinks "$python")"
cd "$here/../.."

if [[ -z "$python" ]]; then
    python=target/compare/venv/bin/python
    [[ -x "$python" ]] || python3 -m venv target/compare/venv
    "$python" -m pip install --quiet -r "$here/requirements.txt"
fi

if [[ -z "$product" && -z "$jobs" ]]; then
    cargo build --release --locked --workspace --bins
    cargo build --release --locked -p envace-model --example compare
    product="${CARGO_TARGET_DIR:-target}/release/examples/compare"
    jobs="${CARGO_TARGET_DIR:-target}/release/envace-jobs"
fi
[[ -z "$product" ]] || options+=(--product "$product")
[[ -z "$jobs" ]] || options+=(--jobs "$jobs")

"$python" "$here/run.py" target/compare "${options[@]}"
