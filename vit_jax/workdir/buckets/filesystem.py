"""gcsfs with longer retries: by itself it gives up after half a minute."""

import inspect
import time
import urllib.parse
from typing import ClassVar

import gcsfs.core
import gcsfs.retry
import google.auth.exceptions
from absl import logging
from google.api_core import exceptions, retry

from vit_jax.runtime import errors
from vit_jax.workdir import buckets

# The longest pause between two attempts, in seconds; the first takes a second.
_LONGEST_PAUSE = 10.0


class FileSystem(gcsfs.core.GCSFileSystem):
  """Retries each request for `buckets.patience` seconds.

  Logs one warning at the first failure, and one when the service answers again.
  """

  # Shared by all file systems of this process.
  _failing_since: ClassVar[float | None] = None

  def __init__(self, *args, **kwargs):
    # Listings are not cached, because TensorStore and other hosts write, too.
    super().__init__(*args, **{'use_listings_cache': False} | kwargs)

  async def _request(self, method, path, *args, **kwargs):
    """Sends a request, see gcsfs.

    Raises:
      StoreError: the service did not answer in time.
    """
    # Skips gcsfs's own retries, which log a traceback each.
    once = inspect.unwrap(gcsfs.core.GCSFileSystem._request)
    limit = buckets.patience

    def note(error):
      if FileSystem._failing_since is None:
        FileSystem._failing_since = time.monotonic()
        logging.warning(
          '%s: no answer (%s). Trying again for up to %g s.',
          *(_named(path, args, kwargs), _reason(error), limit),
        )

    again = retry.AsyncRetry(
      _may_pass, initial=1, maximum=_LONGEST_PAUSE, timeout=limit, on_error=note
    )
    try:
      answer = await again(once)(self, method, path, *args, **kwargs)
    except exceptions.RetryError as error:
      raise errors.StoreError(
        f'{_named(path, args, kwargs)}: no answer for {limit:g} s'
        f' ({_reason(error.cause)}). Start the same command again to go on from'
        ' the last checkpoint.'
      ) from error.cause
    if (since := FileSystem._failing_since) is not None:
      FileSystem._failing_since = None
      logging.warning(
        'The bucket answers again, after %.0f s.', time.monotonic() - since
      )
    return answer


def _may_pass(error: Exception) -> bool:
  if str(getattr(error, 'code', '')) == '501':  # The service lacks it.
    return False
  if isinstance(error, google.auth.exceptions.RefreshError):
    return bool(error.retryable)
  return gcsfs.retry.is_retriable(error) or isinstance(
    error, (TimeoutError, google.auth.exceptions.TransportError)
  )


def _reason(error: BaseException) -> str:
  text = ' '.join(str(error).split())[:200].rstrip('.')
  return f'{type(error).__name__}: {text}' if text else type(error).__name__


def _named(path: str, args, kwargs) -> str:
  """Returns `gs://BUCKET/NAME` for the arguments of a request of gcsfs."""
  url = urllib.parse.urlsplit(path.format(*args) if args else path)
  query = dict(urllib.parse.parse_qsl(url.query)) | kwargs
  bucket, _, name = url.path.partition('b/')[2].partition('/o')
  name = query.get('name') or query.get('prefix') or name
  return f'gs://{bucket}/{name.strip("/")}' if bucket else 'gs://'
