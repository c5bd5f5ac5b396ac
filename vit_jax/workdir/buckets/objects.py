"""Single requests to a bucket, for what the file interface cannot do."""

import dataclasses
import datetime
import email.utils
import json

import fsspec
from etils import epath

from vit_jax.workdir import buckets


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
  """One object. All methods raise the errors of `filesystem.FileSystem`."""

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

  def write(self, content: bytes, replacing: str | None = None) -> str:
    """Writes the object and returns its generation.

    Args:
      content: the whole content.
      replacing: the generation to replace; None: any; '0': the object must not
        exist.

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

  def delete(self, generation: str | None = None) -> None:
    """Deletes the object.

    Args:
      generation: the generation to delete; None: any.

    Raises:
      FileExistsError: the object has another generation.
      FileNotFoundError: the object does not exist.
    """
    self._files.call(
      *('DELETE', 'b/{}/o/{}', *self._where), ifGenerationMatch=generation
    )

  def list_bucket(self) -> None:
    """Lists one object of the bucket, to check the permission."""
    self._files.call('GET', 'b/{}/o', self._where[0], maxResults=1)

  def look_at_bucket(self) -> None:
    """Reads the bucket's metadata, which Orbax does to delete a checkpoint."""
    self._files.call('GET', 'b/{}', self._where[0])
