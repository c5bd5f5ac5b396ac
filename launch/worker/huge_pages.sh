#!/usr/bin/env bash
# On a worker, as root: turns on transparent huge pages for all memory.
#
#   bash huge_pages.sh
#
# Google advises this for v5e and later, because it makes copies between the
# machine and its TPU faster, and so start-up and restoring. If it fails, the
# script only prints a warning.
#
#   HUGE_PAGES_FILE  the file of the kernel's setting
set -euo pipefail

file=${HUGE_PAGES_FILE:-/sys/kernel/mm/transparent_hugepage/enabled}
if ! echo always 2>/dev/null >"$file"; then
  echo "warning: transparent huge pages were not turned on ($file)." >&2
fi
