"""A lease that replaces a file lock on a work directory in a bucket.

The owner writes `owner.json`, and regularly writes it again. The service
replaces the object only if it is still the one that the owner wrote, so two
runs cannot both own it. If nobody writes it for a long time, its owner counts
as dead.
"""

import contextlib
import dataclasses
import datetime
import email.utils
import json
import threading
import time
from collections.abc import Callable

import fsspec
from absl import logging
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets

# Seconds between two signs of life, and until an owner counts as dead.
EVERY = 20.0
STALE = 120.0
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
      ValueError: another run has the lease.
      StoreError: the bucket did not answer.
    """
    self._workdir = path.parent
    self._object = Object(path)
    self._owner = owner
    self._described = described
    self._lost = ''
    self._lock = threading.Lock()
    self._generation = self._take()
    self._renewed = time.monotonic()
    self._end = threading.Event()
    threading.Thread(target=self._work, name='lease', daemon=True).start()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._end.set()
    # If this fails, the next run finds a dead owner.
    buckets.patience = min(buckets.patience, _LAST_PATIENCE)
    if self._lock.acquire(timeout=_LAST_PATIENCE):
      with contextlib.suppress(Exception):
        self._object.delete(self._generation)
      self._lock.release()

  def check(self) -> None:
    """Checks that this run still has the lease; call this before each write.

    Raises:
      TakenOverError: another run has taken the directory.
      StoreError: the bucket did not answer, so this is unknown.
    """
    # The machine may have been suspended or without network for long.
    if not self._lost and time.monotonic() - self._renewed > STALE / 2:
      self._renew()
    if self._lost:
      raise errors.TakenOverError(
        f'{self._workdir} was taken over by {self._lost}: this run gave no sign'
        f' of life for {STALE:g} s. This run ends and writes nothing more.'
      )

  def _take(self) -> str:
    before, since = None, time.monotonic()
    while True:
      # After an outage of the service, all owners look dead for a moment.
      dead = before is not None and before.age > STALE
      dead = dead and time.monotonic() - since > 1.5 * EVERY
      with contextlib.suppress(FileExistsError):
        generation = self._object.write(
          self._owner, before.generation if dead else '0'
        )
        if dead:
          logging.warning(
            '%s is taken over from %s: no sign of life for %.0f s.',
            *(self._workdir, self._described(before.content), before.age),
          )
        return generation
      seen = self._object.look()
      if seen is None:  # The other run has just ended.
        continue
      if seen.content == self._owner:  # The answer to `write` was lost.
        return seen.generation
      who = self._described(seen.content)
      if before is None:
        logging.info(
          '%s is in use by %s. Waiting up to %.0f s for a sign of life.',
          *(self._workdir, who, max(STALE - seen.age, 1.5 * EVERY)),
        )
      elif before.generation != seen.generation:
        raise ValueError(
          f'{self._workdir} is in use by {who}: wait until it ends, stop it, or'
          ' use another --workdir.'
        )
      before = seen
      time.sleep(min(2.0, EVERY / 4))

  def _work(self) -> None:
    while not self._end.wait(EVERY):
      # Other writes report what is wrong.
      with contextlib.suppress(Exception):
        self._renew()

  def _renew(self) -> None:
    with self._lock:
      if self._lost or self._end.is_set():
        return
      try:
        self._generation = self._object.write(self._owner, self._generation)
      except FileExistsError:
        seen = self._object.look()
        if seen is None or seen.content != self._owner:
          self._lost = self._described(seen.content if seen else b'')
          return
        self._generation = seen.generation  # The answer was lost.
      self._renewed = time.monotonic()


@dataclasses.dataclass(frozen=True)
class Version:
  """The state of an object at the time of a request.

  Attributes:
    generation: changes with every write of the object.
    age: seconds since the last write, by the clock of the service.
    content: the whole content.
  """

  generation: str
  age: float
  content: bytes


class Object:
  """One object, written and deleted only if it has a certain generation.

  All methods raise the errors of `filesystem.FileSystem`.
  """

  def __init__(self, path: epath.PathLike):
    """Sends no request; `path` is `gs://BUCKET/NAME`."""
    self._where = buckets.split(path)
    self._files = fsspec.filesystem('gs')

  def look(self) -> Version | None:
    """Reads the object; returns None if it does not exist."""
    try:
      headers, answer = self._files.call('GET', 'b/{}/o/{}', *self._where)
      facts = json.loads(answer)
      _, content = self._files.call(
        *('GET', 'b/{}/o/{}', *self._where),
        alt='media',
        generation=facts['generation'],
      )
    except FileNotFoundError:
      return None
    now = email.utils.parsedate_to_datetime(headers['Date'])
    written = datetime.datetime.fromisoformat(facts['updated'])
    age = (now - written).total_seconds()
    return Version(facts['generation'], age, content)

  def write(self, content: bytes, replacing: str) -> str:
    """Writes the object and returns its generation.

    Args:
      content: the whole content.
      replacing: the generation to replace; '0': the object must not exist.

    Raises:
      FileExistsError: the object has another generation.
    """
    bucket, name = self._where
    _, answer = self._files.call(
      'POST',
      self._files.base.replace('/storage/', '/upload/storage/') + 'b/{}/o',
      bucket,
      uploadType='media',
      name=name,
      ifGenerationMatch=replacing,
      data=content,
    )
    return json.loads(answer)['generation']

  def delete(self, generation: str) -> None:
    """Deletes the object, if it has this generation.

    Raises:
      FileExistsError: the object has another generation.
      FileNotFoundError: the object does not exist.
    """
    self._files.call(
      *('DELETE', 'b/{}/o/{}', *self._where), ifGenerationMatch=generation
    )
