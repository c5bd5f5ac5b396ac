"""Damage to a checkpoint's files, and a small disk that fills up."""

import os
import pathlib
import random
import subprocess

_BALLAST = 'ballast'


def complete_steps(workdir: pathlib.Path) -> list[int]:
  """The steps of a run's complete checkpoints, in order."""
  folder = workdir / 'checkpoints'
  if not folder.exists():
    return []
  return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def damage(checkpoint: pathlib.Path, how: str, rng: random.Random) -> str:
  """Damages a random file of a checkpoint.

  Args:
    checkpoint: its folder.
    how: 'truncate' (to a random length below its own), 'delete' or 'flip' (one
      bit).
    rng: chooses.

  Returns:
    What was done.
  """
  files = sorted(p for p in checkpoint.rglob('*') if p.is_file())
  if how != 'delete':
    files = [path for path in files if path.stat().st_size]
  # First a folder: most files lie in one, of which most are not needed.
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


def listing(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
  """Every path below a folder, with its size and time of change."""
  return {
    path.relative_to(folder).as_posix(): (
      path.stat().st_size,
      path.stat().st_mtime_ns,
    )
    for path in folder.rglob('*')
  }


class Disk:
  """A file system of its own, in memory. Needs root, on Linux.

  Attributes:
    folder: where it is mounted.
  """

  def __init__(self, folder: pathlib.Path, megabytes: int = 64):
    """Mounts it.

    Raises:
      OSError: this user, or this system, cannot.
    """
    self.folder = folder
    folder.mkdir(parents=True, exist_ok=True)
    self._mount('-t', 'tmpfs', '-o', f'size={megabytes}m', 'tmpfs')

  def fill(self, left: int) -> None:
    """Fills it up but for so many bytes."""
    with (self.folder / _BALLAST).open('ab') as file:
      while free := self._free() - left:
        if free < 0:  # A process was faster.
          break
        try:
          file.write(bytes(min(free, 2**20)))
          file.flush()
        except OSError:
          break

  def empty(self) -> None:
    """Takes the ballast away."""
    (self.folder / _BALLAST).unlink(missing_ok=True)

  def read_only(self, flag: bool) -> None:
    """Makes it read-only, or writable again. No file may be open."""
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
  """Why no `Disk` can be made here; '' if one can."""
  try:
    disk = Disk(folder)
  except OSError as error:
    return str(error)
  disk.close()
  folder.rmdir()
  return ''
