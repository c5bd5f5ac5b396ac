"""Parses the arguments of config files: `--config=FILE:ARGUMENT`."""

import re
from typing import Any, NoReturn

import ml_collections

from vit_jax.data import exclusion, splits

# The end of the name of an evaluation without near-duplicates.
CLEAN = '_clean'


def parse_argument(argument: str | None, usage: str) -> dict[str, Any]:
  """Parses the part of `--config=FILE:ARGUMENT` after the colon.

  Args:
    argument: the argument, such as `ViT-B/16,cifar10,epochs=3`.
    usage: one line that ends every error message, and says what the argument
      may be: `Usage: FILE.py:MODEL,DATASET[,epochs=20.0][,tune=all|head]...`.
      Words in capitals are required values. If the last is a data spec,
      `exclude=FILE` belongs to it, see `data.exclusion`. None may contain a
      comma; such a path is for --config.data.dataset. Then follow options: a
      number stands for any number of its type, words with `|` between them are
      the choices, and capitals stand for any text.

  Returns:
    Name in lower case -> value; options that were not given are absent.

  Raises:
    ValueError: parts are missing, unknown, repeated or of a wrong type.
  """

  def fail(problem: str) -> NoReturn:
    raise ValueError(
      f'The config argument {argument or ""!r} {problem}. {usage}'
    )

  required = re.match(r'Usage: [^:]+:([A-Z]+(?:,[A-Z]+)*)', usage)[1]
  names = required.lower().split(',')
  options = dict(re.findall(r',(\w+)=([^],\s]+)', usage))
  options.pop('exclude', None)
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
  count = len(names)
  if len(words) < count:
    fail(f'lacks {", ".join(names[len(words) :]).upper()}')
  if len(words) > count:
    fail(f'has {words[count:]} left over; options are {sorted(options)}')
  words[-1] = ','.join([words[-1], *excluded])
  return dict(zip(names, words, strict=True)) | values


def _converted(key: str, value: str, form: str, usage: str) -> Any:
  """Returns the value of an option, whose form the usage gives."""
  if form != form.lower():
    return value
  choices = form.split('|')
  if len(choices) > 1:
    if value in choices:
      return value
    raise ValueError(
      f'{key}={value!r} is unknown; choose one of {choices}. {usage}'
    )
  kind = float if '.' in form else int
  try:
    return kind(value)
  except ValueError:
    text = f'{key}={value!r} is not of type {kind.__name__}. {usage}'
    raise ValueError(text) from None


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
