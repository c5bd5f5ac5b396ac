#!/usr/bin/env bash
# Makes the lock files here anew, from setup.py and the newest releases.
#
#   bash launch/locks/update.sh
#
# Needs uv. Earlier lock files are not read, so nothing old is kept. With
# UV_EXCLUDE_NEWER=2026-12-01, say, they are made as on that day.
#
#   cpu, tpu, cuda  what users and pods install
#   test            the newest that the tests run on
#   oldest          the lower bounds of setup.py, on the lowest Python
#
# All but the last are for Python 3.11 and newer: where a release needs a newer
# Python, a line has a marker that pip understands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

lowest_python=3.11
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# lock NAME EXTRA,... OPTION...
lock() {
  local name=$1 words=() extra
  IFS=, read -ra extras <<<"$2"
  for extra in "${extras[@]}"; do
    words+=("--extra=$extra")
  done
  shift 2
  # Without their reasons: `uv pip tree` has these.
  uv pip compile --quiet --no-annotate --python-version="$lowest_python" \
    --custom-compile-command='bash launch/locks/update.sh' \
    --output-file="$scratch/$name.txt" "${words[@]}" "$@" setup.py
}

# All extras together first, so that the files agree with each other.
lock all test,gcs,plot,plan,tpu,cuda,slurm --universal
same=(--universal "--constraints=$scratch/all.txt")
lock cpu gcs,plot "${same[@]}"
lock tpu tpu,gcs,plot "${same[@]}"
lock cuda cuda,gcs,plot,slurm "${same[@]}"
lock test test,gcs,plot,plan "${same[@]}"
lock oldest test --resolution=lowest-direct --python-platform=linux
rm "$scratch/all.txt"
mv "$scratch"/*.txt launch/locks/
