"""Measures all pairs of models and sizes, one after another."""

import time
from collections.abc import Sequence

from absl import logging
from etils import epath

from vit_jax.config import platforms
from vit_jax.inference_speed import batch_sizes, devices, networks, store
from vit_jax.runtime import printable, text_table


def measure_all(
  path: epath.PathLike,
  pairs: Sequence[tuple[str, int]],
  device: devices.Device,
  settings: store.Settings,
  search: batch_sizes.Search,
) -> store.Measured:
  """Measures the pairs that a file lacks and adds them entry by entry.

  Args:
    path: path of the file.
    pairs: (model, size) pairs.
    device: the device to measure.
    settings: settings of all entries of the file.
    search: how to search for batch sizes.

  Raises:
    ValueError: a model is unknown or the file has other settings, both before
      anything is measured; or a model's first program does not compile.
  """
  models = {}
  for name, _ in pairs:
    model = networks.build(name, settings.scale)
    options = platforms.defaults(model, device.platform, settings.dtype)
    models[name] = model.clone(**options)
  measured = store.resume(path, settings)
  missing = [pair for pair in pairs if measured.find(*pair) is None]
  logging.info(
    '%d of %d measured before; %s, %.2f GiB, %s.',
    *(len(pairs) - len(missing), len(pairs), device.name),
    *(device.memory_bytes / 2**30, settings.dtype),
  )
  start = time.monotonic()
  for done, (name, size) in enumerate(missing, 1):
    try:
      rates, largest = batch_sizes.search(device, models[name], size, search)
    except ValueError as error:
      raise ValueError(f'{name}: {error}') from error
    best = max(rates, key=rates.get, default=None)
    entry = store.Entry(
      name,
      size,
      images_per_second=rates[best] / device.cores if rates else None,
      batch_size=best / device.cores if rates else None,
      largest_batch=largest // device.cores,
      rates=sorted(rates.items()),
    )
    measured = store.add(path, measured, entry)
    left = (time.monotonic() - start) / done * (len(missing) - done)
    logging.info(
      '[%d/%d] %s at %d px: %s images/s/%s at batch %s, largest batch %d; %s'
      ' to go',
      *(done, len(missing), name, size, _number(entry.images_per_second)),
      *(device.unit, _number(entry.batch_size), entry.largest_batch),
      printable.duration(left),
    )
  return measured


def tables(measured: store.Measured) -> str:
  """Returns tables of speeds and batches: a line a model, a column a size."""
  sizes = sorted({entry.size for entry in measured.entries})
  names = dict.fromkeys(entry.model for entry in measured.entries)
  unit = measured.settings.unit
  parts = []
  for title, field in (
    (f'Peak inference speed, images/s/{unit}', 'images_per_second'),
    (f'Largest batch that fits a {unit}', 'largest_batch'),
  ):
    rows = [['', *map(str, sizes)]]
    for name in names:
      found = [measured.find(name, size) for size in sizes]
      rows.append([name, *(_number(x and getattr(x, field)) for x in found)])
    parts.append(f'{title}\n{text_table.aligned(rows)}')
  return '\n\n'.join(parts)


def _number(value: float | None) -> str:
  if value is None:
    return '-'
  return f'{value:.0f}' if value >= 100 else f'{value:.3g}'
