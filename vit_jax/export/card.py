"""The model card of a Hugging Face folder, made from a run.

The card names no folders of the user's machine: of data in files it says only
what the last folder is called. A data spec is shown by `_set` alone, never as
it is.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import yaml
from etils import epath

from vit_jax import accounting
from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax.data import exclusion, ops
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
# Kinds of data whose specs hold no path. All others are taken to hold one.
_OWN = ('digits', 'shapes', 'vtab')
_PUBLIC = ('tfds', 'hf')
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
  run = _Run(origin)
  front = {
    **({'license': license_} if license_ else {}),
    'pipeline_tag': 'image-classification',
    'library_name': 'transformers',
    'tags': ['vision', 'vit', 'vit_jax', 'jax'],
    **({'datasets': run.public} if run.public else {}),
    'metrics': ['accuracy'],
    **run.model_index(name),
  }
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
    *run.sections(model, image_size, channels),
  ]
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
  lines = [f'1. {description.decoding(prepared)}']
  lines += [
    f'{number}. {description.operation(op)}'
    for number, op in enumerate(prepared.ops, start=2)
  ]
  lines.append(f'{len(lines) + 1}. maps 0 to 255 to [-1, 1]')
  return (
    '## Preprocessing\n\nThe evaluation prepared images as follows:\n\n'
    + '\n'.join(lines)
    + '\n\n`preprocessor_config.json` makes transformers resize images to the'
    ' final size at once, with antialiasing. Results can differ a little.'
  )


@dataclasses.dataclass(frozen=True)
class _Set:
  """A data set as anybody may read it.

  Attributes:
    name: of a public data set, or of the last folder of a path.
    is_public: whether it is on the Hugging Face Hub or in TFDS.
    is_reduced: whether a list of examples is left out.
  """

  name: str
  is_public: bool
  is_reduced: bool


def _set(spec: str) -> _Set:
  """Returns the data set of a data spec; of a path, the last folder only."""
  try:
    base, excluded = exclusion.split(spec)
  except ValueError:  # Of another version.
    return _Set('unknown', False, False)
  kind, _, rest = base.partition(':')
  if kind == 'mix':  # Of several data sets, in versions before.
    return _Set('unknown', False, False)
  is_public = kind in _PUBLIC and not _is_path(kind, rest)
  if is_public:
    name = rest
  elif kind in _OWN:
    name = base
  else:
    name = _last_folder(rest) or kind
  return _Set(name, is_public, bool(excluded))


def _is_path(kind: str, name: str) -> bool:
  """Whether the name of a data set of TFDS or the Hub is a path instead."""
  return (
    name.startswith(('/', '.', '~'))
    or '://' in name
    or (kind == 'hf' and name.count('/') > 1)
    # The part after a colon is a config.
    or (kind == 'hf' and epath.Path(name.partition(':')[0]).exists())
  )


def _last_folder(path: str) -> str:
  """Returns the last folder or file of a path; '' if that would tell of a user.

  A bucket, a home directory and a place relative to the current folder have no
  name of their own. A version of prepared data has that of the data set.
  """
  scheme, remote, rest = path.rpartition('://')
  names = [name for name in rest.split('/') if name not in ('', '.', '..')]
  if remote and scheme != 'file':
    names = names[1:]
  while names and re.fullmatch(r'\d+\.\d+\.\d+', names[-1]):
    names.pop()
  above = names[:-1] if path.startswith('/') else None
  if not names or names[-1].startswith('~') or above in (['home'], ['Users']):
    return ''
  return names[-1]


class _Run:
  """What a work directory tells; nothing if the weights are not a run's."""

  def __init__(self, origin: str):
    path = epath.Path(origin)
    found = path.name.isdigit() and path.parent.name == checkpoint_lib.FOLDER
    workdir = path.parent.parent
    config = (config_lib.load(workdir) or {}) if found else {}
    section = config.get('data') or {}
    # Converted weights are kept like runs, but nothing trained them here.
    self._trained = bool(section.get('dataset'))
    self._config = config
    self._step = int(path.name) if found else 0
    self._workdir = workdir
    self._set = _set(str(section.get('dataset') or ''))
    # Without a config and a version, as the Hub has it.
    public = [self._set.name.partition(':')[0]]
    self.public = public if self._set.is_public else []
    self.dataset = self._set.name
    rows = metrics.read(workdir) if self._trained else []
    self._metrics = {
      key: value
      for row in rows
      if row['step'] == self._step
      for key, value in row.items()
      if key.rpartition('/')[0] in config['evals']
      and key.rpartition('/')[2] in (*_METRICS, 'loss')
    }

  def model_index(self, name: str) -> dict[str, Any]:
    """Returns the results as Hugging Face's cards have them; {} without any."""
    found = []
    for key, value in self._metrics.items():
      evaluation, _, metric = key.rpartition('/')
      # Results on other data must not pass for those on the run's own.
      own = self._config['data']['dataset']
      other = self._config['evals'][evaluation].get('dataset')
      if metric in _METRICS and other in (None, '', own):
        split = self._config['evals'][evaluation].get('split')
        entry = {
          'type': 'accuracy',
          'name': f'{evaluation} {metric}',
          'value': round(value, 6),
        }
        data = {'type': self.dataset, 'name': self.dataset}
        if split:
          data['split'] = split
        found.append(
          {
            'task': {'type': 'image-classification'},
            'dataset': data,
            'metrics': [entry],
          }
        )
    return {'model-index': [{'name': name, 'results': found}]} if found else {}

  def sections(
    self, model: nn.Module, image_size: tuple[int, int], channels: int
  ) -> list[str]:
    """Returns the sections on data, results, settings, cost and hardware."""
    if not self._trained:
      return []
    flat = config_lib.flatten(self._config)
    sections = [f'## Data\n\n{self.dataset}']
    if self._set.is_reduced:
      sections.append('A list of examples was left out.')
    if self._metrics:
      rows = [(key, f'{value:.4f}') for key, value in self._metrics.items()]
      sections.append('## Results\n\n' + _table('metric', rows))
    rows = [(key, f'`{flat[key]}`') for key in _SETTINGS if key in flat]
    sections.append('## Training\n\n' + _table('setting', rows))
    sections.append(self._cost(model, image_size, channels))
    if launches := environment.read(self._workdir):
      sections.append(_hardware(launches))
    return sections

  def _cost(self, model, image_size, channels) -> str:
    images = self._step * self._config['data']['batch_size']
    macs = accounting.forward_macs(model, image_size, channels)
    exaflops = accounting.exaflops(macs, images, 1)
    days = exaflops * 1e18 / chips.CHIPS['v3'].peak_flops / _DAY
    return (
      f'## Cost\n\n{exaflops:.3g} exaFLOPs: {images:,} images of'
      f' {macs / 1e9:.3g} GMACs, forward and backward. At peak'
      f' speed this takes {days:.3g} TPUv3-core-days, in practice more. These'
      ' figures are computed, not measured. Earlier runs whose weights'
      ' this run started from are not included.'
    )


def _hardware(launches: list[dict[str, Any]]) -> str:
  kinds = dict.fromkeys(
    f'{line.get("devices", "?")} x {line.get("device_kind", "unknown")}'
    for line in launches
  )
  versions = [
    (key, str(launches[-1][key])) for key in _LIBRARIES if key in launches[-1]
  ]
  return f'## Hardware and versions\n\n{"; ".join(kinds)}\n\n' + _table(
    'library', versions
  )


def _table(first: str, rows: list[tuple[str, str]]) -> str:
  lines = [f'| {first} | value |', '| --- | --- |']
  # A | would end a cell.
  cells = ((key, value.replace('|', '\\|')) for key, value in rows)
  lines += [f'| {key} | {value} |' for key, value in cells]
  return '\n'.join(lines)
