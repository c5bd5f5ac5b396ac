"""A machine of a slice, with stand-ins for the programs of its scripts."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests import commands

ROOT = pathlib.Path(__file__).parents[3]
SCRIPTS = ROOT / 'launch' / 'worker'

# Those for systemd know one unit, which is active while `$HOME/active` exists.
STAND_INS = {
  'sudo': 'exec "$@"',
  'systemctl': """
    case "$1" in
      is-active) test -e "$HOME/active" ;;
      stop)
        rm "$HOME/active"
        echo 'stopped code=75' > "$HOME/vit_jax_home/run/state"
        ;;
      *) exit 2 ;;
    esac
    echo "$@" >> "$HOME/systemctl_calls"
  """,
  'systemd-run': """
    settings=()
    for word in "$@"; do
      case "$word" in
        --setenv=*) settings+=("${word#--setenv=}") ;;
        --working-directory=*) cd "${word#*=}" ;;
        --*) echo "$word" >> "$HOME/unit" ;;
        *) break ;;
      esac
      shift
    done
    # systemd expands variables in a command, and $$ to $.
    words=()
    for word in "$@"; do
      words+=("$(sed --regexp-extended 's/\\$\\$/\\x01/g; s/^\\$[A-Z]+$//
        s/\\$\\{[A-Z]+\\}//g; s/\\x01/$/g' <<<"$word")")
    done
    exec env -i PATH="$PATH" "${settings[@]}" "${words[@]}"
  """,
  'uv': """
    echo "$@" >> "$HOME/uv_calls"
    if [ "$1" = venv ]; then
      mkdir -p "${@: -1}/bin"
      printf '#!/bin/sh\nexec "$PYTHON" "$@"\n' > "${@: -1}/bin/python"
      chmod +x "${@: -1}/bin/python"
    fi
  """,
  'curl': 'exit 9',
}


def run(script, *words, code=0, **variables):
  words = ('bash', SCRIPTS / script, *words)
  result = commands.run_new(*words, code=code, limit=30, **variables)
  return result.stdout + result.stderr


# A program that saves on SIGTERM for a moment.
SAVES = """
trap 'sleep 0.3; touch "$FOLDER/saved"; exit 75' TERM
touch "$FOLDER/ready${SLURM_PROCID:-}"
while true; do sleep 0.05; done
"""


@pytest.fixture
def begin(tmp_path, monkeypatch):
  """Returns a function that starts a script with a program, a text for bash.

  The script finds the program on PATH as `program` and as `python`. Each call
  of the program adds its arguments to the file `calls`.
  """
  processes = []
  bin_ = tmp_path / 'bin'
  bin_.mkdir(exist_ok=True)
  monkeypatch.setenv('PATH', f'{bin_}{os.pathsep}{os.environ["PATH"]}')
  monkeypatch.setenv('FOLDER', str(tmp_path))

  def start(script, program, *words, **variables):
    for name in ('program', 'python'):
      text = f'echo "$*" >> "$FOLDER/calls"\n{program}'
      commands.write_program(bin_ / name, text)
    processes.append(
      subprocess.Popen(
        ['bash', str(ROOT / 'launch' / script), *words],
        env=os.environ | {key: str(x) for key, x in variables.items()},
        stdout=(tmp_path / 'output').open('w'),
        start_new_session=True,
      )
    )
    return processes[-1]

  yield start
  for process in processes:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def machine(tmp_path, monkeypatch):
  """Provides a machine: its HOME, with stand-ins for its programs on PATH."""
  folder = tmp_path / 'bin'
  folder.mkdir()
  for name, text in STAND_INS.items():
    commands.write_program(folder / name, f'set -eu\n{text}')
  monkeypatch.setenv('PATH', f'{folder}{os.pathsep}{os.environ["PATH"]}')
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('HOSTNAME', 't1v-n-1-w-3')
  monkeypatch.setenv('PYTHON', sys.executable)
  monkeypatch.delenv('VIT_JAX_HOME', raising=False)
  return tmp_path
