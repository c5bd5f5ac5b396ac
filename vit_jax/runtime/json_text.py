"""Reads JSON from untrusted files: any fault in it raises a ValueError."""

import json
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
