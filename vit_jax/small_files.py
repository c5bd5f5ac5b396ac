"""Small files that a run keeps: read and written, or what to do instead."""

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

from etils import epath

from vit_jax import errors, json_text, paths


def read_object(path: epath.Path, remedy: str) -> dict[str, Any]:
  """Reads a file that holds a JSON object.

  Args:
    path: of the file, which exists.
    remedy: what to do if it is damaged, as the end of a sentence.

  Raises:
    ValueError: it is damaged; names it, and the remedy.
  """
  paths.check_regular(path)
  try:
    content = json_text.loads(path.read_bytes())
    if not isinstance(content, dict):
      raise ValueError(f'it holds {content!r:.40}, no object')
  except ValueError as error:
    raise ValueError(f'{path} is damaged ({error}): {remedy}.') from error
  return content


@contextlib.contextmanager
def disk_full_named(workdir: epath.Path) -> Iterator[None]:
  """Lets the system's `No space left on device` say where, and what to do.

  Raises:
    SaveError: in its place.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
      raise
    raise errors.SaveError(
      f'{error.filename or workdir}: {error.strerror}. Make room, some MB more'
      ' than the checkpoints take, and start the same command again.'
    ) from error
