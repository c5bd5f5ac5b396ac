"""Single requests to a bucket, for what files and folders cannot say."""

import dataclasses
import datetime
import email.utils
import json

import fsspec
from etils import epath

from vit_jax.workdir import buckets


@dataclasses.dataclass(frozen=True)
class Version:
  """What an object was when it was looked at.

  Attributes:
    generation: changes whenever it is written.
    age: seconds since then, by the clock of the service.
    content: all of it.
  """

  generation: str
  age: float
  content: bytes


class Object:
  """One object. All methods raise what `filesystem.FileSystem` does."""

  def __init__(self, path: epath.PathLike):
    """Asks nothing; `path` is `gs://BUCKET/NAME`."""
    self._where = buckets.split(path)
    self._files = fsspec.filesystem('gs')

  def look(self) -> Version | None:
    """Reads the object; None if there is none."""
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
    """Writes the object, and returns its generation.

    Args:
      content: all of it.
      replacing: the generation that is there, '0' for none; None: any.

    Raises:
      FileExistsError: another is there.
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
      generation: the one that is there; None: any.

    Raises:
      FileExistsError: another is there.
      FileNotFoundError: none is.
    """
    self._files.call(
      *('DELETE', 'b/{}/o/{}', *self._where), ifGenerationMatch=generation
    )

  def list_bucket(self) -> None:
    """Asks for a name in the bucket, whatever it is."""
    self._files.call('GET', 'b/{}/o', self._where[0], maxResults=1)

  def look_at_bucket(self) -> None:
    """Asks what the bucket is, as Orbax does when it deletes a checkpoint."""
    self._files.call('GET', 'b/{}', self._where[0])
