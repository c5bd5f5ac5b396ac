"""What the commands share: flags checked, errors as one message.

Config overrides (`--config.data.batch_size=256`) are `config_flags`'s; its
errors are tracebacks, so that names and types are checked here first.
"""

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence

import ml_collections
from absl import app, flags, logging
from ml_collections.config_flags import config_flags

from vit_jax import logs
from vit_jax.progress import NonFiniteError

# How to write a value of a type.
_TYPES = {
  bool: 'true or false',
  int: 'a whole number',
  float: 'a number',
  tuple: 'values in brackets, such as "(224, 224)"',
  ml_collections.ConfigDict: "a section: set one of its keys, or {'key': ...}",
}


def run(main: Callable[[], None], *, required: Sequence[str]) -> None:
  """Runs a command; the exit code is 0 only if it did all it was asked.

  What the user can mend ends it with one message. The traceback of an error is
  in the run's `train.log`, and with `--v=1` also on the console.

  Args:
    main: the command, called when the flags are parsed.
    required: names of the flags that must be given.
  """

  def start(argv):
    if len(argv) > 1:
      sys.exit(f'error: {argv[1:]} belong to no flag; see --help.')
    for name in required:
      if flags.FLAGS[name].value is None:
        sys.exit(f'error: --{name} is missing. {flags.FLAGS[name].help}')
    logs.set_up_console()
    try:
      main()
    except (ValueError, OSError, NonFiniteError) as error:
      logging.vlog(1, 'Traceback:', exc_info=True)
      sys.exit(f'error: {error}')

  app.run(start, flags_parser=parse)


def parse(argv: Sequence[str]) -> list[str]:
  """Parses `flags.FLAGS`, and returns the arguments that are no flags.

  `--help` prints the command's docstring and flags, and errors are printed
  without a traceback; both exit.
  """
  if '--help' in argv:
    app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
  try:
    check_overrides(flags.FLAGS.read_flags_from_files(argv[1:]))
    return flags.FLAGS(argv)
  except flags.Error as error:
    sys.exit(f'error: {error} See --help.')
  except ValueError as error:
    sys.exit(f'error: {error}')


def check_overrides(words: Sequence[str]) -> None:
  """Checks `--config=SPEC` and the `--config.KEY=VALUE` among flags.

  Raises:
    ValueError: there is no such file, the file refuses its argument, or an
      override names no key or has a value of another type. It lists the
      choices.
  """
  config = None
  for name, value in _flags(words):
    if name == 'config':
      config = load(value)
    elif config is not None and name.startswith('config.'):
      check_override(config, name.removeprefix('config.'), value)


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
  """Yields names and values of `--name=value`, `--name value`, `--noname`."""
  for i, word in enumerate(words):
    if found := re.fullmatch(
      r'--?(no(?=config\.))?([^=]+)(?:=(.*))?', word, re.S
    ):
      negated, name, value = found.groups()
