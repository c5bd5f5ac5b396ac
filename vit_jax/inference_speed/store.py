"""The file of measurements: one JSON object, which grows entry by entry."""

import dataclasses
from collections.abc import Sequence

from etils import epath

from vit_jax.runtime import json_text
from vit_jax.workdir import files


@dataclasses.dataclass(frozen=True)
class Entry:
  """The measurements of a model at an image size.

  Attributes:
    model: the model's name in the paper.
    size: side of the images, in pixels.
    images_per_second: speed of one unit at the fastest batch; None if no batch
      fits.
    batch_size: one unit's share of the fastest batch; None if no batch fits.
    largest_batch: largest batch that fits the memory of a unit; 0 if none does.
    rates: all timed batches: (batch on a device, images a second on it).
  """

  model: str
  size: int
  images_per_second: float | None
  batch_size: float | None
  largest_batch: int
  rates: Sequence[Sequence[float]] = ()


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings that all entries of a file share.

  Attributes:
    device: name of the device, for people.
    scale: 'paper' or 'mini'.
    unit: 'core' or 'device', see `devices.Device`.
    memory_bytes: memory of one device that a batch had to fit.
    dtype: dtype of the computation.
    correction: real speed divided by the compiler's estimate, if the speeds are
      estimates; None if they were measured.
  """

  device: str
  scale: str
  unit: str
  memory_bytes: int
  dtype: str
  correction: float | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
  """The content of a file of measurements."""

  settings: Settings
  entries: tuple[Entry, ...] = ()

  def find(self, model: str, size: int) -> Entry | None:
    found = (e for e in self.entries if (e.model, e.size) == (model, size))
    return next(found, None)

  def speeds(self, size: int) -> dict[str, float]:
    """Returns model -> peak images a second and unit, at an image size."""
    return {
      entry.model: entry.images_per_second
      for entry in self.entries
      if entry.size == size and entry.images_per_second is not None
    }


def read(path: epath.PathLike) -> Measured | None:
  """Reads a file of measurements; None if there is no file.

  Raises:
    ValueError: the file holds no measurements.
  """
  path = files.absolute(path)
  if not path.exists():
    return None
  try:
    content = json_text.loads(path.read_text())
    return Measured(
      Settings(**content['settings']),
      tuple(Entry(**entry) for entry in content['entries']),
    )
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f'{path} is no file of vit_jax.inference_speed ({error!r}): name another'
      ' file, or delete this one.'
    ) from error


def resume(path: epath.PathLike, settings: Settings) -> Measured:
  """Returns the measurements so far, none if there is no file.

  Raises:
    ValueError: the file has other settings.
  """
  found = read(path) or Measured(settings)
  # The memory that a GPU offers depends on its other users.
  memory = settings.memory_bytes
  if dataclasses.replace(found.settings, memory_bytes=memory) != settings:
    raise ValueError(
      f'{path} holds measurements with {found.settings}, but this command has'
      f' {settings}: name another file, or delete this one.'
    )
  return found


def add(path: epath.PathLike, measured: Measured, entry: Entry) -> Measured:
  """Adds an entry to the file, which it replaces atomically."""
  measured = dataclasses.replace(measured, entries=(*measured.entries, entry))
  files.write_json(files.absolute(path), dataclasses.asdict(measured))
  return measured
