#!/usr/bin/env bash
# Runs one process of a Slurm job, so that its error outranks other exit codes.
#
#   bash slurm_task.sh PROGRAM ARGUMENT...
#
# srun returns the largest exit code of all processes. When one process ends
# with an error (1), the others end with 76 or by a signal, which would hide the
# error. So this script adds 200 to the code of an error, or 70 to a code of the
# shell (126 to 130).
set -euo pipefail

restartable=" $(tr '\n' ' ' <"$(dirname "${BASH_SOURCE[0]}")/restartable_codes")"
# Slurm also signals this process, which must wait for the program's save.
trap : TERM
code=0
"$@" || code=$?
if ((code == 0)) || [[ $restartable == *" $code "* ]]; then
  exit "$code"
fi
if ((code > 128 && code != 130)); then
  exit "$code"
fi
if ((code > 125)); then
  exit $((code + 70))
fi
exit $((200 + (code > 55 ? 55 : code)))
