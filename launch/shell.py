"""Runs or only prints the commands of other programs."""

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

# A valid name for queued resources, node pools and JobSets. It is shorter than
# their limits because the tools append to it.
_NAME = re.compile(r'[a-z]([-a-z0-9]{0,38}[a-z0-9])?')


class CommandError(RuntimeError):
  """A program could not be started, or failed."""


class Shell:
  """Runs commands, or prints each of them ready to paste into a shell."""

  def __init__(self, dry_run: bool):
    self.dry_run = dry_run

  def run(self, command: Sequence[str], *, stdin: str | None = None) -> None:
    """Runs a command with its output on the console.

    Raises:
      CommandError: the command failed.
    """
    self._start(command, stdin=stdin)

  def read(self, command: Sequence[str]) -> str:
    """Returns what a command prints; '' in a dry run.

    Raises:
      CommandError: the command failed.
    """
    return self._start(command, capture=True)

  def read_json(self, command: Sequence[str]) -> list[Any]:
    """Returns what a command prints with --format=json; [] in a dry run."""
    return json.loads(self.read([*command, '--format=json']) or '[]')

  def scratch(self) -> contextlib.AbstractContextManager[str]:
    """Makes a temporary directory; a dry run only gives it a name."""
    if self.dry_run:
      return contextlib.nullcontext('/tmp/vit_jax_code')
    return tempfile.TemporaryDirectory()

  def say(self, text: str) -> None:
    """Prints a text; in a dry run as a comment between the commands."""
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
        f'{command[0]} is not installed, or not on PATH. It is needed to run:'
        f' {line}'
      ) from None
    if result.returncode:
      raise CommandError(f'exit code {result.returncode} of: {line}')
    return result.stdout or ''


def check_name(name: str) -> str:
  """Checks early that Google Cloud and Kubernetes accept a name; returns it.

  Raises:
    ValueError: they would refuse it; the message says what is allowed.
  """
  if not _NAME.fullmatch(name):
    raise ValueError(
      f'--name={name}: expected at most 40 lower-case letters, digits and'
      ' dashes, beginning with a letter and not ending with a dash.'
    )
  return name


def confirm(question: str, *, yes: bool, dry_run: bool) -> None:
  """Asks for confirmation on the console.

  Args:
    question: the question without the choices.
    yes: whether the user passed --yes, so that no question is needed.
    dry_run: whether this is a dry run, which needs no confirmation.

  Raises:
    ValueError: the answer is no, or there is no terminal.
  """
  if yes or dry_run:
    return
  if not sys.stdin.isatty():
    raise ValueError(f'{question} Pass --yes: there is no terminal to ask on.')
  if input(f'{question} [y/N] ').strip().lower() not in ('y', 'yes'):
    raise ValueError('nothing was done.')


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
  """Returns the words before and after the first `--`."""
  words = list(words)
  if '--' not in words:
    return words, []
  at = words.index('--')
  return words[:at], words[at + 1 :]


def check_run(flags: Sequence[str]) -> str:
  """Checks those flags of vit_jax.main that can be checked before the run.

  Returns:
    The work directory.

  Raises:
    ValueError: a flag that every run needs is missing, this code has no such
      config file, or each machine would have a different work directory.
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
        f'--{name} is missing: pass the flags of vit_jax.main after --, such as'
        f' -- --{name}={example}'
      )
  # The machines look for the config in the same way, in the repository's root.
  shipped.find('config', values['config'])
  return check_workdir(values['workdir'])


def check_workdir(workdir: str) -> str:
  """Checks that a work directory is the same on all machines; returns it.

  Raises:
    ValueError: it is not; the message says what is expected.
  """
  if not workdir.startswith(('gs://', '/')):
    raise ValueError(
      f'--workdir={workdir}: expected gs://BUCKET/PATH or an absolute path on'
      ' a file system that all machines share. A directory on one machine is'
      ' lost with this machine.'
    )
  return workdir
