"""The model card of a Hugging Face folder, made from a run.

The card names no files of the user's machine: of data that may lie in files it
says only their kind.
"""

import pathlib
from typing import Any

from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import pages
from vit_jax.interop import inference, timm_layouts
from vit_jax.interop.weight_files import Weights
from vit_jax.workdir import files, metrics

FILE = 'README.md'
# The settings that a reader compares first.
_SETTINGS = (
  *('model.name', 'image_size', 'data.train_split', 'data.preprocess'),
  *('data.batch_size', 'total_steps', 'optimizer.name'),
  *('optimizer.weight_decay', 'schedule.name', 'schedule.peak'),
  *('schedule.warmup_steps', 'loss.name', 'model.dropout_rate'),
  *('model.stochastic_depth', 'mixup_alpha', 'cutmix_alpha'),
  *('polyak.decay', 'seed'),
)
# Kinds of data whose specs hold no path.
_WITHOUT_PATH = ('digits', 'shapes', 'tfds', 'vtab')
_METRICS = ('accuracy', 'top5_accuracy', 'loss')


def write(folder: epath.Path, weights: Weights, license_: str = '') -> None:
  """Writes `README.md` into a Hugging Face folder.

  Args:
    folder: an existing folder.
    weights: as written there, with the layout. If their origin is a checkpoint
      of a run, the card tells of the run's data, results and settings.
    license_: an identifier of Hugging Face, such as apache-2.0; '' says
      nothing.
  """
  height, width = weights.image_size
  has_head = any(key.startswith('head') for key in weights.params)
  is_timm = weights.layout in timm_layouts.FAMILIES
  text = pages.render(
    pathlib.Path(__file__).with_name('card.md'),
    name=inference.describe(weights.model)[0],
    height=height,
    width=width,
    classes=has_head and weights.model.num_classes,
    library='timm' if is_timm else 'transformers',
    preprocessing=weights.preprocessing or 'resize',
    run=_run(weights.origin),
    license=license_,
  )
  with files.atomic(folder / FILE) as temporary:
    temporary.write_text(text)


def _run(origin: str) -> dict[str, Any]:
  """Returns the facts on a checkpoint's run; {} for other weights."""
  workdir = checkpoint_lib.workdir_of(origin)
  config = config_lib.load(workdir)
  if config is None:
    return {}
  spec, flat = config['data']['dataset'], config_lib.flatten(config)
  step = int(epath.Path(origin).name)
  found = {
    key: value
    for row in metrics.read(workdir)
    if row['step'] == step
    for key, value in row.items()
    if key.rpartition('/')[0] in config['evals']
    and key.rpartition('/')[2] in _METRICS
  }
  kind = spec.partition(':')[0]
  return {
    # A path may follow a comma: that of a list of examples to leave out.
    'data': spec.partition(',')[0] if kind in _WITHOUT_PATH else kind,
    'metrics': {key: f'{value:.4f}' for key, value in found.items()},
    'settings': {key: f'`{flat[key]}`' for key in _SETTINGS if key in flat},
  }
