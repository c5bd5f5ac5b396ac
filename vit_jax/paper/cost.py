"""What a run of the paper costs: estimated before it, and measured after it."""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax import accounting, models
from vit_jax import config as config_lib
from vit_jax.configs import midi, mini
from vit_jax.paper.numbers import IMAGENET, IMAGENET21K, JFT
from vit_jax.paper.runs import DATASETS, Pretraining, Results
from vit_jax.plan import analysis

# Images and epochs of a data set, the same as in configs/pretrain.py.
IMAGES = {IMAGENET: 1_281_167, IMAGENET21K: 12_400_000, JFT: 303_000_000}
EPOCHS = {IMAGENET: 300, IMAGENET21K: 90, JFT: 7}
BIT_IMAGENET_EPOCHS = 90
# Scale -> the unit of `compute_of`.
UNITS = {'paper': 'exaFLOPs', 'mini': 'teraFLOPs', 'midi': 'teraFLOPs'}
# A row of Table 2, and where our numbers in it are from.
CORE_DAYS = 'TPUv3-core-days'
CORE_DAYS_ARE = (
  'Our core-days are not measured: they are estimates of vit_jax.plan for the'
  ' steps alone, without evaluations, checkpoints and restarts.'
  f' {analysis.RESTS_ON}'
)
# Scale -> model -> multiply-adds of the forward pass of an image. The models of
# the paper have 1,000 classes and 224 px, and are those of Table 6 and Figure
# 13; their miniatures count for a head of one class. Counting the models of a
# scale takes 15 seconds, in which a user would wait for a list or a plan.
MACS = json.loads(pathlib.Path(__file__).with_name('macs.json').read_text())


def exaflops(run: Pretraining) -> float:
  """Returns exaFLOPs of forward and backward passes, as Table 6 counts them."""
  epochs = run.epochs
  if epochs is None:
    own = run.model.startswith('BiT-') and run.data == IMAGENET
    epochs = BIT_IMAGENET_EPOCHS if own else EPOCHS[run.data]
  options = {
    key.removeprefix('model.'): value
    for key, value in run.options
    if key.startswith('model.')
  }
  if options or run.model not in MACS['paper']:
    macs = _macs(json.dumps({'name': run.model, **options}), 1000, (224, 224))
  else:
    macs = MACS['paper'][run.model]
  return accounting.exaflops(macs, IMAGES[run.data], epochs)


@functools.cache
def teraflops_in_miniature(run: Pretraining, scale: str = 'mini') -> float:
  """Returns teraFLOPs of forward and backward passes before a run exists.

  Args:
    run: a pre-training without options of a model of `MACS`.
    scale: 'mini' or 'midi'.
  """
  words = f'{run.model},{DATASETS[run.data]},epochs={run.epochs:g}'
  smaller = mini.MINI if scale == 'mini' else midi.MIDI
  config = mini.make(words, smaller)
  return 1e6 * accounting.exaflops(
    MACS[scale][run.model], config.data.batch_size, config.total_steps
  )


def compute_of(results: Results, run: Pretraining) -> float | None:
  """Returns operations of forward and backward passes, in the scale's unit.

  Args:
    results: their scale chooses the unit from `UNITS`.
    run: the pre-training; in miniature, the model and the images of its config
      are counted.

  Returns:
    None for a run in miniature that is not finished.
  """
  if results.comparable:
    return exaflops(run)
  folder = results.folder(run)
  return folder and teraflops(config_lib.load(folder))


def teraflops(config: Mapping[str, Any]) -> float:
  """Returns teraFLOPs of a run's training, whatever its model and data are.

  Args:
    config: of the run, with `total_steps`. While it leaves the classes to the
      data, the head counts for one class.
  """
  model = dict(config['model'])
  # Fast implementations compute the same, but may need another platform.
  if model.get('attention_implementation'):
    model['attention_implementation'] = 'plain'
  macs = _macs(
    json.dumps(model, sort_keys=True),
    config.get('num_classes') or 1,
    tuple(config['image_size']),
    config['channels'],
  )
  batch, steps = config['data']['batch_size'], config['total_steps']
  return 1e6 * accounting.exaflops(macs, batch, steps)


# Cached: most runs differ only in seeds, data and rates.
@functools.cache
def _macs(
  model: str, classes: int, size: tuple[int, int], channels: int = 3
) -> int:
  """Returns multiply-adds of one image's forward pass.

  Args:
    model: its name and options, as JSON.
    classes: of the head.
    size: height and width of the image in pixels.
    channels: of the image.
  """
  options = json.loads(model) | {'dtype': 'float32'}  # It may be open.
  built = models.build(options.pop('name'), num_classes=classes, **options)
  return accounting.forward_macs(built, size, channels)


def device_hours(metrics: Mapping[str, float]) -> float | None:
  """Returns the device hours of all launches of a run; None if unknown."""
  seconds = [
    value
    for name, value in metrics.items()
    if name.startswith('goodput/')
    and name.endswith('_seconds')
    and name != 'goodput/restart_seconds'  # No device is held between launches.
  ]
  if not seconds:
    return None
  return sum(seconds) / 3600 * metrics.get('goodput/devices', 1.0)
