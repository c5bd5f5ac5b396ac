"""Files that grow, in an object store, where none can be appended to.

What is new of `metrics.jsonl` is in `metrics/OFFSET.jsonl`, the bytes from that
offset on. A part is written anew until it is full, so that what is uploaded
stays within bounds: at each time one part, not the whole file.
"""

import pathlib
import tempfile
import threading
from collections.abc import Mapping

import tensorboardX
from etils import epath

from vit_jax import buckets

# Bytes after which a new part begins.
FULL = 2**18


def read(path: epath.PathLike) -> bytes:
  """All of a file, with what is in parts of it; b'' if there is none."""
  path = epath.Path(path)
  # First the parts: those that are merged meanwhile are in the file then.
  found = [(int(part.stem), _content(part)) for part in _parts(path)]
  whole = _content(path)
  for offset, content in found:
    # One that was merged, or has just been, says what the file says.
    if offset <= len(whole) < offset + len(content):
      whole = whole[:offset] + content
  return whole


def merge(path: epath.Path) -> bytes:
  """Puts the parts of a file into it; wherever it is killed, nothing is lost.

  Returns:
    All of the file.
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
  """The end of a file of lines, which is not in the file yet."""

  def __init__(self, path: epath.Path, offset: int):
    """The file has no parts, and is `offset` bytes long."""
    self._path = path
    self._offset = offset
    self._new = bytearray()
    self._uploaded = 0
    self._lock = threading.Lock()

  def append(self, line: str) -> None:
    with self._lock:
      self._new += line.encode()

  def upload(self) -> None:
    """Writes what is new; from one thread at a time."""
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
  """TensorBoard's files, made on this machine; a new one when one is full."""

  def __init__(self, workdir: epath.PathLike, purge_step: int | None):
    """See `tensorboardX.SummaryWriter`."""
    self._workdir = epath.Path(workdir)
    self._folder = tempfile.TemporaryDirectory()
    self._lock = threading.Lock()
    self._number = 0
    self._uploaded = 0
    # What is to be uploaded, by name, oldest first.
    self._waiting: dict[str, bytes] = {}
    self._open(purge_step)

  def add(self, step: int, values: Mapping[str, float]) -> None:
    with self._lock:
      for name, value in values.items():
        self._board.add_scalar(name, value, step)

  def upload(self) -> None:
    """Writes what is new; from one thread at a time."""
    with self._lock:
      self._board.flush()
      full = self._file.stat().st_size >= FULL
      if full:
        self._board.close()  # Only now all of it is in the file.
      self._collect()
      if full:
        self._file.unlink()
        self._open(None)
    self._send()

  def close(self) -> None:
    """Writes what is left."""
    self._board.close()
    self._collect()
    self._send()
    self._folder.cleanup()

  def _collect(self) -> None:
    content = self._file.read_bytes()
    if len(content) > self._uploaded:
      self._waiting[self._file.name] = content
      self._uploaded = len(content)

  def _send(self) -> None:
    for name, content in list(self._waiting.items()):
      (self._workdir / name).write_bytes(content)
      del self._waiting[name]

  def _open(self, purge_step):
    # Read in the order of their names, which begin with the second.
    self._board = tensorboardX.SummaryWriter(
      self._folder.name,
      purge_step=purge_step,
      filename_suffix=f'.{self._number:06d}',
    )
    self._number += 1
    self._board.flush()
    (self._file,) = pathlib.Path(self._folder.name).iterdir()
    self._uploaded = 0
