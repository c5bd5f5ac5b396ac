#!/usr/bin/env bash
# On a worker: runs a program, and again when that can help.
#
#   bash run.sh PROGRAM ARGUMENT...
#
# Again: the exit codes in `restartable_codes` beside this file (75: preempted,
# yet the machine lives; 76: another host was lost; 77: stuck), and a death by
# signal. For good: 0, 130 (Ctrl-C), and all others, which the same program
# would only repeat. After SIGTERM, which is passed on, nothing is started
# again; the program has time to save.
#
# All workers of a slice run this. When one program ends, those of the others
# end with 76 within their time limits, and all meet again at the start, where
# each waits for the rest (vit_jax.main --start_timeout).
#
#   RUN_DIRECTORY  holds `log` and `state`, one line (~/vit_jax_home/run):
#                  running, restarting, ended, gave_up, stopped (by hand) or
#                  interrupted (with the machine), and the last exit code, the
#                  attempt, and how many failed in a row
#   WORKDIR        of the run; the log of each attempt that did not end well is
#                  copied there, into launch/logs (none unless set)
#   RESTARTS       at most so often in a row (20); an attempt of at least
#   RESTART_RESET  seconds (7200) starts the count anew, unless it got stuck:
#                  a run that hangs at its first step each time lasts
#                  guard.exit_after (3600) here, and a little more elsewhere
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

# keep_log CODE: what the attempt said, for whoever looks when the machine is
# gone. Nothing waits for it long: a machine that goes down has half a minute.
keep_log() {
  [[ -n ${WORKDIR:-} && $1 != 0 ]] || return 0
  tail -c "+$((offset + 1))" "$directory/log" >"$directory/attempt"
  timeout 20 "${PYTHON:-python}" "$scripts/keep_log.py" "$WORKDIR" \
    "$directory/attempt" "attempt_$attempt-code_$1" || true
}

forward() {
  interrupted=yes
  # Whoever stops a run by hand leaves this file (stop.sh); else the machine
  # is going down.
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
  # The signal may have come before there was a child to pass it to.
  [[ -z $stopped ]] || kill -TERM "$child" 2>/dev/null || true
  # A trapped signal ends `wait` early; the program is then still saving.
  code=''
  while true; do
    interrupted=''
    result=0
    wait "$child" || result=$?
    # Waiting again for what is gone gives 127.
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
