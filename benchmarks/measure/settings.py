"""Configs that differ in some keys, and their resolved forms."""

import ast
import copy
import re
from typing import Any

import ml_collections

from vit_jax import config as config_lib

# ImageNet's sizes, for configs that take them from the data.
_NUM_CLASSES = 1000
_NUM_EXAMPLES = 1_281_167

_FLAGS = {'true': True, 'false': False}


def override(
  config: ml_collections.ConfigDict, text: str
) -> ml_collections.ConfigDict:
  """Returns a copy of a config with some keys changed.

  Args:
    config: the config to copy.
    text: `model.scan=true,accumulation_steps=2`; commas within brackets
      belong to a value: `image_size=(64,64)`.

  Raises:
    ValueError: the text does not have that form, a key does not exist, or a
      value has the wrong type.
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
  """Resolves a config without opening its data.

  Sizes that the config leaves open are ImageNet's.
  """
  config = copy.deepcopy(config)
  if not config.data.dataset:
    config.data.dataset = 'synthetic'  # No data set is opened.
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
