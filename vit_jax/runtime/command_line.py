"""Shared by all commands: checked flags, and errors as one message."""

import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence

import ml_collections
from absl import app, flags, logging
from flax import traverse_util
from ml_collections.config_flags import config_flags

from vit_jax.runtime import errors, installed, logs, printable

# `define_optional` defines flags of the command that calls it.
flags.disclaim_key_flags()

# The exit code if some of the images could not be read.
UNREADABLE = 3
# The value of a flag of `define_optional` that is given without a value.
BARE = ''


def define_optional(name: str, help_string: str) -> flags.FlagHolder:
  """Defines a flag whose value may be left out: `--NAME` or `--NAME=TEXT`.

  Its value is None without the flag, and BARE without a value.
  """
  return flags.DEFINE(_Optional(), name, None, help_string, boolean=True)


class _Optional(flags.ArgumentParser):
  """absl takes the word after a flag as its value unless it is boolean."""

  def parse(self, argument):
    # absl passes these two for `--NAME` and `--noNAME`.
    return {'true': BARE, 'false': None}.get(argument, argument)


def require(*names: str) -> None:
  """Ends the command with an error if a flag is not set."""
  for name in names:
    if flags.FLAGS[name].value is None:
      sys.exit(f'error: --{name} is missing: {flags.FLAGS[name].help}')


def run(
  main: Callable[..., None],
  *,
  required: Sequence[str] = (),
  arguments: str = '',
  optional: bool = False,
  if_no_memory: str = 'Try a smaller batch.',
) -> None:
  """Runs a command; the exit code is 0 only if everything was done.

  An error that the user can fix ends the command with one message and no
  traceback. The traceback is on the console with --v=1, and in train.log once a
  run has begun.

  Args:
    main: the command itself; reads its flags.
    required: the flags that must be given.
    arguments: describes the positional arguments, with an example. At least
      one must be given, and `main` gets their list. '': none are accepted.
    optional: whether the positional arguments may be left out.
    if_no_memory: advice to the user when a device runs out of memory.
  """

  def start(argv):
    words = argv[1:]
    if words and not arguments:
      sys.exit(f'error: {words} belong to no flag (see --help).')
    if arguments and not words and not optional:
      sys.exit(f'error: missing: {arguments} (see --help).')
    require(*required)
    logs.set_up_console()
    try:
      main(words) if arguments else main()
    except BrokenPipeError:  # Of `head`, for example, which has read enough.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      sys.exit(0)
    except (Exception, KeyboardInterrupt) as error:
      text = _explained(error, if_no_memory)
      if not text:
        raise
      logging.vlog(1, 'Traceback:', exc_info=True)
      text, code = printable.text(text), errors.code_of(error)
      if code == 1 and not isinstance(error, errors.SaveError):
        sys.exit(text)
      print(text, file=sys.stderr, flush=True)
      if isinstance(error, errors.SaveError):
        # A save that hangs would keep the interpreter from exiting.
        from vit_jax.runtime import distributed

        distributed.end_process(code)
      sys.exit(code)

  app.run(start, flags_parser=parse)


def _explained(error: BaseException, if_no_memory: str) -> str:
  """Returns what to show of an error that the user can fix; else ''."""
  if isinstance(error, KeyboardInterrupt):
    return 'ended: Ctrl-C.'
  if isinstance(error, OSError):
    return f'error: {errors.described(error)}'
  if isinstance(
    error,
    ValueError
    | errors.CorruptionError
    | errors.NonFiniteError
    | errors.ReadError
    | errors.SaveError,
  ):
    return f'error: {error}'
  if isinstance(error, errors.RestartableError):
    return f'ended: {error}'
  # CPUs give the second message. Only its first line is shown; the list below
  # it is in the traceback.
  found = re.search(r'RESOURCE_EXHAUSTED: (.*)|(Out of memory .*)', str(error))
  if isinstance(error, RuntimeError) and found:
    reason = (found[1] or found[2])[:300].rstrip('. ')
    return f'error: A device has not enough memory: {reason}.\n{if_no_memory}'
  return ''


