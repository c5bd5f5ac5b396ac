"""Configs that differ in some keys, and the run each of them describes."""

import ast
import copy
import re
from typing import Any

import ml_collections

from vit_jax import config as config_lib

# Of a config that leaves them to its data, which is not opened here.
_NUM_CLASSES = 1000
_NUM_EXAMPLES = 1_281_167

_FLAGS = {'true': True, 'false': False}


def override(
  config: ml_collections.ConfigDict, text: str
) -> ml_collections.ConfigDict:
  """A copy of a config with some keys changed.

  Args:
    config: not changed.
    text: `model.scan=true,accumulation_steps=2`; commas within brackets
      belong to a value: `image_size=(64,64)`.

  Raises:
    ValueError: it is not of that form, there is no such key, or the value is
      not of the key's type.
  """
  config = copy.deepcopy(config)
  for part in re.split(r',(?![^()]*\))', text):
    key, equals, value = part.partition('=')
    if not equals:
      raise ValueError(
        f'{part!r} in {text!r} must be KEY=VALUE, with a key of the config,'
        ' such as model.remat=full.'
      )
    *path, name = key.strip().split('.')
    section = config
    for i, step in enumerate([*path, name]):
      if not isinstance(section, ml_collections.ConfigDict) or (
        step not in section
      ):
        keys = ', '.join(section) if hasattr(section, 'keys') else 'none'
        where = '.'.join([*path, name][:i]) or 'the config'
        raise ValueError(
          f'{part!r}: there is no key {step!r} in {where}; its keys: {keys}.'
        )
      holder, section = section, section[step]
    holder[name] = _value(part, value.strip(), holder.get_type(name))
  return config


def _value(part: str, text: str, kind: type) -> Any:
  try:
    if kind is bool:
      return _FLAGS[text.lower()]
    if kind is tuple:
      value = ast.literal_eval(text)
      return value if isinstance(value, tuple) else (value,)
    return kind(text)
  except (KeyError, SyntaxError, TypeError, ValueError):
    raise ValueError(
      f'{part!r}: the key takes a value of type {kind.__name__}.'
    ) from None


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Fills in what would follow from the data, without opening any.

  Sizes that the config leaves open are ImageNet's.
  """
  config = copy.deepcopy(config)
  if not config.data.dataset:
    config.data.dataset = 'synthetic'  # Only named, never opened.
  config_lib.validate(config)
  return config_lib.resolve(
    config,
    num_examples=(
      config.data.num_examples
      or max(config.data.examples_per_epoch or 0, 0)
      or _NUM_EXAMPLES
    ),
    num_classes=config.num_classes or _NUM_CLASSES,
    whole=_NUM_EXAMPLES,
  )
