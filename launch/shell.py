"""Commands of other programs: run, read, or only printed."""

import contextlib
import itertools
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from vit_jax.runtime import shipped

# Of queued resources, node pools and JobSets, with room for what is appended.
_NAME = re.compile(r'[a-z]([-a-z0-9]{0,38}[a-z0-9])?')


class CommandError(RuntimeError):
  """A program could not be started, or failed."""


class Shell:
  """Runs commands, or prints them, each ready to be pasted into a shell."""

  def __init__(self, dry_run: bool):
    self.dry_run = dry_run

  def run(self, command: Sequence[str], *, stdin: str | None = None) -> None:
    """Runs it with its output on the console.

    Raises:
      CommandError: it failed.
    """
    self._start(command, stdin=stdin)

  def read(self, command: Sequence[str]) -> str:
    """What it prints; '' in a dry run.

    Raises:
      CommandError: it failed.
    """
    return self._start(command, capture=True)

  def read_json(self, command: Sequence[str]) -> list[Any]:
    """The list that it prints with --format=json; [] in a dry run."""
    return json.loads(self.read([*command, '--format=json']) or '[]')

  def scratch(self) -> contextlib.AbstractContextManager[str]:
    """A temporary directory; in a dry run only its name."""
    if self.dry_run:
      return contextlib.nullcontext('/tmp/vit_jax_code')
    return tempfile.TemporaryDirectory()

  def say(self, text: str) -> None:
    """Prints it; in a dry run as a comment, as all else is commands."""
    if self.dry_run:
      text = '\n'.join(f'# {line}' for line in text.split('\n'))
    print(text, flush=True)

  def _start(self, command, *, capture=False, stdin=None) -> str:
    line = shlex.join(command)
    if self.dry_run:
      if stdin is not None:
        line += f" <<'EOF'\n{stdin.rstrip()}\nEOF"
      print(line, flush=True)
      return ''
    if not capture:
      print(f'+ {line}', file=sys.stderr, flush=True)
    try:
      result = subprocess.run(
        command,
        input=stdin,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
      )
    except FileNotFoundError:
      raise CommandError(
        f'{command[0]} is not installed, or not on PATH. It is needed for:'
        f' {line}'
      ) from None
    if result.returncode:
      raise CommandError(f'exit code {result.returncode} of: {line}')
    return result.stdout or ''


def check_name(name: str) -> str:
  """Refuses what Google Cloud or Kubernetes would, later.

  Raises:
    ValueError: says what is allowed.
  """
  if not _NAME.fullmatch(name):
    raise ValueError(
      f'--name={name}: expected at most 40 lower-case letters, digits and'
      ' dashes, beginning with a letter and not ending with a dash.'
    )
  return name


def confirm(question: str, *, yes: bool, dry_run: bool) -> None:
  """Asks on the console.

  Args:
    question: without the choices.
    yes: the answer was given on the command line (--yes).
    dry_run: nothing is going to happen.

  Raises:
    ValueError: the answer is no, or nobody is there to ask.
  """
  if yes or dry_run:
    return
  if not sys.stdin.isatty():
    raise ValueError(f'{question} Pass --yes: nobody is there to be asked.')
  if input(f'{question} [y/N] ').strip().lower() not in ('y', 'yes'):
    raise ValueError('nothing was done.')


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
  """The words before and after the first `--`."""
  words = list(words)
  if '--' not in words:
    return words, []
  at = words.index('--')
  return words[:at], words[at + 1 :]


def check_run(flags: Sequence[str]) -> str:
  """Checks the flags of vit_jax.main as far as it is possible from here.

  Returns:
    The work directory.

  Raises:
    ValueError: a flag that every run needs is missing, the config is no file
      of this code, or the work directory would be another on each machine.
  """
  values = {}
  for word, following in itertools.zip_longest(flags, flags[1:], fillvalue=''):
    flag, equals, value = word.partition('=')
    values[flag.lstrip('-')] = value if equals else following
  for name, example in (
    ('config', 'configs/pretrain.py:ViT-B/16,imagenet2012'),
    ('workdir', 'gs://BUCKET/runs/b16'),
  ):
    if not values.get(name):
      raise ValueError(
        f'--{name} is missing: after -- come the flags of vit_jax.main, such'
        f' as -- --{name}={example}'
      )
  # The machines look for it likewise, from the repository's root.
  shipped.find('config', values['config'])
  return check_workdir(values['workdir'])


def check_workdir(workdir: str) -> str:
  """Refuses a work directory that is not the same on all machines.

  Raises:
    ValueError: says what is expected.
  """
  if not workdir.startswith(('gs://', '/')):
    raise ValueError(
      f'--workdir={workdir}: expected gs://BUCKET/PATH or an absolute path on'
      ' a file system that all machines share. A directory of one machine is'
      ' lost with it.'
    )
  return workdir
