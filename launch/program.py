"""Parses and runs the command line of a launch program.

It uses argparse instead of absl, because the user's machine needs only Python
and gcloud.
"""

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from vit_jax.launch import shell as shell_lib
from vit_jax.launch.flags import Flags
from vit_jax.launch.patience import RunFailedError


def run(
  words: Sequence[str],
  *,
  doc: str,
  commands: Mapping[str, tuple[Callable[..., None], Sequence[str]]],
  groups: Mapping[str, Flags],
  takes_flags: Sequence[str],
) -> None:
  """Parses a command line and calls the command; an error ends as one message.

  Args:
    words: the command line without the program's name.
    doc: the program's help.
    commands: command -> (function of (shell, args, flags after --), its groups
      of flags). The function's docstring is the command's help.
    groups: the flags of each group; every command has the group `common`.
    takes_flags: commands that take flags of vit_jax.main after `--`.
  """
  own, flags = shell_lib.split(words)
  parser = argparse.ArgumentParser(
    description=doc,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  choices = parser.add_subparsers(
    dest='command', required=True, metavar='COMMAND'
  )
  for name, (function, names) in commands.items():
    text = inspect.getdoc(function)
    sub = choices.add_parser(
      name,
      help=text.partition('\n')[0],
      description=text,
      usage='%(prog)s [--FLAG=VALUE ...]'
      + (' -- --config=... --workdir=...' if name in takes_flags else ''),
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
    )
    for group in (*names, 'common'):
      for flag, settings in groups[group].items():
        sub.add_argument(f'--{flag}', **settings)
  args = parser.parse_args(own)
  try:
    _check(args, flags, args.command in takes_flags)
    commands[args.command][0](shell_lib.Shell(args.dry_run), args, flags)
  except (ValueError, OSError, shell_lib.CommandError, RunFailedError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit(130)


def _check(args, flags, takes_flags) -> None:
  for name, variable in (
    ('project', 'CLOUDSDK_CORE_PROJECT'),
    ('zone', 'CLOUDSDK_COMPUTE_ZONE'),
  ):
    if getattr(args, name, '') is None:
      setattr(args, name, os.environ.get(variable))
    if getattr(args, name, '') is None:
      raise ValueError(f'--{name} is missing: pass it or set ${variable}.')
  for flag in ('name', 'cluster'):
    if hasattr(args, flag):
      shell_lib.check_name(getattr(args, flag), flag)
  for variable in getattr(args, 'env', []):
    name, equals, _ = variable.partition('=')
    if not name or not equals:
      raise ValueError(f'--env={variable}: expected NAME=VALUE.')
  if flags and not takes_flags:
    raise ValueError(f'{args.command} takes nothing after --: {flags}.')
