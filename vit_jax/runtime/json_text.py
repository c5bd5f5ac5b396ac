"""Reads JSON from untrusted files: any fault in it raises a ValueError."""

import json
import os
from typing import Any


def loads(text: str | bytes) -> Any:
  """Parses JSON like `json.loads`, but raises no RecursionError.

  Raises:
    json.JSONDecodeError: `text` is not JSON, or is nested too deeply.
    ValueError: `text` is not UTF-8, or a number has thousands of digits.
  """
  try:
    return json.loads(text)
  except RecursionError:
    raise json.JSONDecodeError('Nested too deeply', '', 0) from None


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
