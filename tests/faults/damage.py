"""Damages a checkpoint's files, and provides a small disk that fills up."""

import glob
import os
import pathlib
import random
import shutil
import subprocess

_BALLAST = 'ballast'
WAYS = ('truncate', 'delete', 'flip', 'unverified')


def complete_steps(workdir: pathlib.Path) -> list[int]:
  """Returns the steps of a run's complete checkpoints, in order."""
  # Unlike pathlib, glob ignores folders that disappear meanwhile.
  inside = glob.glob(f'{glob.escape(str(workdir))}/checkpoints/*/*')
  names = {pathlib.Path(path).parent.name for path in inside}
  return sorted(int(name) for name in names if name.isdigit())


def damage(checkpoint: pathlib.Path, how: str, rng: random.Random) -> None:
  """Damages a file of a checkpoint.

  Args:
    checkpoint: the checkpoint's folder.
    how: 'truncate' (to a random smaller length), 'delete', 'flip' (one bit), or
      'unverified' (changes 64 bytes of the largest file, and deletes the
      fingerprints that would reveal it).
    rng: makes the random choices.
  """
  files = sorted(p for p in checkpoint.rglob('*') if p.is_file())
  if how != 'delete':
    files = [path for path in files if path.stat().st_size]
  # Draws a folder first, because most files are in one folder and not needed.
  folder = rng.choice(sorted({path.parent for path in files}))
  file = rng.choice([path for path in files if path.parent == folder])
  if how == 'unverified':
    file = max(files, key=lambda path: path.stat().st_size)
  content = bytearray(file.read_bytes())
  place = rng.randrange(len(content)) if content else 0
  if how == 'delete':
    file.unlink()
  elif how == 'truncate':
    os.truncate(file, place)
  else:
    if how == 'flip':
      content[place] ^= 1 << rng.randrange(8)
    else:
      place = len(content) // 2
      new = bytes(byte ^ 255 for byte in content[place : place + 64])
      content[place : place + 64] = new
      shutil.rmtree(checkpoint / 'fingerprints', ignore_errors=True)
      (checkpoint / '_CHECKPOINT_METADATA').unlink(missing_ok=True)
    assert content != file.read_bytes()
    file.write_bytes(content)


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
    size = f'size={megabytes}m'
    words = ['mount', '-t', 'tmpfs', '-o', size, 'tmpfs', str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
      raise OSError(f'{" ".join(words)}: {done.stderr.strip()}')

  def fill(self, left: int) -> None:
    """Fills the disk until only `left` bytes are free."""
    with (self.folder / _BALLAST).open('ab') as file:
      while (free := self._free() - left) > 0:
        try:
          file.write(bytes(min(free, 2**20)))
          file.flush()
        except OSError:  # A process of the run has written meanwhile.
          break

  def empty(self) -> None:
    """Removes the file that filled the disk."""
    (self.folder / _BALLAST).unlink(missing_ok=True)

  def close(self) -> None:
    subprocess.run(['umount', '--lazy', str(self.folder)], check=False)

  def _free(self) -> int:
    numbers = os.statvfs(self.folder)
    return numbers.f_bavail * numbers.f_bsize


def why_no_disk(folder: pathlib.Path) -> str:
  """Returns why a `Disk` cannot be made here; '' if it can."""
  try:
    disk = Disk(folder)
  except OSError as error:
    return str(error)
  disk.close()
  folder.rmdir()
  return ''
