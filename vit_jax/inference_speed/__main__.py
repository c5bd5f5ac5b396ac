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
(pip install "vit-paper-jax[plan]"). Speeds are its estimates.
"""

from absl import flags

from vit_jax.config import platforms
from vit_jax.inference_speed import (
  all_pairs,
  batch_sizes,
  devices,
  networks,
  store,
)
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
# Calls of a program, see `stopwatch.median_seconds`.
_TIMING = dict(warm_up=10, calls=30, max_seconds=10.0)
_MINI_TIMING = dict(warm_up=3, calls=30, max_seconds=0.3)
# Estimates spend their time on compiling, a minute or two for large batches.
_ESTIMATED_SEARCH = batch_sizes.Search(growth=8, patience=1)
# Miniatures also spend most of their time on compiling.
_MINI_SEARCH = batch_sizes.Search(
  growth=16, patience=1, max_seconds=1.0, precision=0.2
)


def main(words: list[str]) -> None:
  scale = 'mini' if _MINI.value else 'paper'
  sizes = [int(w) if w.isdecimal() else 0 for w in _SIZES.value or ()]
  if 0 in sizes:
    raise ValueError(
      f'--sizes={",".join(_SIZES.value)}: expected sides of images in pixels,'
      ' such as 64,224.'
    )
  pairs = networks.pairs(words, sizes, scale)
  if _DEVICE.value == 'local':
    device = devices.local(_MINI_TIMING if _MINI.value else _TIMING)
    search, correction = batch_sizes.Search(), None
  else:
    device = devices.absent(_DEVICE.value)
    search, correction = _ESTIMATED_SEARCH, 1.0
  settings = store.Settings(
    *(device.name, scale, device.unit, device.memory_bytes),
    # Other platforms are accelerators, too, so they get a GPU's dtype.
    platforms.DTYPES.get(device.platform, platforms.DTYPES['gpu']),
    correction,
  )
  search = _MINI_SEARCH if _MINI.value else search
  measured = all_pairs.measure_all(_TO.value, pairs, device, settings, search)
  print(all_pairs.tables(measured))


if __name__ == '__main__':
  command_line.run(
    main,
    required=('to',),
    arguments='models, such as ViT-B/16; by default those of the figures',
    optional=True,
  )
