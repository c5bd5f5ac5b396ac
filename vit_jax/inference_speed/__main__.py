"""Inference speed: `python -m vit_jax.inference_speed --to=FILE [MODEL ...]`.

  --to=speed.json                       Figure 12 on this machine's device
  --to=speed.json ViT-B/16 BiT-R50x1    only these models
  --to=v3.json --device=v3              estimates for a core of a TPU v3
  --to=mini.json --mini                 in miniature, minutes on a CPU

For each model and image size, the command finds the inference speed in images a
second, the best over batch sizes, and the largest batch that fits the memory by
the compiler's count. On TPUs the figures are for one TensorCore, on other
hardware for one device; a CPU is one device. FILE grows entry by entry, and the
same command continues where it stopped.

--device=v3 (v2 to tpu7x) needs no TPU, only the TPU compiler
(pip install "vit-paper-jax[plan]"). Speeds are its corrected estimates.
"""

import dataclasses

from absl import flags, logging

from vit_jax.inference_speed import (
  ahead,
  all_pairs,
  batch_sizes,
  forward,
  networks,
  stopwatch,
  store,
)
from vit_jax.plan import compilers, devices, figures
from vit_jax.runtime import command_line

_TO = flags.DEFINE_string('to', None, 'JSON file for the measurements.')
_DEVICE = flags.DEFINE_string(
  'device', 'local', 'local, or a TPU generation to compile for, such as v3.'
)
_MINI = flags.DEFINE_bool(
  'mini', False, 'Measure the models of configs/mini.py at its image sizes.'
)
_SIZES = flags.DEFINE_list(
  'sizes',
  None,
  'Sides of the images, in px; by default 64,128,224,384,512, with --mini'
  ' 8,16,24,40,56.',
)
_MEMORY = flags.DEFINE_float(
  'memory_gib',
  None,
  "Memory for the largest batch; by default the device's own, on a CPU 1 GiB.",
  lower_bound=1e-6,
)
_DTYPE = flags.DEFINE_enum(
  'dtype',
  None,
  ['float32', 'bfloat16'],
  'Dtype of the computation; by default float32 on CPUs, else bfloat16.',
)
_WARM_UP = flags.DEFINE_integer(
  'warm_up', None, 'Untimed calls before the timed ones; 10, with --mini 3.', 0
)
_CALLS = flags.DEFINE_integer(
  'calls',
  None,
  f'Timed calls; their median counts. By default {stopwatch.Timing().calls}.',
  1,
)
_PRECISION = flags.DEFINE_float(
  'precision',
  None,
  'Share of the memory that the largest batch may leave free; 0.02, with --mini'
  ' 0.2.',
  lower_bound=0,
  upper_bound=0.5,
)
_CORRECTION = flags.DEFINE_float(
  'correction',
  figures.CORRECTION,
  "Real speed divided by the TPU compiler's estimate.",
  lower_bound=0.01,
)
# Estimates spend their time on compiling, a minute or two for large batches, so
# this search tries few batches.
_ESTIMATED_SEARCH = batch_sizes.Search(first=16, growth=8, patience=1)
# Miniatures also spend most of their time on compiling.
_MINI_SEARCH = batch_sizes.Search(
  first=4, growth=16, patience=1, max_seconds=1.0, precision=0.2
)
_MINI_TIMING = stopwatch.Timing(warm_up=3, calls=30, max_seconds=0.3)


def _find_device() -> forward.Device:
  memory = _MEMORY.value and round(_MEMORY.value * compilers.GIB)
  estimated = _DEVICE.value != 'local'
  for flag in (_WARM_UP, _CALLS) if estimated else (_CORRECTION,):
    if flag.present:
      raise ValueError(
        f'--{flag.name} has no effect with --device={_DEVICE.value}; leave it'
        ' out.'
      )
  if estimated:
    devices.leave_hardware_alone()
    return ahead.find(_DEVICE.value, memory, _CORRECTION.value)
  timing = _MINI_TIMING if _MINI.value else stopwatch.Timing()
  timing = _changed(timing, warm_up=_WARM_UP.value, calls=_CALLS.value)
  return stopwatch.find(memory, timing)


def _search(device: forward.Device) -> batch_sizes.Search:
  if _MINI.value:
    return _MINI_SEARCH
  return _ESTIMATED_SEARCH if device.estimated else batch_sizes.Search()


def _changed(settings, **values):
  """Returns the settings, changed to those values that are not None."""
  given = {name: value for name, value in values.items() if value is not None}
  return dataclasses.replace(settings, **given)


def _parse_sizes(words: list[str] | None) -> list[int]:
  for word in words or ():
    if not word.isdecimal() or not int(word):
      raise ValueError(
        f'--sizes: {word!r} is no side of an image; expected pixels, such as'
        ' --sizes=64,224.'
      )
  return [int(word) for word in words or ()]


def main(words: list[str]) -> None:
  scale = 'mini' if _MINI.value else 'paper'
  pairs = networks.pairs(words, _parse_sizes(_SIZES.value), scale)
  device = _find_device()
  settings = store.Settings(
    device.name,
    scale,
    device.unit,
    device.memory_bytes,
    dtype=_DTYPE.value or all_pairs.dtype_of(device),
    correction=_CORRECTION.value if device.estimated else None,
  )
  batches = _changed(_search(device), precision=_PRECISION.value)
  measured = all_pairs.measure_all(
    _TO.value,
    pairs,
    device,
    settings,
    batches,
    lambda text: logging.info('%s', text),
  )
  print(all_pairs.table(measured))


if __name__ == '__main__':
  command_line.run(
    main,
    required=('to',),
    arguments='models, such as ViT-B/16; by default those of the figures',
    optional=True,
  )
