"""Runs or only prints the commands of other programs."""

import contextlib
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any


class CommandError(RuntimeError):
  """A program could not be started, or failed with an exit `code`."""

  code: int | None = None


class Shell:
  """Runs commands, or prints each of them ready to paste into a shell."""

  def __init__(self, dry_run: bool):
    self.dry_run = dry_run

  def run(self, command: Sequence[str]) -> None:
    """Runs a command with its output on the console.

    Raises:
      CommandError: the command failed.
    """
    if not self.dry_run:
      print(f'+ {shlex.join(command)}', file=sys.stderr, flush=True)
    self._start(command)

  def read(self, command: Sequence[str]) -> str:
    """Returns what a command prints; '' in a dry run.

    Raises:
      CommandError: the command failed.
    """
    return self._start(command, stdout=subprocess.PIPE)

  def read_json(self, command: Sequence[str]) -> Any:
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

  def confirm(self, question: str, *, yes: bool) -> None:
    """Asks for confirmation on the console; a dry run needs none.

    Args:
      question: the question without the choices.
      yes: whether the user passed --yes, so that no question is needed.

    Raises:
      ValueError: the answer is no, or there is no terminal.
    """
    if yes or self.dry_run:
      return
    if not sys.stdin.isatty():
      raise ValueError(
        f'{question} Pass --yes: there is no terminal to ask on.'
      )
    if input(f'{question} [y/N] ').strip().lower() not in ('y', 'yes'):
      raise ValueError('nothing was done.')

  def _start(self, command, *, stdout=None) -> str:
    line = shlex.join(command)
    if self.dry_run:
      print(line, flush=True)
      return ''
    try:
      result = subprocess.run(command, stdout=stdout, text=True, check=False)
    except FileNotFoundError:
      raise CommandError(
        f'{command[0]} is not installed, or not on PATH. It is needed to run:'
        f' {line}'
      ) from None
    if result.returncode:
      error = CommandError(f'exit code {result.returncode} of: {line}')
      error.code = result.returncode
      raise error
    return result.stdout or ''
