"""gcsfs with longer retries: by itself it gives up after half a minute."""

import asyncio
import inspect

import aiohttp
import gcsfs.core
import gcsfs.retry
import google.auth.exceptions
from absl import logging
from google.api_core import exceptions, retry

from vit_jax.runtime import errors
from vit_jax.workdir import buckets

# The longest pause between two attempts, in seconds; the first takes a second.
_LONGEST_PAUSE = 10.0
# Seconds without a byte after which an attempt to read counts as failed.
_SILENCE = 60.0
# Bytes a second; a slower upload is given up.
_SLOWEST = 1e6


class FileSystem(gcsfs.core.GCSFileSystem):
  """Retries each request for `buckets.limit` seconds."""

  def __init__(self, *args, **kwargs):
    own = {
      # Because TensorStore and other hosts write, too.
      'use_listings_cache': False,
      'requests_timeout': aiohttp.ClientTimeout(
        total=None, sock_connect=_SILENCE, sock_read=_SILENCE
      ),
    }
    super().__init__(*args, **own | kwargs)

  async def _request(self, method, path, *args, **kwargs):
    """Sends a request, see gcsfs.

    Raises:
      StoreError: the service did not answer in time.
      OSError: there are no credentials.
    """
    # Skips gcsfs's own retries, which log a traceback each.
    once = inspect.unwrap(gcsfs.core.GCSFileSystem._request)
    limit = buckets.limit()
    # AsyncRetry looks at the time between attempts only. A large object may
    # take longer than `limit`.
    length = (kwargs.get('headers') or {}).get('Content-Length', 0)
    whole = None if 'alt=media' in path else limit + int(length) / _SLOWEST
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
      async with asyncio.timeout(whole):
        return await again(once)(self, method, path, *args, **kwargs)
    except (exceptions.RetryError, TimeoutError) as error:
      cause = getattr(error, 'cause', None) or 'silence'
      raise errors.StoreError(
        f'{where}: no answer for {limit:g} s ({cause}). Start the same'
        ' command again to go on from the last checkpoint.'
      ) from error
    except gcsfs.retry.HttpError as error:
      if str(error.code) != '401':
        raise
      raise OSError(f'{where}: {error}') from error


def _may_pass(error: Exception) -> bool:
  if isinstance(error, google.auth.exceptions.RefreshError):
    return bool(error.retryable)
  return gcsfs.retry.is_retriable(error) or isinstance(
    error, TimeoutError | google.auth.exceptions.TransportError
  )
