#!/usr/bin/env bash
# Makes all lock files in this folder from setup.py and the newest releases.
#
#   bash launch/locks/update.sh
#
# It needs uv. It does not read the existing lock files, so it keeps no old
# versions. UV_EXCLUDE_NEWER=2026-12-01, for example, ignores later releases.
#
#   cpu, tpu, cuda  the versions that users and pods install
#   test            the newest versions that the tests run with
#   oldest          the lower bounds of setup.py, on the lowest Python
#
# All files except `oldest` are for Python 3.11 and newer: if a release needs a
# newer Python, its line has a marker that pip understands.
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
  # --no-annotate leaves out why a package is needed; `uv pip tree` shows it.
  uv pip compile --quiet --no-annotate --python-version="$lowest_python" \
    --custom-compile-command='bash launch/locks/update.sh' \
    --output-file="$scratch/$name.txt" "${words[@]}" "$@" setup.py
}

# Resolve all extras together first, so that the files agree with each other.
lock all test,gcs,plot,plan,tpu,cuda --universal
same=(--universal "--constraints=$scratch/all.txt")
lock cpu gcs,plot "${same[@]}"
lock tpu tpu,gcs,plot "${same[@]}"
lock cuda cuda,gcs,plot "${same[@]}"
lock test test,gcs,plot,plan "${same[@]}"
lock oldest test --resolution=lowest-direct --python-platform=linux
rm "$scratch/all.txt"
mv "$scratch"/*.txt launch/locks/
