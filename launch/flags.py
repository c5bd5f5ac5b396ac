"""The command lines of the launch programs: their flags, parsing and checks.

They use argparse instead of absl, because the user's machine needs only Python
and gcloud.
"""

import argparse
import inspect
import itertools
import os
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from vit_jax.launch.shell import CommandError, Shell
from vit_jax.runtime import installed

_LOCKS = pathlib.Path(__file__).with_name('locks')


def _name(text: str) -> str:
  # It is shorter than the limits of queued resources and workloads, because
  # the tools append to it. One with a dash in front would be a flag of theirs.
  if not re.fullmatch(r'[a-z]([-a-z0-9]{0,38}[a-z0-9])?', text):
    raise argparse.ArgumentTypeError(
      f'{text}: expected at most 40 lower-case letters, digits and dashes,'
      ' beginning with a letter and not ending with a dash.'
    )
  return text


def _variable(text: str) -> str:
  if not re.match(r'\w+=', text):
    raise argparse.ArgumentTypeError(f'{text}: expected NAME=VALUE.')
  return text


def _switch(text: str) -> dict[str, object]:
  return dict(action='store_true', help=text)


def _text(text: str, default: str | None = '', **others) -> dict[str, object]:
  return dict(default=default, help=text, **others)


def _number(default: int, text: str) -> dict[str, object]:
  return dict(type=int, default=default, help=f'{text} (%(default)s).')


# Flag -> keyword arguments of `add_argument`.
FLAGS = {
  'name': dict(
    required=True,
    type=_name,
    help='Name of the slice, on GKE of the run, such as b16.',
  ),
  'accelerator': dict(
    required=True,
    help='The slice: an accelerator type (v3-512) or generation and topology'
    ' (v3:16x16). python -m vit_jax.topology SLICE describes a slice.',
  ),
  'project': _text('Project; default: $CLOUDSDK_CORE_PROJECT.', None),
  'zone': _text(
    'Zone, such as us-central2-b; default: $CLOUDSDK_COMPUTE_ZONE.', None
  ),
  'dry_run': _switch(
    'Print the commands, ready to paste into a shell, and run nothing.'
  ),
  'yes': _switch('Do not ask for confirmation.'),
  'internal_ip': _switch(
    'Create the machines without external addresses, and connect to their'
    ' internal ones (from inside the network). The set-up then needs Cloud NAT.'
  ),
  'no_preflight': _switch('Do not check first that the bucket exists.'),
  'workdir': _text(
    'Work directory of the run. create: first check that its bucket exists.'
    ' setup: install exactly the Python and the versions that the run recorded'
    ' there, if it did, instead of those of --lock.'
  ),
  'lock': _text(
    'Versions to install: the name of a file in launch/locks (%(default)s),'
    ' which may be your own; none: the newest versions that setup.py allows.',
    'tpu',
    choices=[*sorted(file.stem for file in _LOCKS.glob('*.txt')), 'none'],
    metavar='NAME',
  ),
  'env': _text(
    "Environment variable of the run, such as LIBTPU_INIT_ARGS='...', or of"
    ' worker/run.sh, such as RESTARTS=9; may be given several times. Do not'
    ' pass secrets: it is printed here and visible to everyone with access to'
    ' the machines.',
    [],
    action='append',
    metavar='NAME=VALUE',
    type=_variable,
  ),
  'worker': _text('Number of the worker, or all (%(default)s).', '0'),
  'lines': _number(50, 'Lines to show of each log'),
  'follow': _switch('Also show new lines.'),
  'poll': _number(60, 'Seconds between polls'),
  'new_versions': _switch(
    'Install the versions of --lock, even if the run has recorded others.'
  ),
  'delete_when_done': _switch(
    'Delete the slice when the run has finished without an error.'
  ),
  'image': dict(
    required=True,
    help='The image: REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG',
  ),
  'cluster': dict(required=True, type=_name, help='Name of the cluster.'),
  'num_slices': _number(1, 'Number of slices'),
}

# Command -> a function of (shell, args, flags after --), and its flags. The
# function's docstring is the command's help.
Commands = Mapping[str, tuple[Callable[..., None], str]]


def run(
  words: Sequence[str],
  *,
  doc: str,
  commands: Commands,
  takes: Sequence[str],
  passes: Sequence[str],
) -> None:
  """Parses a command line and calls the command; an error ends as one message.

  Args:
    words: the command line without the program's name.
    doc: the program's help.
    commands: the commands, which all have the flag --dry_run, too.
    takes: those that take flags of vit_jax.main after `--`.
    passes: those that pass unknown flags on to gcloud or xpk, as `args.more`.
  """
  own, after = list(words), []
  if '--' in own:
    at = own.index('--')
    own, after = own[:at], own[at + 1 :]
  style = dict(
    formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser = argparse.ArgumentParser(description=doc, **style)
  choices = parser.add_subparsers(
    dest='command', required=True, metavar='COMMAND'
  )
  for name, (function, flags) in commands.items():
    text = inspect.getdoc(function)
    summary = text.partition('\n')[0]
    sub = choices.add_parser(name, help=summary, description=text, **style)
    for flag in (*flags.split(), 'dry_run'):
      sub.add_argument(f'--{flag}', **FLAGS[flag])
  args, args.more = parser.parse_known_args(own)
  try:
    _check(args)
    # Flags of gcloud and xpk have no underscores: such a flag is one of ours,
    # misspelt.
    wrong = [
      word
      for word in args.more
      if args.command not in passes or re.match(r'--[^=]*_', word)
    ]
    if wrong:
      raise ValueError(f'{args.command} has no {" ".join(wrong)}; see --help.')
    if after and args.command not in takes:
      raise ValueError(f'{args.command} takes nothing after --: {after}.')
    commands[args.command][0](Shell(args.dry_run), args, after)
  except (ValueError, OSError, CommandError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit(130)


def _check(args) -> None:
  for name, variable in (
    ('project', 'CLOUDSDK_CORE_PROJECT'),
    ('zone', 'CLOUDSDK_COMPUTE_ZONE'),
  ):
    if getattr(args, name, '') is None:
      setattr(args, name, os.environ.get(variable))
    if getattr(args, name, '') is None:
      raise ValueError(f'--{name} is missing: pass it or set ${variable}.')
  if getattr(args, 'workdir', ''):
    check_workdir(args.workdir)


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


def check_bucket(shell: Shell, workdir: str) -> None:
  """Checks that the bucket of a work directory exists.

  Args:
    shell: runs gcloud.
    workdir: the work directory; checked only if it is gs://.

  Raises:
    ValueError: there is no such bucket, or the user may not see it.
  """
  if not workdir.startswith('gs://'):
    return
  bucket = '/'.join(workdir.split('/')[:3])
  try:
    shell.read(['gcloud', 'storage', 'buckets', 'describe', bucket])
  except CommandError as error:
    raise ValueError(
      f'--workdir={workdir}: the bucket {bucket} does not exist, or you may not'
      ' read it. Nothing was rented. Create it in the region of the TPUs'
      ' (launch/README.md, "A bucket"), or pass --no_preflight.'
    ) from error


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
