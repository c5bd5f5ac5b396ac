"""Reads JSON from untrusted files, and sums up JSON values."""

import hashlib
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


def checksum(content: Any) -> str:
  """Returns the SHA-256 of a JSON value, 64 hexadecimal digits."""
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()
