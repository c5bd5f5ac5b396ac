"""The model card of a Hugging Face folder, made from a run.

The card names no files of the user's machine: of data in files it says only
their kind. A data spec is shown by `_data_set` alone, never as it is.
"""

import pathlib
import re
from typing import Any

import yaml
from etils import epath

from vit_jax import accounting, pages
from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax.data import ops
from vit_jax.export import description
from vit_jax.interop import inference
from vit_jax.interop.weight_files import Weights
from vit_jax.plan import chips
from vit_jax.workdir import environment, files, metrics

FILE = 'README.md'
_DAY = 86_400
# The settings that a reader compares first.
_SETTINGS = (
  *('model.name', 'image_size', 'data.train_split', 'data.preprocess'),
  *('data.batch_size', 'total_steps', 'optimizer.name'),
  *('optimizer.weight_decay', 'schedule.name', 'schedule.peak'),
  *('schedule.warmup_steps', 'loss.name', 'model.dropout_rate'),
  *('model.stochastic_depth', 'mixup_alpha', 'cutmix_alpha'),
  *('polyak.decay', 'seed'),
)
_LIBRARIES = ('vit_jax', 'jax', 'flax', 'optax', 'orbax-checkpoint', 'python')
# Kinds of data whose specs hold no path.
_OWN = ('digits', 'shapes', 'vtab')
_METRICS = ('accuracy', 'top5_accuracy', 'loss')


def check_license(name: str) -> None:
  """Raises ValueError if this cannot be an identifier of a licence."""
  if name and not re.fullmatch(r'[a-z0-9][a-z0-9.-]*', name):
    raise ValueError(
      f'--license={name}: expected an identifier of Hugging Face, such as'
      ' apache-2.0, mit, cc-by-4.0 or other.'
    )


def write(folder: epath.Path, weights: Weights, license_: str = '') -> None:
  """Writes `README.md` into a Hugging Face folder.

  Args:
    folder: an existing folder.
    weights: as written there. If their origin is a checkpoint of a run, the
      card tells of the run's data, settings, results, cost and hardware.
    license_: an identifier of Hugging Face; '' says nothing.
  """
  check_license(license_)
  name = inference.describe(weights.model)[0]
  height, width = weights.image_size
  run = _run(weights)
  front = {
    **({'license': license_} if license_ else {}),
    'pipeline_tag': 'image-classification',
    'library_name': 'transformers',
    'tags': ['vision', 'vit', 'vit_jax', 'jax'],
    **({'datasets': [run['public']]} if run.get('public') else {}),
    'metrics': ['accuracy'],
  }
  prepared = ops.parse(
    weights.preprocessing or 'resize',
    image_size=weights.image_size,
    channels=weights.channels,
    **weights.decoding,
  )
  template = pathlib.Path(__file__).with_name('card.md')
  text = pages.render(
    template,
    front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True),
    name=name,
    height=height,
    width=width,
    classes=weights.model.num_classes,
    decoding=description.decoding(prepared),
    operations=[
      (repr(op), description.operation(op).splitlines()[0])
      for op in prepared.ops
    ],
    run=run,
    license=license_,
  )
  with files.atomic(folder / FILE) as temporary:
    temporary.write_text(text)


def _data_set(spec: str) -> tuple[str, str]:
  """Returns the data set of a data spec as anybody may read it.

  Returns:
    The name, or only the kind of data in files; and the name that TFDS or the
    Hugging Face Hub have for it, '' if they do not have it.
  """
  base = spec.partition(',')[0]
  kind, _, name = base.partition(':')
  if kind in _OWN:
    return base, ''
  # Without a config and a version, which follow a colon.
  public = name.partition(':')[0]
  is_path = (
    public.startswith(('/', '.', '~'))
    or '://' in name
    or (kind == 'hf' and public.count('/') > 1)
    or (kind == 'hf' and epath.Path(public).exists())
  )
  return (kind, '') if kind not in ('tfds', 'hf') or is_path else (name, public)


def _run(weights: Weights) -> dict[str, Any]:
  """Returns the facts on a checkpoint's run; {} for other weights."""
  path = epath.Path(weights.origin)
  if not path.name.isdigit() or path.parent.name != checkpoint_lib.FOLDER:
    return {}
  workdir, step = path.parent.parent, int(path.name)
  config = config_lib.load(workdir)
  if config is None:
    return {}
  spec, flat = config['data']['dataset'], config_lib.flatten(config)
  name, public = _data_set(spec)
  found = {
    key: value
    for row in metrics.read(workdir)
    if row['step'] == step
    for key, value in row.items()
    if key.rpartition('/')[0] in config['evals']
    and key.rpartition('/')[2] in _METRICS
  }
  macs = accounting.forward_macs(
    weights.model, weights.image_size, weights.channels
  )
  images = step * config['data']['batch_size']
  exaflops = accounting.exaflops(macs, images, 1)
  launches = environment.read(workdir) or [{}]
  return {
    'data': name,
    'public': public,
    'excluded': 'exclude=' in spec,
    'metrics': {key: f'{value:.4f}' for key, value in found.items()},
    'settings': {key: f'`{flat[key]}`' for key in _SETTINGS if key in flat},
    'images': images,
    'gmacs': macs / 1e9,
    'exaflops': exaflops,
    'days': exaflops * 1e18 / chips.CHIPS['v3'].peak_flops / _DAY,
    'devices': dict.fromkeys(
      f'{line.get("devices", "?")} x {line.get("device_kind", "unknown")}'
      for line in launches
      if line
    ),
    'libraries': {k: launches[-1][k] for k in _LIBRARIES if k in launches[-1]},
  }
