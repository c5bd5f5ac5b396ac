"""Tells from an error whether files are damaged, out of reach, or unanswered.

Damaged files raise errors of many types. So an error counts as damage unless it
is known to come from elsewhere.
"""

import errno
import os
import re
from collections.abc import Iterator

import jax
from etils import epath

from vit_jax.checkpoint.record import DamagedError
from vit_jax.runtime import errors
from vit_jax.workdir import buckets

# The errors of a missing file, of a file of the wrong kind, and of bytes that
# cannot be decoded as text (EILSEQ).
_DAMAGE = {
  *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EILSEQ, errno.EINVAL),
}
# The first word of TensorStore's messages, which have no `errno`.
_OUT_OF_REACH = re.compile(
  r'(RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED'
  r'|UNAUTHENTICATED|ABORTED|CANCELLED)\b'
)
_ERRNO = re.compile(r"os_error_code='(\d+)'")
# Client libraries of object stores; their errors have no common base class.
_CLIENTS = ('aiohttp', 'gcsfs', 'google', 'requests', 'urllib3', 'botocore')
# The first word of TensorStore's messages if a retry may succeed.
_UNANSWERED = re.compile(r'(UNAVAILABLE|DEADLINE_EXCEEDED)\b')


def is_out_of_reach(error: BaseException) -> bool:
  """Whether an error is no evidence of damaged files.

  Such errors are a lack of memory or permission, and faults of the network or
  of a device.
  """
  return any(map(_is_out_of_reach, _chain(error)))


def is_unanswered(path: epath.PathLike, error: BaseException) -> bool:
  """Whether an object store did not answer, so that a retry may succeed.

  Args:
    path: the path that the program tried to read or write.
    error: the resulting error.
  """
  return buckets.is_store(path) and any(map(_is_unanswered, _chain(error)))


def _is_unanswered(error: BaseException) -> bool:
  if isinstance(error, errors.StoreError | TimeoutError):
    return True
  if type(error).__module__.partition('.')[0] in _CLIENTS:
    if code := str(getattr(error, 'code', None) or ''):
      return code in ('408', '429') or code.startswith('5')
    # Errors without a code come from the network or from credentials.
    return isinstance(error, OSError) or 'Transport' in type(error).__name__
  return _UNANSWERED.match(str(error)) is not None


def _is_out_of_reach(error: BaseException) -> bool:
  if isinstance(error, FileNotFoundError):  # Its `errno` may be missing.
    return False
  if isinstance(error, OSError):
    return error.errno not in _DAMAGE
  kinds = (MemoryError, jax.errors.JaxRuntimeError, errors.StoreError)
  if isinstance(error, kinds):
    return True
  if type(error).__module__.partition('.')[0] in _CLIENTS:
    return True
  text = str(error)
  if numbers := _ERRNO.findall(text):
    return not _DAMAGE.issuperset(map(int, numbers))
  return _OUT_OF_REACH.match(text) is not None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
  seen = []
  while error is not None and error not in seen:
    yield error
    seen.append(error)
    error = error.__cause__ or error.__context__


def reason(error: BaseException) -> str:
  """Formats an error in one line, as part of a message."""
  text = ' '.join(str(error).split())[:300].rstrip('.')
  if isinstance(error, DamagedError):
    return text
  # Orbax wraps the errors of the system and of TensorStore.
  for link in _chain(error):
    number = link.errno if isinstance(link, OSError) else None
    if found := _ERRNO.search(str(link)):
      number = int(found[1])
    if number:
      system = OSError(number, os.strerror(number))
      return errors.described(system).rstrip('.')
  return f'{type(error).__name__}: {text}'
