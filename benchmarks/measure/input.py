"""Times the input pipeline, and other libraries at the same work."""

import functools
import pathlib
import time

import cv2
import jax
import numpy as np

from benchmarks.measure import other_inputs, timing
from vit_jax import data, sharding
from vit_jax.data import ops, pipeline

# The size of most images of ImageNet.
HEIGHT, WIDTH = 375, 500
_KEYS = ('threads', 'workers', 'prefetch')
# Within this time, workers start by themselves, unless a setting says how many.
_SETTLE_SEC = 3.0


def parse(text: str) -> dict[str, int] | None:
  """Parses `workers=2,threads=4` to keyword arguments.

  Returns:
    The arguments of `train_batches`; None for another library.

  Raises:
    ValueError: the text is neither, or the library is not installed.
  """
  if text == 'default':
    return {}
  if text in other_inputs.LIBRARIES:
    other_inputs.check(text)
    return None
  options = {}
  for part in text.split(','):
    key, _, number = part.partition('=')
    if key not in _KEYS or not number.isdecimal():
      raise ValueError(
        f'--setting={text}: {part!r} must be one of {", ".join(_KEYS)} with a'
        ' number, such as threads=4. The setting may also be default, or'
        f' another input: {", ".join(other_inputs.LIBRARIES)}.'
      )
    options[key] = int(number)
  return options


def make_images(folder: pathlib.Path, count: int) -> str:
  """Writes JPEGs of about the size and detail of photographs.

  Args:
    folder: the folder to write `train/{a,b}/NUMBER.jpg` to.
    count: the number of JPEGs.

  Returns:
    Their data spec.
  """
  generator = np.random.default_rng(0)
  for name in 'ab':
    (folder / 'train' / name).mkdir(parents=True)
  for index in range(count):
    # Detail at all scales, like a photograph's.
    image = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    for cells in (4, 16, 64, 256):
      coarse = generator.standard_normal((cells, cells, 3), np.float32)
      image += 60 / np.sqrt(cells) * 2 * cv2.resize(coarse, (WIDTH, HEIGHT))
    pixels = np.clip(image + 128, 0, 255).astype(np.uint8)
    _, encoded = cv2.imencode('.jpg', pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
    path = folder / 'train' / 'ab'[index % 2] / f'{index}.jpg'
    path.write_bytes(encoded.tobytes())
  return f'folder:{folder}'


def turn(
  view: data.View,
  preprocess: ops.Preprocess,
  mesh: jax.sharding.Mesh,
  options: dict[str, int],
  *,
  batch_size: int,
  batches: int,
  step_ms: float,
) -> dict[str, float]:
  """Reads batches as fast as possible, and then with a step after each.

  Returns:
    `batch_sec` and `stall_sec` (means over the batches), `largest_stall_sec`.
  """
  iterator = pipeline.train_batches(
    view,
    preprocess,
    batch_size=batch_size,
    seed=0,
    num_classes=view.source.info.num_classes,
    **options,
  )
  try:
    # The start of workers is not timed.
    end = time.monotonic() + (_SETTLE_SEC if 'workers' not in options else 0)
    while time.monotonic() < end or not iterator.ready():
      next(iterator)
    batch_sec = other_inputs.steady(iterator, batches)
    waits = []
    for batch in sharding.feed(iterator, mesh, batches + 1, waits.append):
      time.sleep(step_ms / 1000)
      jax.block_until_ready(batch)
  finally:
    iterator.close()
  # The first batch was ready before the first step, so its wait is left out.
  return {
    'batch_sec': batch_sec,
    'stall_sec': float(np.mean(waits[1:])),
    'largest_stall_sec': max(waits[1:]),
  }


def measure(
  spec: str,
  settings: list[str],
  *,
  split: str = 'train',
  preprocess: str = 'inception_crop|flip',
  image_size: tuple[int, int] = (224, 224),
  jpeg_dct: str = 'fast',
  batch_size: int,
  batches: int,
  step_ms: float,
  rounds: int,
) -> dict[str, dict]:
  """Compares settings of the pipeline; the arguments are the flags.

  Returns:
    Setting -> `batch_sec` (see `timing.statistics`), `images_per_sec`, and the
    ratios of `timing.compare` for `batch_sec`; of the pipeline also `stall_ms`
    and `largest_stall_ms`.

  Raises:
    ValueError: a setting, data spec, split or preprocessing is wrong, or the
      batch size is not a multiple of the number of devices.
  """
  options = {text: parse(text) for text in settings}
  if None in options.values() and (
    preprocess != other_inputs.PREPROCESS or len({*image_size}) > 1
  ):
    raise ValueError(
      f'other libraries only do {other_inputs.PREPROCESS} to a square, not'
      f' {preprocess} to {image_size[0]}x{image_size[1]}'
    )
  view = data.View(data.open_source(spec), split)
  parsed = ops.parse(
    preprocess,
    image_size=image_size,
    channels=3,
    jpeg_dct=jpeg_dct,
  )
  mesh = sharding.make_mesh()
  sharding.check_batch_size('--batch_size', batch_size, mesh)
  samples = timing.interleave(
    {
      text: functools.partial(
        other_inputs.turn, text, view, batch_size, batches, image_size[0]
      )
      if chosen is None
      else functools.partial(
        turn,
        view,
        parsed,
        mesh,
        chosen,
        batch_size=batch_size,
        batches=batches,
        step_ms=step_ms,
      )
      for text, chosen in options.items()
    },
    rounds,
  )
  compared = timing.compare(
    {k: [sample['batch_sec'] for sample in v] for k, v in samples.items()}
  )
  results = {}
  for name, found in samples.items():
    results[name] = {
      'batch_sec': timing.statistics([s['batch_sec'] for s in found]),
      'images_per_sec': batch_size / compared[name]['median'],
      **{k: v for k, v in compared[name].items() if 'ratio' in k},
    }
    if 'stall_sec' in found[0]:
      stalls = [1000 * s['stall_sec'] for s in found]
      results[name] |= {
        'stall_ms': timing.statistics(stalls),
        'largest_stall_ms': 1000 * max(s['largest_stall_sec'] for s in found),
      }
  return results
