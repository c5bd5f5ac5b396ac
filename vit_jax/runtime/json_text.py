"""JSON that anybody may have written: what is wrong with it is a ValueError."""

import json
import os
from typing import Any

# Levels; far more than any file here has, and far fewer than Python's stack,
# which whoever walks through a deeper one would exhaust.
_DEEPEST = 100


def loads(text: str | bytes) -> Any:
  """As `json.loads`, for which JSON that is nested deeply is damaged, too.

  Raises:
    json.JSONDecodeError: it is no JSON, or of more than 100 levels.
    ValueError: it is no text, or holds a number of thousands of digits.
  """
  try:
    content = json.loads(text)
  except RecursionError:
    raise _too_deep() from None
  level = [content]
  for _ in range(_DEEPEST + 1):
    level = [one for one in level if isinstance(one, dict | list)]
    if not level:
      return content
    level = [
      inner
      for one in level
      for inner in (one.values() if isinstance(one, dict) else one)
    ]
  raise _too_deep()


def _too_deep() -> json.JSONDecodeError:
  return json.JSONDecodeError(f'Nested in more than {_DEEPEST} levels', '', 0)


def read(path: os.PathLike) -> Any:
  """Reads a file of JSON.

  Raises:
    ValueError: its content is none; names the file.
    OSError: it cannot be read.
  """
  try:
    return loads(path.read_bytes())
  except ValueError as error:
    raise ValueError(f'{path} is no readable JSON: {error}.') from error
