"""Files that grow, in an object store, which cannot append.

New bytes of `metrics.jsonl` are in parts `metrics/OFFSET.jsonl`, which hold the
bytes from that offset on. Each upload rewrites the last part until it is full.
So an upload is never larger than about one part.
"""

import pathlib
import tempfile
import threading
from collections.abc import Mapping

from etils import epath

from vit_jax.workdir import buckets, event_files

# Bytes after which a new part begins.
FULL = 2**18


def read(path: epath.PathLike) -> bytes:
  """Returns the content of a file and its parts; b'' if there is neither."""
  path = epath.Path(path)
  # Reads the parts first: a part that is merged in between is in the file then.
  found = [(int(part.stem), _content(part)) for part in _parts(path)]
  whole = _content(path)
  for offset, content in found:
    # The file already contains a part that was merged.
    if offset <= len(whole) < offset + len(content):
      whole = whole[:offset] + content
  return whole


def merge(path: epath.Path) -> bytes:
  """Merges the parts of a file into it; loses nothing if it is killed.

  Returns:
    The content of the merged file.
  """
  whole, parts = read(path), _parts(path)
  if parts:
    path.write_bytes(whole)
    for part in parts:
      part.unlink()
  return whole


def _parts(path: epath.Path) -> list[epath.Path]:
  folder = path.with_suffix('')
  if not buckets.is_store(path) or not folder.exists():
    return []
  parts = [p for p in folder.iterdir() if p.stem.isdigit()]
  return sorted(parts, key=lambda part: int(part.stem))


def _content(path: epath.Path) -> bytes:
  try:
    return path.read_bytes()
  except FileNotFoundError:
    return b''


class Text:
  """New lines of a file of text, which are uploaded in parts."""

  def __init__(self, path: epath.Path, offset: int):
    """Begins after a file of `offset` bytes, which has no parts."""
    self._path = path
    self._offset = offset
    self._new = bytearray()
    self._uploaded = 0
    self._lock = threading.Lock()

  def append(self, line: str) -> None:
    with self._lock:
      self._new += line.encode()

  def upload(self) -> None:
    """Uploads new lines; only one thread at a time may call this."""
    with self._lock:
      offset, content = self._offset, bytes(self._new)
    if len(content) == self._uploaded:
      return
    folder = self._path.with_suffix('')
    (folder / f'{offset:012d}{self._path.suffix}').write_bytes(content)
    self._uploaded = len(content)
    if len(content) >= FULL:
      with self._lock:
        self._offset += len(content)
        del self._new[: len(content)]
      self._uploaded = 0


class Events:
  """TensorBoard's files, written locally and uploaded.

  A new file begins when one is full.
  """

  def __init__(self, workdir: epath.PathLike, purge_step: int | None):
    """See `event_files.EventFile`."""
    self._workdir = epath.Path(workdir)
    self._folder = tempfile.TemporaryDirectory()
    self._lock = threading.Lock()
    self._number = 0
    self._uploaded = 0
    # None after the local disk refused a write.
    self._file: event_files.EventFile | None = None
    # The files to upload: name -> content, oldest first.
    self._waiting: dict[str, bytes] = {}
    with self._told():
      self._open(purge_step)

  def add(self, step: int, values: Mapping[str, float]) -> None:
    with self._lock:
      file, self._file = self._file, None
      if file:
        with self._told():
          file.add(step, values)
          self._file = file

  def upload(self) -> None:
    """Uploads new rows; only one thread at a time may call this."""
    with self._lock:
      file, self._file = self._file, None
      if file:
        with self._told():
          self._collect()
          self._file = file
          if self._uploaded >= FULL:
            self._file = None
            file.close()
            self._path.unlink()
            self._open(None)
    self._send()

  def close(self) -> None:
    """Uploads the remaining rows."""
    if self._file:
      with self._told():
        self._file.close()
        self._collect()
    self._send()
    self._folder.cleanup()

  def _told(self):
    return event_files.warn_of_errors(self._folder.name, 'metrics.jsonl')

  def _collect(self) -> None:
    content = self._path.read_bytes()
    if len(content) > self._uploaded:
      self._waiting[self._path.name] = content
      self._uploaded = len(content)

  def _send(self) -> None:
    for name, content in list(self._waiting.items()):
      (self._workdir / name).write_bytes(content)
      del self._waiting[name]

  def _open(self, purge_step):
    # TensorBoard reads files in the order of their names. The name begins with
    # the time in seconds, so a number orders files of the same second.
    self._file = event_files.EventFile(
      self._folder.name, purge_step, f'.{self._number:06d}'
    )
    self._number += 1
    (self._path,) = pathlib.Path(self._folder.name).iterdir()
    self._uploaded = 0
