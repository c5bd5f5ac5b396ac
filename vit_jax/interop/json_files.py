"""Reads JSON files that others wrote, and checks their types by a table.

check(content, {'image_size': SIZE, 'hidden_act': TEXT}, path)
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from etils import epath

from vit_jax.data.ops import decoding
from vit_jax.interop import weight_files
from vit_jax.runtime import json_text
from vit_jax.workdir import files

_LARGEST = 2**31 - 1
_LARGEST_SIDE = 2**14  # Pixels; images are resized to the size in a file.


class Kind(NamedTuple):
  """The allowed values: in words, and as a test."""

  words: str
  accepts: Callable[[Any], bool]


def _is_count(value: Any) -> bool:
  return type(value) is int and 0 < value <= _LARGEST


def _is_number(value: Any) -> bool:
  if type(value) is int:
    return abs(value) <= _LARGEST
  return type(value) is float and math.isfinite(value)


def _is_text(value: Any) -> bool:
  return isinstance(value, str)


def _is_numbers(value: Any, accepts: Callable[[Any], bool]) -> bool:
  """Returns whether a value is an accepted number or a list of them."""
  numbers = value if isinstance(value, list) and value else [value]
  return all(accepts(number) for number in numbers)


def _is_positive(value: Any) -> bool:
  return _is_number(value) and value > 0


def _is_size(value: Any) -> bool:
  return _is_numbers(
    value, lambda side: _is_count(side) and side <= _LARGEST_SIDE
  ) and (not isinstance(value, list) or len(value) == 2)


def optional(kind: Kind) -> Kind:
  """Returns a kind that also allows null."""
  return Kind(f'{kind.words}, or null', lambda v: v is None or kind.accepts(v))


COUNT = Kind('a whole number of at least 1', _is_count)
SIZE = Kind(
  f'a side in pixels or [height, width], at most {_LARGEST_SIDE:,}', _is_size
)
POSITIVE = Kind('a number above 0', _is_positive)
NUMBERS = Kind('a number or a list', lambda v: _is_numbers(v, _is_number))
POSITIVES = Kind(
  'a number above 0 or a list', lambda v: _is_numbers(v, _is_positive)
)
BOOL = Kind('true or false', lambda v: isinstance(v, bool))
TEXT = Kind('text', _is_text)
TEXTS = Kind(
  'a list of texts', lambda v: isinstance(v, list) and all(map(_is_text, v))
)
OBJECT = Kind('an object', lambda v: isinstance(v, dict))
DECODING = Kind(
  'an object with upright, true or false, and jpeg_dct, one of'
  f' {", ".join(decoding.JPEG_DCTS)}; both may be missing',
  lambda v: (
    isinstance(v, dict)
    and v.keys() <= {'upright', 'jpeg_dct'}
    and isinstance(v.get('upright', True), bool)
    and v.get('jpeg_dct', 'fast') in decoding.JPEG_DCTS
  ),
)
LIST_OF_OBJECTS = Kind(
  'a list of objects',
  lambda v: isinstance(v, list) and all(isinstance(one, dict) for one in v),
)
OBJECT_OF_OBJECTS = Kind(
  'an object of objects',
  lambda v: (
    isinstance(v, dict) and all(isinstance(one, dict) for one in v.values())
  ),
)
OBJECT_OF_TEXTS = Kind(
  'an object of texts',
  lambda v: isinstance(v, dict) and all(map(_is_text, v.values())),
)


def check(
  content: Mapping[str, Any], kinds: Mapping[str, Kind], path: epath.PathLike
) -> None:
  """Raises a ValueError that lists all values of another kind than expected.

  Args:
    content: content of the file.
    kinds: key -> kind; a key that is not in the content is not checked.
    path: path of the file, for the message.
  """
  wrong = [
    f'{key} is {content[key]!r:.60}, expected {kind.words}'
    for key, kind in kinds.items()
    if key in content and not kind.accepts(content[key])
  ]
  if wrong:
    raise ValueError(f'{path} is refused: {"; ".join(wrong)}.')


def read(path: epath.PathLike) -> dict[str, Any]:
  """Reads a JSON object; ValueError if there is no file, or no JSON object."""
  content = json_text.read(weight_files.existing_file(path))
  if not isinstance(content, dict):
    raise ValueError(f'{path} holds {content!r:.80}, expected an object.')
  return content


def write(path: epath.Path, content: Mapping[str, Any]) -> None:
  """Writes a JSON file, whole or not at all."""
  with files.atomic(path) as temporary:
    temporary.write_text(json.dumps(content, indent=2) + '\n')
