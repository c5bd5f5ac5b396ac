"""Runs or only prints the commands of other programs."""

import contextlib
import dataclasses
import itertools
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from vit_jax.runtime import installed

# A valid name for queued resources, node pools and JobSets. It is shorter than
# their limits because the tools append to it.
_NAME = re.compile(r'[a-z]([-a-z0-9]{0,38}[a-z0-9])?')


class CommandError(RuntimeError):
  """A program could not be started, or failed."""


@dataclasses.dataclass(frozen=True)
class Thing:
  """Something in the cloud that a command makes or deletes.

  Attributes:
    what: the word for such things.
    kind: gcloud's words for them.
    name: its name.
    place: gcloud's flags that say where it is.
    force: gcloud's further flags for its deletion.
    holder: what goes with all things in it.
  """

  what: str
  kind: tuple[str, ...]
  name: str
  place: Sequence[str]
  force: tuple[str, ...] = ()
  holder: 'Thing | None' = None

  def __str__(self) -> str:
    return f'{self.what} {self.name}'

  def command(self, verb: str, *flags: str) -> list[str]:
    """Returns a command of gcloud about the thing."""
    return ['gcloud', *self.kind, verb, self.name, *self.place, *flags]

  def is_missing(self, problem: str) -> bool:
    """Returns whether an error of gcloud says that there is no such thing."""
    return bool(
      re.search(rf'/{self.name}(?![-\w])', problem)
      and re.search('not[ _]?found', problem, re.IGNORECASE)
      # gcloud proposes a cluster of that name in another zone.
      and 'Did you mean' not in problem
    )


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

  def look(self, thing: Thing) -> dict[str, Any] | None:
    """Returns gcloud's description of a thing; None if there is no such thing.

    A dry run prints the command and returns None.

    Raises:
      CommandError: whether there is one is unknown.
    """
    command = thing.command('describe', '--format=json')
    if self.dry_run:
      self.say(f'Is there a {thing}?\n  {shlex.join(command)}')
      return None
    try:
      output = self._start(command, capture=True, quiet=True)
    except CommandError as error:
      missing = thing.is_missing(str(error))
      if not missing and thing.holder:
        missing = self.look(thing.holder) is None
      if not missing:
        raise
      return None
    return json.loads(output)

  @contextlib.contextmanager
  def making(self, delete: str) -> Iterator[None]:
    """Says, after a failure, how to end the costs of what was made.

    Args:
      delete: the command that deletes what the block makes.
    """
    try:
      yield
    except (CommandError, KeyboardInterrupt):
      self.say(
        'What was made before, and perhaps what failed, costs money. To make'
        f' what is missing, repeat the command; to end the costs:\n  {delete}'
      )
      raise

  def remove(self, things: Sequence[Thing]) -> None:
    """Deletes those things that are there; tries each of them.

    Raises:
      CommandError: some of them may be left; the message names them.
    """
    left = list(things)

    def text():
      looks = '\n'.join(f'  {shlex.join(t.command("describe"))}' for t in left)
      return (
        f'{", ".join(map(str, left))} may be left, and then costs money. Repeat'
        f' the command. To see what is there:\n{looks}'
      )

    try:
      for thing in things:
        if self._removed(thing):
          left.remove(thing)
    except KeyboardInterrupt:
      self.say(text())
      raise
    if left:
      raise CommandError(text())

  def _removed(self, thing) -> bool:
    try:
      if self.look(thing) is None and not self.dry_run:
        self.say(f'There is no {thing} ({" ".join(thing.place)}).')
        return True
    except CommandError as error:
      self.say(str(error))
    with contextlib.suppress(CommandError):
      self.run(thing.command('delete', *thing.force, '--quiet'))
      return True
    with contextlib.suppress(CommandError):
      return self.look(thing) is None
    return False

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

  def _start(self, command, *, capture=False, quiet=False, stdin=None) -> str:
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
        stderr=subprocess.PIPE if quiet else None,
        text=True,
        check=False,
      )
    except FileNotFoundError:
      raise CommandError(
        f'{command[0]} is not installed, or not on PATH. It is needed to run:'
        f' {line}'
      ) from None
    if result.returncode:
      text = f'exit code {result.returncode} of: {line}\n{result.stderr or ""}'
      raise CommandError(text.strip())
    return result.stdout or ''


def check_name(name: str, flag: str = 'name') -> str:
  """Checks early that Google Cloud and Kubernetes accept a name; returns it.

  A name that begins with a dash would be a flag of gcloud or kubectl.

  Raises:
    ValueError: they would refuse it; the message says what is allowed.
  """
  if not _NAME.fullmatch(name):
    raise ValueError(
      f'--{flag}={name}: expected at most 40 lower-case letters, digits and'
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
  installed.find('config', values['config'])
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