def parse(argv: Sequence[str]) -> list[str]:
  """Parses flags as absl does, `--config=FILE` and its overrides included.

  Prints and exits for `--help` (the command's docstring and its flags), for
  `--version` (the versions that a bug report needs) and for errors.

  Args:
    argv: the program's name and its arguments.

  Returns:
    The program's name and the arguments that are not flags.
  """
  if 'version' not in flags.FLAGS:
    flags.DEFINE_bool(
      'version',
      False,
      'Print the versions that a bug report needs, and exit.',
      module_name=argv[0],  # --help lists the flags of the command's module.
    )
  if '--version' in argv:
    for line in installed.report():
      print(line, flush=True)
    sys.exit(0)
  if '--help' in argv:
    app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
  try:
    return parse_flags(flags.FLAGS, argv)
  except ValueError as error:
    sys.exit(printable.text(f'error: {error} (see --help)'))


def parse_flags(values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
  """Parses flags; `--config` accepts all that `installed.find` finds.

  Args:
    values: the flags, with or without one of a config file.
    argv: the program's name and its arguments.

  Returns:
    The program's name and the arguments that are not flags.

  Raises:
    ValueError: a flag is wrong, the config file does not exist or refuses its
      argument, or the config lacks the key of an override `--config.KEY=`.
  """
  if 'config' in values:
    values['config'].parser = _FileParser('config')
  try:
    return values(argv)
  except flags.Error as error:
    # The parser has named the flag already.
    text = re.sub(r'^flag (--config=.*?): \1: ', r'\1: ', str(error))
    raise ValueError(text) from None
  except (AttributeError, KeyError):
    # They name no more than a part of the key.
    config = values['config'].parser.config.to_dict()
    keys = list(traverse_util.flatten_dict(config, sep='.'))
    words = '\n'.join(values.read_flags_from_files(argv))
    asked = re.findall(r'^--?(?:no)?config\.([^=\n]+)', words, re.MULTILINE)
    wrong = [key for key in asked if key not in keys]
    if not wrong:
      raise
    similar = difflib.get_close_matches(wrong[0], keys)
    raise ValueError(
      f'--config.{wrong[0]} is not a key of this config.'
      + (f' Did you mean {" or ".join(similar)}?' if similar else '')
      + ' --print_config lists the keys.'
    ) from None


def load_config(text: str, *words: str) -> ml_collections.ConfigDict:
  """Returns the config of `--config=TEXT`, which is FILE[:ARGUMENT].

  Args:
    text: the value of the flag.
    *words: overrides, `--config.KEY=VALUE`.

  Raises:
    ValueError: the file does not exist or refuses its argument, or the config
      an override.
  """
  argv, values = ['', f'--config={text}', *words], flags.FlagValues()
  config_flags.DEFINE_config_file('config', flag_values=values, sys_argv=argv)
  parse_flags(values, argv)
  return values.config


class _FileParser(config_flags.ConfigFileFlagParser):
  """Also opens configs that come with the code, by their names."""

  def parse(self, path):
    found = installed.find(self.name, path)
    try:
      self.config = super().parse(found)  # Kept for an error about a key.
      return self.config
    except ValueError as error:
      # The parser's own message is a traceback of the file's error.
      raise ValueError(f'--config={path}: {error.__context__}') from None
    except (AttributeError, KeyError) as error:
      # `parse_flags` would take it for that of an override.
      raise RuntimeError(f'--config={path} failed') from error


def parse_size(flag: str, text: str | None) -> tuple[int, int] | None:
  """Parses the value of a flag such as --image_size.

  Args:
    flag: its name, for the error message.
    text: a side or HEIGHTxWIDTH in pixels: `384` or `384x512`.

  Returns:
    (height, width); None if `text` is None.

  Raises:
    ValueError: `text` has neither form.
  """
  if text is None:
    return None
  sides = text.split('x')
  if len(sides) > 2 or not all(re.fullmatch(r'[1-9]\d*', s) for s in sides):
    raise ValueError(
      f'--{flag}={text}: expected a side or HEIGHTxWIDTH in pixels, such as'
      ' 384 or 384x512.'
    )
  return int(sides[0]), int(sides[-1])


def parse_part(text: str) -> tuple[int, int]:
  """Parses the value of a flag `--part=K/N`: the K-th of N parts, from 0 on.

  Counting from 0 suits the numbers that clusters give their machines.

  Raises:
    ValueError: `text` has another form, or K is not below N.
  """
  found = re.fullmatch(r'(\d+)/(\d+)', text)
  part, parts = map(int, found.groups()) if found else (0, 0)
  if not part < parts:
    raise ValueError(
      f'--part={text}: expected K/N with K from 0 to N - 1, such as 3/16.'
    )
  return part, parts
