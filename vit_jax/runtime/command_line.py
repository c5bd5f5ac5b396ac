"""What the commands share: checked flags, and errors as one message."""

import difflib
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence

import ml_collections
from absl import app, flags, logging
from ml_collections.config_flags import config_flags

from vit_jax.runtime import errors, logs, printable, shipped

flags.DEFINE_bool(
  'version', False, 'Print what a bug report should say, and end.'
)

# How a value of a type is written.
_TYPES = {
  bool: 'true or false',
  int: 'a whole number',
  float: 'a number',
  tuple: 'a tuple, such as "(224, 224)"',
}


def run(
  main: Callable[..., None],
  *,
  required: Sequence[str] = (),
  arguments: str = '',
  optional: bool = False,
  if_no_memory: str = 'Try a smaller batch.',
) -> None:
  """Runs a command; the exit code is 0 only if everything was done.

  What the user can mend ends it with one message, without a traceback; that is
  on the console with --v=1, and in train.log once a run has begun.

  Args:
    main: the command itself; reads its flags.
    required: the flags that must be given.
    arguments: what the words that belong to no flag are, with an example. At
      least one must be given, and `main` gets their list. '': none may be.
    optional: whether there may be none of these, too.
    if_no_memory: what to do when a device has not enough memory.
  """

  def start(argv):
    words = argv[1:]
    if words and not arguments:
      sys.exit(f'error: {words} belong to no flag (see --help).')
    if arguments and not words and not optional:
      sys.exit(f'error: missing: {arguments} (see --help).')
    for name in required:
      if flags.FLAGS[name].value is None:
        sys.exit(f'error: --{name} is missing: {flags.FLAGS[name].help}')
    logs.set_up_console()
    try:
      main(words) if arguments else main()
    except (
      ValueError,
      OSError,
      errors.NonFiniteError,
      errors.ReadError,
    ) as error:
      logging.vlog(1, 'Traceback:', exc_info=True)
      sys.exit(printable.text(f'error: {error}'))
    except errors.SaveError as error:
      logging.vlog(1, 'Traceback:', exc_info=True)
      print(printable.text(f'error: {error}'), file=sys.stderr, flush=True)
      # A save that hangs would keep the interpreter from ending.
      from vit_jax.runtime.distributed import jax_service

      # Flushes, and kills data workers.
      jax_service.end_process(getattr(error, 'exit_code', 1))
    except errors.RestartableError as error:
      logging.vlog(1, 'Traceback:', exc_info=True)
      print(printable.text(f'ended: {error}'), file=sys.stderr)
      sys.exit(error.exit_code)
    except KeyboardInterrupt:
      logging.vlog(1, 'Traceback:', exc_info=True)
      print('ended: Ctrl-C.', file=sys.stderr)
      sys.exit(errors.InterruptedByUserError.exit_code)
    except RuntimeError as error:
      # The second from CPUs. What is listed below that line is for --v=1.
      found = re.search(
        r'RESOURCE_EXHAUSTED: (.*)|(Out of memory .*)', str(error)
      )
      if not found:
        raise
      logging.vlog(1, 'Traceback:', exc_info=True)
      reason = (found[1] or found[2])[:300].rstrip('. ')
      sys.exit(
        f'error: A device has not enough memory: {reason}.\n{if_no_memory}'
      )

  app.run(start, flags_parser=parse)


def parse(argv: Sequence[str]) -> list[str]:
  """Parses flags as absl does, `--config=FILE` and its overrides included.

  Prints and exits for `--help` (the command's docstring and its flags), for
  `--version` (what a bug report should say) and for errors.

  Args:
    argv: the program's name and its arguments.

  Returns:
    The program's name and the arguments that are no flags.
  """
  # Listed by --help, where it would be a flag of this module only.
  flags.FLAGS.register_key_flag_for_module(argv[0], flags.FLAGS['version'])
  if '--version' in argv:
    # Imported late: it imports JAX.
    from vit_jax.runtime import version

    print(version.text())
    sys.exit(0)
  if '--help' in argv:
    app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
  config = None
  try:
    config = read_config(flags.FLAGS.read_flags_from_files(argv[1:]))
    find_shipped(flags.FLAGS)
    return flags.FLAGS(argv)
  except flags.Error as error:
    sys.exit(f'error: {_explain(str(error), config)}')
  except ValueError as error:
    sys.exit(printable.text(f'error: {error}'))


