"""The model card of a Hugging Face folder, made from a run.

The card names no files of the user's machine: of data in files it says only
their kind. A data spec is shown by `_data_set` alone, never as it is.
"""

import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import yaml
from etils import epath

from vit_jax import accounting
from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax.data import ops
from vit_jax.export import description
from vit_jax.interop import inference
from vit_jax.plan import chips
from vit_jax.runtime import printable
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
_METRICS = ('accuracy', 'top5_accuracy')


def check_license(name: str) -> None:
  """Raises ValueError if this cannot be an identifier of a licence."""
  if name and not re.fullmatch(r'[a-z0-9][a-z0-9.-]*', name):
    raise ValueError(
      f'--license={name}: expected an identifier of Hugging Face, such as'
      ' apache-2.0, mit, cc-by-4.0 or other.'
    )


def write(
  folder: epath.Path,
  model: nn.Module,
  origin: str,
  *,
  image_size: tuple[int, int],
  channels: int,
  preprocessing: str = '',
  decoding: Mapping[str, Any] | None = None,
  license_: str = '',
) -> None:
  """Writes `README.md` into a Hugging Face folder.

  Args:
    folder: an existing folder.
    model: from `models.build`.
    origin: where the weights come from. If it is a checkpoint of a run, the
      card tells of the run's data, settings, results, cost and hardware.
    image_size: (height, width) in pixels.
    channels: channels of an image.
    preprocessing: operations of the evaluation; see `data/ops`.
    decoding: see `interop.Weights`.
    license_: an identifier of Hugging Face; '' says nothing.
  """
  check_license(license_)
  name = inference.describe(model)[0]
  run = _run(origin)
  spec = run['config']['data']['dataset'] if run else ''
  public = _data_set(spec)[1]
  front = {
    **({'license': license_} if license_ else {}),
    'pipeline_tag': 'image-classification',
    'library_name': 'transformers',
    'tags': ['vision', 'vit', 'vit_jax', 'jax'],
    **({'datasets': [public]} if public else {}),
    'metrics': ['accuracy'],
  }
  if run and (results := _results(run)):
    front['model-index'] = [{'name': name, 'results': results}]
  prepared = ops.parse(
    preprocessing or 'resize',
    image_size=image_size,
    channels=channels,
    **(decoding or {}),
  )
  sections = [
    f'# {name} at {image_size[0]}x{image_size[1]} px',
    f'A Vision Transformer ([arXiv:2010.11929](https://arxiv.org/abs/2010.11929))'
    f' for {model.num_classes:,} classes, trained with vit_jax.',
    _USE,
    _preprocessing(prepared),
  ]
  if run:
    macs = accounting.forward_macs(model, image_size, channels)
    sections += _sections(run, macs)
  if not license_:
    sections.append('## License\n\nNo license is given: ask the authors.')
  text = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
  body = '\n\n'.join(printable.text(section) for section in sections)
  with files.atomic(folder / FILE) as temporary:
    temporary.write_text(f'---\n{text}---\n\n{body}\n')


_USE = """## Use

```python
from transformers import pipeline

classify = pipeline('image-classification', model='FOLDER_OR_REPOSITORY')
classify('image.jpg')
```

`vit_jax.load` reads the same folder."""


def _preprocessing(prepared: ops.Preprocess) -> str:
  steps = [
    description.decoding(prepared),
    *(
      f'`{op}`: {description.operation(op).splitlines()[0]}'
      for op in prepared.ops
    ),
    'maps 0 to 255 to [-1, 1]',
  ]
  return (
    '## Preprocessing\n\nThe evaluation prepared images as follows:\n\n'
    + '\n'.join(f'{i}. {step}' for i, step in enumerate(steps, start=1))
    + '\n\n`preprocessor_config.json` makes transformers resize images to the'
    ' final size at once, with antialiasing. Results can differ a little.'
  )


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


def _run(origin: str) -> dict[str, Any] | None:
  """Returns what a checkpoint's run says; None if the weights are not a run's.

  These are its `workdir`, its `step`, its `config`, and by their keys the
  `metrics` of that step.
  """
  path = epath.Path(origin)
  if not path.name.isdigit() or path.parent.name != checkpoint_lib.FOLDER:
    return None
  workdir, step = path.parent.parent, int(path.name)
  config = config_lib.load(workdir) or {}
  # Converted weights are kept like runs, but nothing trained them here.
  if not (config.get('data') or {}).get('dataset'):
    return None
  found = {
    key: value
    for row in metrics.read(workdir)
    if row['step'] == step
    for key, value in row.items()
    if key.rpartition('/')[0] in config['evals']
    and key.rpartition('/')[2] in (*_METRICS, 'loss')
  }
  return {'workdir': workdir, 'step': step, 'config': config, 'metrics': found}


def _results(run: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Returns the results on the run's own data as Hugging Face's cards do."""
  config, results = run['config'], []
  own = config['data']['dataset']
  name = _data_set(own)[0]
  for key, value in run['metrics'].items():
    evaluation, _, metric = key.rpartition('/')
    section = config['evals'][evaluation]
    # Results on other data must not pass for those on the run's own.
    if metric not in _METRICS or section.get('dataset') not in (None, '', own):
      continue
    data = {'type': name, 'name': name}
    if section.get('split'):
      data['split'] = section['split']
    entry = {
      'type': 'accuracy',
      'name': f'{evaluation} {metric}',
      'value': round(value, 6),
    }
    results.append(
      {
        'task': {'type': 'image-classification'},
        'dataset': data,
        'metrics': [entry],
      }
    )
  return results


def _sections(run: Mapping[str, Any], macs: int) -> list[str]:
  """Returns the sections on data, results, settings, cost and hardware."""
  config = run['config']
  spec, flat = config['data']['dataset'], config_lib.flatten(config)
  sections = [f'## Data\n\n{_data_set(spec)[0]}']
  if 'exclude=' in spec:
    sections.append('A list of examples was left out.')
  if run['metrics']:
    rows = {key: f'{value:.4f}' for key, value in run['metrics'].items()}
    sections.append('## Results\n\n' + _table('metric', rows))
  rows = {key: f'`{flat[key]}`' for key in _SETTINGS if key in flat}
  sections.append('## Training\n\n' + _table('setting', rows))
  images = run['step'] * config['data']['batch_size']
  exaflops = accounting.exaflops(macs, images, 1)
  days = exaflops * 1e18 / chips.CHIPS['v3'].peak_flops / _DAY
  sections.append(
    f'## Cost\n\n{exaflops:.3g} exaFLOPs: {images:,} images of'
    f' {macs / 1e9:.3g} GMACs, forward and backward. At peak'
    f' speed this takes {days:.3g} TPUv3-core-days, in practice more. These'
    ' figures are computed, not measured. Earlier runs whose weights'
    ' this run started from are not included.'
  )
  if launches := environment.read(run['workdir']):
    kinds = dict.fromkeys(
      f'{line.get("devices", "?")} x {line.get("device_kind", "unknown")}'
      for line in launches
    )
    last = launches[-1]
    rows = {key: str(last[key]) for key in _LIBRARIES if key in last}
    sections.append(
      f'## Hardware and versions\n\n{"; ".join(kinds)}\n\n'
      + _table('library', rows)
    )
  return sections


def _table(first: str, rows: Mapping[str, str]) -> str:
  lines = [f'| {first} | value |', '| --- | --- |']
  for key, value in rows.items():
    cell = value.replace('|', '\\|')  # A | would end it.
    lines.append(f'| {key} | {cell} |')
  return '\n'.join(lines)
