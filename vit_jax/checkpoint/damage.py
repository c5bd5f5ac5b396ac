"""Decides from an error whether a checkpoint is damaged or out of reach."""

import errno
import re

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
# The first word of TensorStore's messages.
_OUT_OF_REACH = re.compile(
  r'(RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED'
  r'|UNAUTHENTICATED|ABORTED|CANCELLED)\b'
)
_UNANSWERED = re.compile(r'(UNAVAILABLE|DEADLINE_EXCEEDED)\b')
_ERRNO = re.compile(r"os_error_code='(\d+)'")
# Client libraries of object stores; their errors have no common base class.
_CLIENTS = ('aiohttp', 'gcsfs', 'google', 'requests', 'urllib3', 'botocore')


def is_out_of_reach(error: BaseException) -> bool:
  """Whether an error is no evidence of damaged files.

  Such errors are a lack of memory or permission, and faults of the network or
  of a device. Damaged files raise errors of many types, so all other errors
  count as damage.
  """
  return any(_is_out_of_reach(link) for link in _chain(error))


def is_unanswered(path: epath.PathLike, error: BaseException) -> bool:
  """Whether an object store did not answer, so that a retry may succeed.

  Args:
    path: the path that the program tried to read or write.
    error: the resulting error.
  """
  return buckets.is_store(path) and any(map(_is_unanswered, _chain(error)))


def _is_unanswered(error: BaseException) -> bool:
  if isinstance(error, (errors.StoreError, TimeoutError)):
    return True
  if type(error).__module__.partition('.')[0] in _CLIENTS:
    code = str(getattr(error, 'code', None) or '')
    if code:
      return code in ('408', '429') or code.startswith('5')
    # Errors without a code come from the network or from credentials.
    return isinstance(error, OSError) or 'Transport' in type(error).__name__
  return _UNANSWERED.match(str(error)) is not None


def _chain(error: BaseException | None) -> list[BaseException]:
  links = []
  while error is not None and error not in links:
    links.append(error)
    error = error.__cause__ or error.__context__
  return links


def _is_out_of_reach(error: BaseException) -> bool:
  if isinstance(error, FileNotFoundError):  # Its `errno` may be missing.
    return False
  if isinstance(error, OSError):
    return error.errno not in _DAMAGE
  if isinstance(
    error, (MemoryError, jax.errors.JaxRuntimeError, errors.StoreError)
  ):
    return True
  if type(error).__module__.partition('.')[0] in _CLIENTS:
    return True
  text = str(error)
  if numbers := _ERRNO.findall(text):
    return not _DAMAGE.issuperset(map(int, numbers))
  return _OUT_OF_REACH.match(text) is not None


def one_line(error: BaseException) -> str:
  """Formats an error in one line, as part of a message."""
  # Orbax wraps TensorStore's errors; the innermost one has the reason.
  while not isinstance(error, DamagedError) and error.__cause__ is not None:
    error = error.__cause__
  text = (str(error).strip().splitlines() or [''])[0]
  if not isinstance(error, DamagedError):
    text = f'{type(error).__name__}: {text}'
  return text[:300].rstrip('.')
