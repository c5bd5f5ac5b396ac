"""gcsfs with longer retries: by itself it gives up after half a minute."""

import inspect

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
  """Retries each request for `buckets.patience` seconds."""

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
    where = f'gs://{"/".join(map(str, args))}' if args else path

    def note(error):
      logging.log_every_n_seconds(
        logging.WARNING,
        '%s: no answer (%s). Trying again for up to %g s.',
        *(30, where, error, limit),
      )

    again = retry.AsyncRetry(
      _may_pass, initial=1, maximum=_LONGEST_PAUSE, timeout=limit, on_error=note
    )
    try:
      return await again(once)(self, method, path, *args, **kwargs)
    except exceptions.RetryError as error:
      raise errors.StoreError(
        f'{where}: no answer for {limit:g} s ({error.cause}). Start the same'
        ' command again to go on from the last checkpoint.'
      ) from error.cause


def _may_pass(error: Exception) -> bool:
  if isinstance(error, google.auth.exceptions.RefreshError):
    return bool(error.retryable)
  return gcsfs.retry.is_retriable(error) or isinstance(
    error, TimeoutError | google.auth.exceptions.TransportError
  )
