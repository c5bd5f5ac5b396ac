"""Small files that a run keeps: read, or refused with what to do."""

import json
from typing import Any

from etils import epath


def read_object(path: epath.Path, remedy: str) -> dict[str, Any]:
  """Reads a file that holds a JSON object.

  Args:
    path: of the file, which exists.
    remedy: what to do if it is damaged, as the end of a sentence.

  Raises:
    ValueError: it is damaged; names it, and the remedy.
  """
  try:
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
      raise ValueError(f'it holds {content!r:.40}, no object')
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{path} is damaged ({error}): {remedy}.') from error
  return content
