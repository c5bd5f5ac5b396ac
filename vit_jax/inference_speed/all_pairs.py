"""Measures all pairs of models and sizes, one after another."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import flax.linen as nn
from etils import epath

from vit_jax.config import platforms
from vit_jax.inference_speed import batch_sizes, forward, networks, store

# A compilation of this many seconds is reported.
_SLOW = 10.0


def dtype_of(device: forward.Device) -> str:
  """Returns the best dtype for a device."""
  # Other platforms are accelerators, too, so they get a GPU's.
  return platforms.DTYPES.get(device.platform, platforms.DTYPES['gpu'])


def measure_all(
  path: epath.PathLike,
  pairs: Sequence[tuple[str, int]],
  device: forward.Device,
  settings: store.Settings,
  batches: batch_sizes.Search,
  say: Callable[[str], None],
  clock: Callable[[], float] = time.monotonic,
) -> store.Measured:
  """Measures the pairs that a file lacks and adds them entry by entry.

  Args:
    path: path of the file.
    pairs: (model, size) pairs.
    device: the device to measure.
    settings: settings of all entries of the file.
    batches: how to search for batch sizes.
    say: is called with progress messages.
    clock: returns the time in seconds.

  Raises:
    ValueError: a model is unknown or the file has other settings, both before
      anything is measured; or a model's first program does not compile.
  """
  models = {name: _model(name, device, settings) for name, _ in pairs}
  measured = store.resume(path, settings)
  missing = [pair for pair in pairs if measured.find(*pair) is None]
  say(
    f'{len(pairs) - len(missing)} of {len(pairs)} measured before;'
    f' {device.name}, {device.memory_bytes / 2**30:.2f} GiB,'
    f' {settings.dtype}.'
  )
  device = dataclasses.replace(
    device, compile=_telling(device.compile, say, clock)
  )
  start = clock()
  for done, (name, size) in enumerate(missing, 1):
    try:
      found = batch_sizes.search(device, models[name], size, batches)
    except ValueError as error:
      raise ValueError(f'{name}: {error}') from error
    entry = _entry(name, size, found, device.cores)
    measured = store.add(path, measured, entry)
    left = (clock() - start) / done * (len(missing) - done)
    say(
      f'[{done}/{len(missing)}] {describe(entry, device.unit)};'
      f' {_duration(left)} to go'
    )
  return measured


def _model(
  name: str, device: forward.Device, settings: store.Settings
) -> nn.Module:
  """Returns a model with the device's best attention."""
  model = networks.build(name, settings.scale)
  options = platforms.defaults(model, device.platform, settings.dtype)
  return networks.build(name, settings.scale, **options)


def _telling(
  compile_batch: Callable[[nn.Module, int, int], forward.Program],
  say: Callable[[str], None],
  clock: Callable[[], float],
) -> Callable[[nn.Module, int, int], forward.Program]:
  """Wraps a compile function to report every slow compilation.

  An entry needs many compilations, so the user would otherwise wait in silence.
  """

  def compile_and_tell(
    model: nn.Module, size: int, batch_size: int
  ) -> forward.Program:
    start = clock()
    need = 'no program'
    try:
      program = compile_batch(model, size, batch_size)
      need = f'{program.bytes / 2**30:.2f} GiB'
    finally:
      seconds = clock() - start
      if seconds >= _SLOW:
        say(
          f'  {size} px, batch {batch_size}: {need}, compiled in'
          f' {seconds:.0f} s'
        )
    return program

  return compile_and_tell


def _entry(
  name: str, size: int, found: batch_sizes.Found, cores: int
) -> store.Entry:
  best = max(found.rates, key=found.rates.get, default=None)
  return store.Entry(
    name,
    size,
    images_per_second=None if best is None else found.rates[best] / cores,
    batch_size=None if best is None else best / cores,
    largest_batch=found.largest // cores,
    rates=sorted(found.rates.items()),
  )


def describe(entry: store.Entry, unit: str) -> str:
  """Describes an entry in one line."""
  where = f'{entry.model} at {entry.size} px'
  if entry.images_per_second is None:
    return f'{where}: no batch fits'
  return (
    f'{where}: {entry.images_per_second:.4g} images/s/{unit} at batch'
    f' {entry.batch_size:g}, largest batch {entry.largest_batch}'
  )


def _duration(seconds: float) -> str:
  minutes = seconds / 60
  if minutes < 1:
    return f'{seconds:.0f} s'
  return f'{minutes:.0f} min' if minutes < 120 else f'{minutes / 60:.1f} h'


def table(measured: store.Measured) -> str:
  """Returns tables of speeds and batches: a line a model, a column a size."""
  sizes = sorted({entry.size for entry in measured.entries})
  names = dict.fromkeys(entry.model for entry in measured.entries)
  unit = measured.settings.unit
  lines = []
  for title, field in (
    (f'Peak inference speed, images/s/{unit}', 'images_per_second'),
    (f'Largest batch that fits a {unit}', 'largest_batch'),
  ):
    lines += ['', title, ' ' * 15 + ''.join(f'{s:>9}' for s in sizes)]
    for name in names:
      found = [measured.find(name, size) for size in sizes]
      cells = [entry and getattr(entry, field) for entry in found]
      lines.append(
        f'{name:15}' + ''.join(f'{_number(cell):>9}' for cell in cells)
      )
  return '\n'.join(lines[1:])


def _number(value: float | None) -> str:
  if value is None:
    return '-'
  return f'{value:.0f}' if value >= 100 else f'{value:.3g}'
