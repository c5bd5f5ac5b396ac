#!/usr/bin/env bash
# On a worker: runs a program, and restarts it when that can help.
#
#   bash run.sh PROGRAM ARGUMENT...
#
# The program restarts after the exit codes in `restartable_codes` beside this
# file (75: stopped by SIGTERM, but the machine lives; 76: a collective failed;
# 77: stuck; 78: a device computed wrongly) and after death by a signal (134:
# jax.distributed lost a host). It does not restart after 0, 130
# (Ctrl-C) and all other codes, because the same program would only fail again.
# On SIGTERM, this script passes the signal on, lets the program save, and does
# not restart it.
#
# All workers of a slice run this script. When the program ends on one worker,
# the programs on the other workers end within their time limits. All
# programs then restart, and wait for each other at the start (vit_jax.main
# --start_timeout).
#
#   RUN_DIRECTORY  holds `log` and the one line of `state` (~/vit_jax_home/run):
#                  running, restarting, ended, gave_up, stopped (by hand) or
#                  interrupted (the machine went down); and the last exit code,
#                  the attempt, and the number of failures in a row
#   WORKDIR        work directory of the run; the log of each attempt that did
#                  not end with 0 is copied into its launch/logs (not set: none)
#   RESTARTS       maximum number of restarts in a row (20)
#   RESTART_RESET  seconds (7200) after which an attempt resets the count of
#                  failures, unless it got stuck. A run that always hangs at its
#                  first step lasts guard.exit_after (3600) on the stuck worker,
#                  and a little longer on the others
#   RESTART_PAUSE  seconds before the next attempt (30)
set -euo pipefail

directory=${RUN_DIRECTORY:-$HOME/vit_jax_home/run}
restarts=${RESTARTS:-20}
reset=${RESTART_RESET:-7200}
pause=${RESTART_PAUSE:-30}
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
restartable=" $(tr '\n' ' ' <"$scripts/restartable_codes")"
mkdir -p "$directory"
exec >>"$directory/log" 2>&1

child=''
stopped=''
interrupted=''
failures=0
attempt=0

state() {
  echo "$*" >"$directory/state.new"
  mv "$directory/state.new" "$directory/state"
  echo "[$(date -u +%Y-%m-%dT%H:%M:%SZ)] run.sh: $*"
}

# keep_log CODE: copies the attempt's log, so that it outlives the machine. The
# timeout is short because a machine that goes down has half a minute.
keep_log() {
  [[ -n ${WORKDIR:-} && $1 != 0 ]] || return 0
  tail -c "+$((offset + 1))" "$directory/log" >"$directory/attempt"
  timeout 20 "${PYTHON:-python}" "$scripts/keep_log.py" "$WORKDIR" \
    "$directory/attempt" "attempt_$attempt-code_$1" || true
}

forward() {
  interrupted=yes
  # stop.sh creates this file when the user stops the run. Without the file, the
  # machine is going down.
  stopped=interrupted
  [[ ! -f $directory/stop_requested ]] || stopped=stopped
  if [[ -n $child ]]; then
    kill -TERM "$child" 2>/dev/null || true
  fi
}
trap forward TERM INT

while true; do
  attempt=$((attempt + 1))
  offset=$(stat -c %s "$directory/log")
  state "running attempt=$attempt failures=$failures"
  started=$SECONDS
  "$@" &
  child=$!
  # The signal may have come before the child started.
  [[ -z $stopped ]] || kill -TERM "$child" 2>/dev/null || true
  # A trapped signal ends `wait` early, while the program still saves.
  code=''
  while true; do
    interrupted=''
    result=0
    wait "$child" || result=$?
    # A second `wait` for a process that has ended gives 127.
    [[ -n $code && $result -eq 127 ]] || code=$result
    [[ -n $interrupted ]] || break
  done
  child=''
  if [[ -n $stopped ]]; then
    state "$stopped code=$code attempt=$attempt"
    keep_log "$code"
    exit "$code"
  fi
  if [[ $restartable != *" $code "* ]] && ((code <= 128 || code == 130)); then
    keep_log "$code"
    state "ended code=$code attempt=$attempt"
    exit "$code"
  fi
  if ((code != 77 && SECONDS - started >= reset)); then
    failures=0
  fi
  failures=$((failures + 1))
  keep_log "$code"
  if ((failures > restarts)); then
    state "gave_up code=$code attempt=$attempt"
    exit "$code"
  fi
  state "restarting code=$code attempt=$attempt failures=$failures"
  sleep "$pause" &
  child=$!
  [[ -z $stopped ]] || kill -TERM "$child" 2>/dev/null || true
  wait "$child" || true
  child=''
  if [[ -n $stopped ]]; then
    state "$stopped code=$code attempt=$attempt"
    exit "$code"
  fi
done
