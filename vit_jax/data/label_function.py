"""Labels that a function computes from the features of a `tfds:` record.

A label key `PACKAGE.MODULE:FUNCTION` names the function by its import path. It
takes a mapping of the record's features, without images, to their values, and
returns the class, from 0 to the number of classes minus 1. `vtab_labels` has
those of VTAB's tasks.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

LabelFunction = Callable[[Mapping[str, Any]], int]


def find(label_key: str) -> LabelFunction | None:
  """Returns the function that a label key names; None if it names a feature.

  Raises:
    ValueError: there is no such module, or no such function in it.
  """
  path, colon, name = label_key.partition(':')
  if not colon:
    return None
  try:
    module = importlib.import_module(path)
  except (ImportError, ValueError) as error:
    raise ValueError(
      f'label_key={label_key!r}: cannot import {path!r} ({error}); expected'
      ' PACKAGE.MODULE:FUNCTION, with the module on PYTHONPATH.'
    ) from error
  function = getattr(module, name, None)
  if not callable(function):
    raise ValueError(
      f'label_key={label_key!r}: {path} has no function {name!r}.'
    )
  return function


def call(
  function: LabelFunction,
  features: Mapping[str, Any],
  num_classes: int,
  where: str,
) -> int:
  """Returns the class of a record.

  Args:
    function: see the module's docstring.
    features: the record's features, without images.
    num_classes: the number of classes.
    where: what a message calls the record.

  Raises:
    ValueError: the function returns no integer, or none of the classes.
  """
  label = function(features)
  whole = isinstance(label, int | np.integer)
  if not whole or not 0 <= label < num_classes:
    raise ValueError(
      f'{where}: {function.__module__}:{function.__name__} returned {label!r},'
      f' expected an integer from 0 to {num_classes - 1}, as'
      f' num_classes={num_classes}.'
    )
  return int(label)