def parse_size(flag: str, text: str | None) -> tuple[int, int] | None:
  """Parses the value of a flag such as --image_size.

  Args:
    flag: its name, for the error.
    text: a side or HEIGHTxWIDTH in pixels: `384` or `384x512`.

  Returns:
    (height, width); None if there is no text.

  Raises:
    ValueError: it is neither.
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


def read_config(words: Sequence[str]) -> ml_collections.ConfigDict | None:
  """Loads the file of `--config=FILE[:ARGUMENT]`; overrides are only checked.

  `config_flags` answers a wrong key or argument with a traceback.

  Args:
    words: the command line.

  Returns:
    The config without the overrides; None if there is no `--config`.

  Raises:
    ValueError: there is no such file, it refuses its argument, or an override
      `--config.KEY=` has no such key; lists the choices.
  """
  config = None
  for word, following in itertools.zip_longest(words, words[1:], fillvalue=''):
    flag, equals, value = word.partition('=')
    if re.fullmatch('--?config', flag):
      config = _load(value if equals else following)
    elif config is not None and re.match(r'--?(no)?config\.', flag):
      _check_key(config, flag.partition('.')[2])
  return config


class _FileParser(config_flags.ConfigFileFlagParser):
  """Opens what comes with the code by its name, too."""

  def parse(self, path):
    return super().parse(shipped.find(self.name, path))


def find_shipped(values: flags.FlagValues) -> None:
  """Makes `--config` take what `shipped.find` finds; it stays as it is given.

  Args:
    values: that `DEFINE_config_file` has defined `config` in, or not.
  """
  if 'config' in values:
    values['config'].parser = _FileParser('config')


def _load(spec: str) -> ml_collections.ConfigDict:
  shipped.find('config', spec)
  try:
    return _FileParser('config').parse(spec)
  except ValueError as error:
    # The parser's message is the traceback of what the file raised.
    raise ValueError(f'--config={spec}: {error.__context__}') from None


def _check_key(config: ml_collections.ConfigDict, key: str) -> None:
  section, path = config, 'this config'
  for name in key.split('.'):
    if not isinstance(section, ml_collections.ConfigDict):
      raise ValueError(
        f'--config.{key}: {path} is a value ({section!r}), no section.'
      )
    if name not in section:
      similar = _similar(key, list(_paths(config)))
      raise ValueError(
        f'--config.{key} is no key of this config.'
        + (f' Did you mean {" or ".join(similar)}?' if similar else '')
        + f' The keys of {path} are: {", ".join(section)}.'
      )
    section, path = section[name], name


def _paths(section: ml_collections.ConfigDict, prefix='') -> Iterator[str]:
  """Yields all keys with their sections: `model`, `model.width`, ..."""
  for key, value in section.items():
    yield prefix + key
    if isinstance(value, ml_collections.ConfigDict):
      yield from _paths(value, f'{prefix}{key}.')


def _similar(key: str, paths: Sequence[str]) -> list[str]:
  """The keys of that name in other sections, or else of a similar one."""
  name = key.rpartition('.')[2]
  same = [path for path in paths if path.rpartition('.')[2] == name]
  return same or difflib.get_close_matches(key, paths, cutoff=0.8)


def _explain(message: str, config: ml_collections.ConfigDict | None) -> str:
  """Says of a refused override what the key takes."""
  found = re.match(r'flag --config\.([\w.]+)=(.*?): ', message, re.DOTALL)
  if config is None or not found:
    return f'{message} (see --help)'
  key, value = found.groups()
  section, _, name = key.rpartition('.')
  holder = config[section] if section else config
  if isinstance(holder[name], ml_collections.ConfigDict):
    return (
      f'--config.{key}={value}: {key} is a section; set one of its keys:'
      f' {", ".join(holder[name])}.'
    )
  kind = holder.get_type(name)
  return (
    f'--config.{key}={value}: expected {_TYPES.get(kind, kind.__name__)}; the'
    f' config has {holder[name]!r}.'
  )
