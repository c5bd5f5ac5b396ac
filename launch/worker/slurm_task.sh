#!/usr/bin/env bash
# One process of a Slurm job: runs a program, and makes its error outrank others.
#
#   bash slurm_task.sh PROGRAM ARGUMENT...
#
# srun hands on the largest exit code of all processes. When one ends with an
# error (1), the others end with 76 or by a signal, which would hide it. So
# errors leave as 200 more, the shell's own (126 to 130) as 70 more.
set -euo pipefail

restartable=" $(tr '\n' ' ' <"$(dirname "${BASH_SOURCE[0]}")/restartable_codes")"
# Slurm signals all processes of a job, this one too: the program is waited for.
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
