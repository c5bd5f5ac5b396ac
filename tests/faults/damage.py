"""Damages a checkpoint's files, and provides a small disk that fills up."""

import glob
import os
import pathlib
import random
import shutil
import subprocess

_BALLAST = 'ballast'


def complete_steps(workdir: pathlib.Path) -> list[int]:
  """Returns the steps of a run's complete checkpoints, in order."""
  # Unlike pathlib, glob ignores folders that disappear meanwhile.
  inside = glob.glob(f'{glob.escape(str(workdir))}/checkpoints/*/*')
  names = {pathlib.Path(path).parent.name for path in inside}
  return sorted(int(name) for name in names if name.isdigit())


def damage(checkpoint: pathlib.Path, how: str, rng: random.Random) -> str:
  """Damages a random file of a checkpoint.

  Args:
    checkpoint: the checkpoint's folder.
    how: 'truncate' (to a random smaller length), 'delete', 'flip' (one bit), or
      'unverified' (changes 64 bytes of the largest file, and deletes the
      fingerprints that would reveal it).
    rng: makes the random choices.

  Returns:
    A description of what was done.
  """
  files = sorted(p for p in checkpoint.rglob('*') if p.is_file())
  if how == 'unverified':
    return _damage_unverified(checkpoint, files)
  if how != 'delete':
    files = [path for path in files if path.stat().st_size]
  # Draws a folder first, because most files are in one folder and not needed.
  folder = rng.choice(sorted({path.parent for path in files}))
  file = rng.choice([path for path in files if path.parent == folder])
  size = file.stat().st_size
  name = file.relative_to(checkpoint.parent)
  if how == 'delete':
    file.unlink()
    return f'deleted {name} ({size} bytes)'
  if how == 'truncate':
    length = rng.randrange(size)
    os.truncate(file, length)
    return f'cut {name} from {size} to {length} bytes'
  content = bytearray(file.read_bytes())
  bit = rng.randrange(8 * size)
  content[bit // 8] ^= 1 << bit % 8
  file.write_bytes(content)
  return f'flipped bit {bit} of {name} ({size} bytes)'


def _damage_unverified(
  checkpoint: pathlib.Path, files: list[pathlib.Path]
) -> str:
  """Damages the largest file; deletes the fingerprints and the metadata."""
  largest = max(files, key=lambda path: path.stat().st_size)
  content = bytearray(largest.read_bytes())
  middle = len(content) // 2
  content[middle : middle + 64] = bytes(b ^ 255 for b in content[middle:][:64])
  largest.write_bytes(content)
  shutil.rmtree(checkpoint / 'fingerprints', ignore_errors=True)
  (checkpoint / '_CHECKPOINT_METADATA').unlink(missing_ok=True)
  return f'changed 64 bytes of {largest.name}, deleted fingerprints/'


_NO_JSON = (
  b'',
  b'[]',
  b'5',
  b'{"data": 5}',
  b'{"evals',
  b'\xff\xfe',
  b'[' * 99999,
)
# Small file -> its damaged contents, and whether a launch must refuse them.
SMALL_FILES = {
  'config.json': (_NO_JSON, True),
  'data.json': ([c for c in _NO_JSON if not c.startswith(b'{"d')], True),
  'DONE': ((b'\xff\xfe', b'soon', b'-1'), False),
  'owner.json': ((b'', b'\xff', b'[]', b'{"host": 5}'), False),
  'class_names.txt': ((b'\xff', b''), False),
  'environment.jsonl': ((b'\xff\n', b'5\n', b'{"step'), False),
  'requirements.txt': ((b'\xff',), False),
  # These lines are appended; the rows before them must stay.
  'metrics.jsonl': ((b'{"step": null}\n', b'\xff\n', b'[]\n', b'{"st'), False),
}


def damage_small(workdir: pathlib.Path, rng: random.Random):
  """Damages a small file of a work directory.

  Returns:
    Its path, its old content (None: there was no file), and whether the next
    launch must refuse it.
  """
  name = rng.choice(list(SMALL_FILES))
  choices, refused = SMALL_FILES[name]
  path = workdir / name
  before = path.read_bytes() if path.exists() else None
  new = rng.choice(choices)
  if name == 'metrics.jsonl':
    new = (before or b'') + new
  path.write_bytes(new)
  return path, before, refused


def listing(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
  """Returns every path below a folder, with its size and modification time."""
  return {
    path.relative_to(folder).as_posix(): (
      path.stat().st_size,
      path.stat().st_mtime_ns,
    )
    for path in folder.rglob('*')
  }


class Disk:
  """A separate file system in memory. Needs Linux and root.

  Attributes:
    folder: the folder where it is mounted.
  """

  def __init__(self, folder: pathlib.Path, megabytes: int = 64):
    """Mounts the file system.

    Raises:
      OSError: this user or this system cannot mount it.
    """
    self.folder = folder
    folder.mkdir(parents=True, exist_ok=True)
    self._mount('-t', 'tmpfs', '-o', f'size={megabytes}m', 'tmpfs')

  def fill(self, left: int) -> None:
    """Fills the disk until only `left` bytes are free."""
    with (self.folder / _BALLAST).open('ab') as file:
      while free := self._free() - left:
        if free < 0:  # A process of the run has written meanwhile.
          break
        try:
          file.write(bytes(min(free, 2**20)))
          file.flush()
        except OSError:
          break

  def empty(self) -> None:
    """Removes the file that filled the disk."""
    (self.folder / _BALLAST).unlink(missing_ok=True)

  def read_only(self, flag: bool) -> None:
    """Makes the disk read-only or writable; no file may be open."""
    self._mount('-o', f'remount,{"ro" if flag else "rw"}')

  def close(self) -> None:
    subprocess.run(['umount', '--lazy', str(self.folder)], check=False)

  def _free(self) -> int:
    numbers = os.statvfs(self.folder)
    return numbers.f_bavail * numbers.f_bsize

  def _mount(self, *options) -> None:
    words = ['mount', *options, str(self.folder)]
    try:
      done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
      raise OSError('there is no command `mount`') from None
    if done.returncode:
      raise OSError(f'{" ".join(words)}: {done.stderr.strip()}')


def why_no_disk(folder: pathlib.Path) -> str:
  """Returns why a `Disk` cannot be made here; '' if it can."""
  try:
    disk = Disk(folder)
  except OSError as error:
    return str(error)
  disk.close()
  folder.rmdir()
  return ''
