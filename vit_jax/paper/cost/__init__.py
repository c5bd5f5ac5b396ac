"""What a run of the paper costs, before it is started, and what one did."""

import functools
from collections.abc import Mapping

from etils import epath

from vit_jax import accounting, models
from vit_jax import config as config_lib
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Results, Transfer, Vtab
from vit_jax.sweep.spec import Value

# Images and epochs of a set: as configs/pretrain.py has them.
IMAGES = {
  values.IMAGENET: 1_281_167,
  values.IMAGENET21K: 12_400_000,
  values.JFT: 303_000_000,
}
EPOCHS = {values.IMAGENET: 300, values.IMAGENET21K: 90, values.JFT: 7}
BIT_IMAGENET_EPOCHS = 90
# Scale -> the unit of `compute_of`.
UNITS = {'paper': 'exaFLOPs', 'mini': 'teraFLOPs'}


def exaflops(run: Pretraining) -> float:
  """10^18 operations of forward and backward passes, as Table 6 counts them."""
  epochs = run.epochs
  if epochs is None:
    own = run.model.startswith('BiT-') and run.data == values.IMAGENET
    epochs = BIT_IMAGENET_EPOCHS if own else EPOCHS[run.data]
  return accounting.exaflops(
    _forward_macs(run.model, run.options, (224, 224)), IMAGES[run.data], epochs
  )


def compute_of(results: Results, run: Pretraining) -> float | None:
  """Operations of forward and backward passes, in the scale's of `UNITS`.

  Args:
    results: of a scale.
    run: in miniature its own model and images are counted, as its config says
      them.

  Returns:
    None of a miniature that is not finished.
  """
  if results.comparable:
    return exaflops(run)
  folder = results.folder(run)
  return None if folder is None else 1e6 * exaflops_of_run(folder)


def finetuning_exaflops(
  run: Transfer | Vtab, image_size: tuple[int, int], images: float
) -> float:
  """The same of fine-tuning, which the paper counts nowhere.

  Args:
    run: what is fine-tuned.
    image_size: height and width in pixels.
    images: that are trained on, each as often as it is seen.
  """
  start = run.pretraining
  macs = _forward_macs(start.model, start.options, image_size)
  return accounting.exaflops(macs, images, 1)


def exaflops_of_run(workdir: epath.PathLike) -> float:
  """10^18 operations of a run that there is, whatever its model and data are.

  Args:
    workdir: its work directory, whose config says all that is counted: the
      model, the size of the images and how many the run's steps see.

  Raises:
    ValueError: it holds no run.
  """
  config = config_lib.load(workdir)
  if config is None:
    raise ValueError(f'{workdir} holds no run: there is no {config_lib.FILE}.')
  options = dict(config['model'])
  name = options.pop('name')
  if options.get('attention_implementation'):
    # A fast one computes the same, and may be another platform's.
    options['attention_implementation'] = 'plain'
  model = models.build(name, num_classes=config['num_classes'], **options)
  macs = accounting.forward_macs(
    model, tuple(config['image_size']), config['channels']
  )
  return accounting.exaflops(
    macs, config['data']['batch_size'], config['total_steps']
  )


def device_hours(metrics: Mapping[str, float]) -> float | None:
  """The hours that a run held its devices, of all its launches together."""
  seconds = [
    value
    for name, value in metrics.items()
    if name.startswith('goodput/')
    and name.endswith('_seconds')
    and name != 'goodput/restart_seconds'  # Between launches nothing is held.
  ]
  if not seconds:
    return None
  return sum(seconds) / 3600 * metrics.get('goodput/devices', 1.0)


# A ResNet takes a second to count, and runs and tables share them.
@functools.cache
def _forward_macs(
  name: str,
  options: tuple[tuple[str, Value], ...],
  image_size: tuple[int, int],
) -> int:
  """Multiply-adds of an image's forward pass, with a thousand classes."""
  chosen = {
    key.removeprefix('model.'): value
    for key, value in options
    if key.startswith('model.')
  }
  model = models.build(name, num_classes=1000, **chosen)
  return accounting.forward_macs(model, image_size)
