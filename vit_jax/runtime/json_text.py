"""Reads JSON from untrusted files: any fault in it raises a ValueError."""

import json
import os
from typing import Any

# Levels of nesting: far more than any of our files has, and few enough that
# code which walks the content recursively does not exhaust Python's stack.
_DEEPEST = 100


def loads(text: str | bytes) -> Any:
  """Parses JSON like `json.loads`, but also refuses deeply nested JSON.

  Raises:
    json.JSONDecodeError: `text` is not JSON, or has more than 100 levels.
    ValueError: `text` is not UTF-8, or a number has thousands of digits.
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
  """Reads a JSON file.

  Raises:
    ValueError: its content is not JSON; the message names the file.
    OSError: the file cannot be read.
  """
  try:
    return loads(path.read_bytes())
  except ValueError as error:
    raise ValueError(f'{path} is not readable JSON: {error}.') from error
