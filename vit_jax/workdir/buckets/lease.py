"""A lease that replaces a file lock on a work directory in a bucket.

The owner writes `owner.json`, and regularly writes it again. The service
replaces the object only if it is still the one that the owner wrote, so two
runs cannot both own it. If nobody writes it for a while, its owner counts as
dead.
"""

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable

import fsspec
from absl import logging
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets

# Seconds between two signs of life, and without one until an owner counts as
# dead.
EVERY = 20.0
STALE = 90.0
# Seconds to return the lease when the run has ended.
_LAST_PATIENCE = 20.0


class Lease:
  """The lease of one work directory, held while the context is open."""

  def __init__(
    self,
    path: epath.Path,
    owner: bytes,
    described: Callable[[bytes], str],
  ):
    """Takes the lease; waits until an owner is known to be alive or dead.

    Args:
      path: the path of the lease, `gs://.../owner.json`.
      owner: the content of the lease, unique to this run.
      described: describes the owner that a content names, for a message.

    Raises:
      ValueError: another run has the lease, or there is no such bucket.
      StoreError: the bucket did not answer.
      OSError: a permission is missing; the service's answer names it.
    """
    self._path, self._owner, self._described = path, owner, described
    self._files = fsspec.filesystem('gs')
    self._lock = threading.Lock()
    self._end = threading.Event()
    self._renewed = time.monotonic()
    bucket, _ = buckets.split(path)
    try:
      # Orbax reads the bucket's metadata to delete a checkpoint. A run that
      # lacks this or another permission would end late.
      self._files.call('GET', 'b/{}', bucket)
    except FileNotFoundError:
      raise ValueError(f'there is no bucket gs://{bucket}.') from None
    self._generation = self._take()
    try:
      # To write again needs the permission to delete.
      self._renew()
    except BaseException:
      self.__exit__()
      raise
    threading.Thread(target=self._work, name='lease', daemon=True).start()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._end.set()
    if self._lock.acquire(timeout=_LAST_PATIENCE):
      # If this fails, the next run finds a dead owner.
      with contextlib.suppress(Exception), buckets.at_most(_LAST_PATIENCE):
        self._files.call(
          *('DELETE', 'b/{}/o/{}', *buckets.split(self._path)),
          ifGenerationMatch=self._generation,
        )
      self._lock.release()

  def check(self) -> None:
    """Checks that this run still has the lease; call this before each write.

    Raises:
      TakenOverError: another run has taken the directory.
      StoreError: the bucket did not answer, so this is unknown.
    """
    # The machine may have been suspended or without network for long.
    if time.monotonic() - self._renewed > STALE / 2:
      self._renew()

  def _take(self) -> str:
    """Replaces an owner of whom no sign of life comes; returns a generation."""
    generation, owner = self._look()
    if owner:
      logging.info(
        '%s is in use by %s. Waiting up to %.0f s for a sign of life.',
        *(self._path.parent, self._described(owner), STALE),
      )
    end = time.monotonic() + STALE
    while owner and time.monotonic() < end:
      time.sleep(min(2.0, EVERY / 4))
      before, (generation, owner) = generation, self._look()
      if owner and generation != before:
        break
    else:
      # The owner is silent or gone.
      with contextlib.suppress(FileExistsError):
        return self._write(generation)
      _, owner = self._look()
    raise ValueError(
      f'{self._path.parent} is in use by {self._described(owner)}: wait until'
      ' it ends, stop it, or use another --workdir.'
    )

  def _work(self) -> None:
    while not self._end.wait(EVERY):
      # Other writes report what is wrong.
      with contextlib.suppress(Exception):
        self._renew()

  def _renew(self) -> None:
    with self._lock:
      if self._end.is_set():
        return
      try:
        self._generation = self._write(self._generation)
      except FileExistsError:
        self._renewed = -math.inf  # So each later check finds the same.
        raise errors.TakenOverError(
          f'{self._path.parent} was taken over by'
          f' {self._described(self._look()[1])}: this run gave no sign of life'
          f' for {STALE:g} s. This run ends and writes nothing more.'
        ) from None
      self._renewed = time.monotonic()

  def _look(self) -> tuple[str, bytes]:
    """Returns the object's generation and content; '0' and b'' if none."""
    place = ('GET', 'b/{}/o/{}', *buckets.split(self._path))
    try:
      generation = json.loads(self._files.call(*place)[1])['generation']
      _, content = self._files.call(*place, alt='media', generation=generation)
    except FileNotFoundError:
      return '0', b''
    return generation, content

  def _write(self, replacing: str) -> str:
    """Writes the object and returns its generation.

    Args:
      replacing: the generation to replace; '0': the object must not exist.

    Raises:
      FileExistsError: the object has another generation.
    """
    bucket, name = buckets.split(self._path)
    try:
      _, answer = self._files.call(
        'POST',
        self._files.base.replace('/storage/', '/upload/storage/') + 'b/{}/o',
        bucket,
        uploadType='media',
        name=name,
        ifGenerationMatch=replacing,
        data=self._owner,
      )
    except FileExistsError:
      generation, owner = self._look()
      if owner != self._owner:
        raise
      return generation  # This run has written it; the answer was lost.
    return json.loads(answer)['generation']
