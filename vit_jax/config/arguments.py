"""Parses the arguments of config files: `--config=FILE:ARGUMENT`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import ml_collections

from vit_jax.data import exclusion, splits

# The end of the name of an evaluation without near-duplicates.
CLEAN = '_clean'


def parse_argument(
  argument: str | None,
  *,
  positional: Sequence[str],
  options: Mapping[str, Callable[[str], Any] | Sequence[str]],
  usage: str,
) -> dict[str, Any]:
  """Parses the part of `--config=FILE:ARGUMENT` after the colon.

  Args:
    argument: the argument, such as `ViT-B/16,cifar10,epochs=3`.
    positional: names of the leading values, all required. If the last is a data
      spec, `exclude=FILE` belongs to it, see `data.exclusion`. None may contain
      a comma; such a path is for --config.data.dataset.
    options: names of the optional `key=value` parts, and their types or
      choices.
    usage: one line that ends every error message.

  Returns:
    Name -> value; options that were not given are absent.

  Raises:
    ValueError: parts are missing, unknown, repeated or of a wrong type.
  """

  def fail(problem: str) -> NoReturn:
    raise ValueError(
      f'The config argument {argument or ""!r} {problem}. {usage}'
    )

  values: dict[str, Any] = {}
  words: list[str] = []
  excluded: list[str] = []
  # Commas in parentheses do not separate: `shuffled(train, seed=1)`.
  for part in re.split(r',(?![^()]*\))', argument or ''):
    key, equals, value = part.partition('=')
    if equals and key in options:
      if key in values:
        fail(f'has {key}= twice')
      values[key] = _converted(key, value, options[key], usage)
    elif equals and key == 'exclude':
      excluded.append(part)
    elif part:
      words.append(part)
  count = len(positional)
  if len(words) < count:
    fail(f'lacks {", ".join(positional[len(words) :]).upper()}')
  if len(words) > count:
    fail(f'has {words[count:]} left over; options are {sorted(options)}')
  if excluded and not positional:
    fail(f'has {excluded[0]!r}, which needs a data spec in front of it')
  if excluded:
    words[-1] = ','.join([words[-1], *excluded])
  return dict(zip(positional, words, strict=True)) | values


def _converted(key, value, kind, usage):
  """Returns an option's value; `kind` is its type, or its choices."""
  if callable(kind):
    try:
      return kind(value)
    except ValueError:
      text = f'{key}={value!r} is not of type {kind.__name__}. {usage}'
      raise ValueError(text) from None
  if value not in kind:
    raise ValueError(
      f'{key}={value!r} is unknown; choose one of {list(kind)}. {usage}'
    )
  return value


def name_of_split(split: str) -> str:
  """Returns the name of an evaluation on a split, as in `NAME/accuracy`.

  Parts of the training data are 'held_out', so that a number for choosing
  settings is not mistaken for one to report.
  """
  names = splits.names(split)
  if any(name.startswith('train') for name in names):
    return 'held_out'
  return '_'.join(sorted(names))


def add_clean(config: ml_collections.ConfigDict, path: str, usage: str) -> None:
  """Adds NAME_clean beside each evaluation NAME of a test split.

  It leaves out the images in a list, such as those with near-duplicates in the
  training data, and is otherwise the same.

  Args:
    config: changed; its evaluations are complete.
    path: the list, see `data.exclusion`.
    usage: one line that ends every error message.

  Raises:
    ValueError: no evaluation is of a whole split of known data. A list counts
      the images of whole splits, so parts of a split would mean others.
  """
  found = {}
  base, _ = exclusion.split(config.data.dataset or '')
  for name, section in config.evals.items():
    whole = not re.search(r'[\[(]', section.split)
    # A list is about one data set. Another one, such as ImageNet-ReaL, has its
    # images in another order.
    own = base and not section.get('dataset')
    if section.kind == 'classification' and whole and own:
      clean = section.copy_and_resolve_references()
      clean.dataset = exclusion.join(base, path)
      found[f'{name}{CLEAN}'] = clean
  if not found:
    raise ValueError(
      f'clean={path} adds an evaluation beside each one of a whole test split,'
      f' but there is none whose data are known among {list(config.evals)}: add'
      f' it in your own config file. {usage}'
    )
  config.evals.update(found)
