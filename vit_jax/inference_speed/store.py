"""The file of what was measured: one JSON object, which grows by entries."""

import dataclasses
import json
from collections.abc import Sequence

from etils import epath

from vit_jax.interop import weight_files
from vit_jax.runtime import json_text
from vit_jax.workdir import files


@dataclasses.dataclass(frozen=True)
class Entry:
  """A model at a size.

  Attributes:
    model: its name, as in the paper.
    size: side of the images, in pixels.
    images_per_second: a core, at the fastest batch; None if no batch fits.
    batch_size: that batch, a core's part of it; None likewise.
    largest_batch: that fits the memory of a core; 0 if none does.
    rates: all that were timed: (batch on a device, images a second on it).
  """

  model: str
  size: int
  images_per_second: float | None
  batch_size: float | None
  largest_batch: int
  rates: Sequence[Sequence[float]] = ()


@dataclasses.dataclass(frozen=True)
class Settings:
  """What all entries of a file have in common.

  Attributes:
    device: what was measured, for people.
    scale: 'paper' or 'mini'.
    unit: 'core' or 'device', see `forward.Device`.
    memory_bytes: that a batch had to fit, of one device.
    dtype: of the computation.
    correction: real speed, divided by the compiler's estimate, where that is
      what images a second are from; None if they were measured.
  """

  device: str
  scale: str
  unit: str
  memory_bytes: int
  dtype: str
  correction: float | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
  """A file."""

  settings: Settings
  entries: tuple[Entry, ...] = ()

  def find(self, model: str, size: int) -> Entry | None:
    for entry in self.entries:
      if (entry.model, entry.size) == (model, size):
        return entry
    return None

  def speeds(self, size: int) -> dict[str, float]:
    """Peak images a second and core, by model, of images of a size."""
    return {
      entry.model: entry.images_per_second
      for entry in self.entries
      if entry.size == size and entry.images_per_second is not None
    }


def read(path: epath.PathLike) -> Measured | None:
  """Reads what there is so far; None if there is no file.

  Raises:
    ValueError: it is no file of measurements.
  """
  path = weight_files.absolute(path)
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
      ' one, or delete it.'
    ) from error


def resume(path: epath.PathLike, settings: Settings) -> Measured:
  """What there is so far, of the same settings.

  Raises:
    ValueError: it is of others; says which.
  """
  found = read(path)
  if found is None:
    return Measured(settings)
  theirs, ours = map(dataclasses.asdict, (found.settings, settings))
  for name, value in ours.items():
    # The memory that a GPU offers depends on what else is on it.
    if name != 'memory_bytes' and theirs[name] != value:
      raise ValueError(
        f'{path} holds measurements with {name}={theirs[name]!r}, and these are'
        f' with {value!r}: name another file, or delete it.'
      )
  return found


def add(path: epath.PathLike, measured: Measured, entry: Entry) -> Measured:
  """Writes the file with an entry more; replaces it in one go.

  Entries that other processes have added stay.
  """
  path = weight_files.absolute(path)
  measured = resume(path, measured.settings) if path.exists() else measured
  measured = dataclasses.replace(measured, entries=(*measured.entries, entry))
  path.parent.mkdir(parents=True, exist_ok=True)
  content = dataclasses.asdict(measured)
  with files.atomic(path) as temporary:
    temporary.write_text(json.dumps(content, indent=1) + '\n')
  return measured


def speeds(path: epath.PathLike, size: int) -> dict[str, float]:
  """Peak images a second and core, by model, as far as they are measured.

  Args:
    path: of a file that need not be there.
    size: side of the images, in pixels.
  """
  found = read(path)
  return found.speeds(size) if found else {}
