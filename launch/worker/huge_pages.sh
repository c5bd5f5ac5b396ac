#!/usr/bin/env bash
# On a worker, as root: transparent huge pages for all memory.
#
#   bash huge_pages.sh
#
# Google advises it from v5e on: the copies between the machine and its TPU,
# start-up and restoring with them, get faster. It is no reason to fail.
#
#   HUGE_PAGES_FILE  the kernel's setting
set -euo pipefail

file=${HUGE_PAGES_FILE:-/sys/kernel/mm/transparent_hugepage/enabled}
if ! echo always 2>/dev/null >"$file"; then
  echo "warning: transparent huge pages were not set ($file)." >&2
fi
