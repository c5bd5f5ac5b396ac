"""A bucket in memory, with files but, as in object stores, no folders."""

from typing import ClassVar

import fsspec
from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem


class Bucket(MemoryFileSystem):
  """`gs://` as gcsfs presents it: creating a folder does nothing."""

  protocol = ('gs', 'gcs')
  cachable = False
  store: ClassVar = {}
  pseudo_dirs: ClassVar = ['']

  @classmethod
  def _strip_protocol(cls, path):
    return '/' + str(path).removeprefix('gs://').strip('/')

  def mkdir(self, path, create_parents=True, **_):
    del path, create_parents

  def makedirs(self, path, exist_ok=False):
    del path, exist_ok

  def exists(self, path, **_):
    path = self._strip_protocol(path)
    return any(f == path or f.startswith(path + '/') for f in self.store)

  def rename(self, *_, **__):
    raise OSError('A folder cannot be renamed.')

  def rm(self, path, recursive=False, **_):
    path = self._strip_protocol(path)
    names = [path] if path in self.store else []
    if recursive:
      names += [f for f in self.store if f.startswith(path + '/')]
    if not names:
      raise FileNotFoundError(path)
    for name in names:
      del self.store[name]

  def names(self):
    return sorted(self.store)


def mount(monkeypatch):
  """Mounts a new, empty bucket as `gs://`."""
  monkeypatch.setattr(Bucket, 'store', {})
  monkeypatch.setattr(Bucket, 'pseudo_dirs', [''])
  bucket = Bucket()
  others = {'file': fsspec.filesystem('file')}
  monkeypatch.setattr(
    backend.fsspec_backend,
    '_get_filesystem',
    lambda name: others.get(name, bucket),
    raising=False,
  )
  return bucket
