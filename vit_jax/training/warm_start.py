"""Starts a run from other weights (section 3.2 of the paper).

The weights come from another run, a released file or a Hugging Face folder. The
pre-trained head is left out, position embeddings are interpolated to the new
grid of patches, and everything else must fit: see `interop.fitting`.
"""

import re
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import ml_collections
import numpy as np
from absl import logging
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import interop, models, sharding
from vit_jax.checkpoint import fingerprint
from vit_jax.interop import catalog, hub, inference
from vit_jax.interop.fitting import fit
from vit_jax.models import lora, position
from vit_jax.models.model_options import OPTIONS
from vit_jax.runtime import distributed
from vit_jax.training import program as program_lib
from vit_jax.workdir import files

# A run takes over all options of a model with its first weights but these.
_OWN = (
  *('num_classes', 'representation_size', 'head_bias', 'head_stddev'),
  *('position_stddev', 'dropout_rate'),
  *('stochastic_depth', 'stochastic_depth_rule'),
  *('attention_implementation', 'scan', 'dtype', 'remat'),
)
SIZES = tuple(name for name in OPTIONS if name not in _OWN)

# From the released fine-tuning configs. A hybrid has the rate of its ViT: the
# paper says that both are trained alike, and compares them (Figure 5, Table 6).
# Differs from the released configs: R50+ViT-B/16 and R50+ViT-L/32, the only
# hybrids among them, have 0.1.
_DROPOUT_RATE = {'ViT-L/16': 0.1, 'ViT-H/14': 0.1}


def dropout_rate(model: str) -> float:
  """Returns a model's dropout rate in fine-tuning; 0 if it is not listed."""
  return _DROPOUT_RATE.get(re.sub(r'^R\d*\+', '', model), 0.0)


def resolve_path(path: str, workdir: epath.PathLike) -> epath.Path:
  """Returns the path of the weights that `init.checkpoint` names.

  Args:
    path: `init.checkpoint`, pinned or not. `stage:NAME` is the run NAME beside
      this one. A name in `catalog.names()` is the file that it stands for, and
      `hf://OWNER/NAME` is downloaded. Anything else is a path.
    workdir: the work directory of the run that starts.

  Returns:
    The absolute path, which need not exist.
  """
  if hub.is_address(path):
    return hub.download(path)
  kind, _, name = path.partition(':')
  if kind == 'stage':
    return epath.Path(workdir).parent / name
  absolute = files.absolute(path)
  if path in catalog.names() and not absolute.exists():
    return catalog.path_of(path)
  return absolute


def pin(
  path: str, workdir: epath.PathLike, key: str = 'init.checkpoint'
) -> str:
  """Returns the exact checkpoint that a run starts from, for its `config.json`.

  Without pinning, a run that died before its first save could start again from
  other weights, if the run that it starts from saved newer ones since.

  Args:
    path: `init.checkpoint` as the user gave it: '', a run or checkpoint,
      `stage:NAME`, a `.npz` file, a Hugging Face folder, or a name in
      `catalog.names()`.
    workdir: the work directory of the run that starts. If its `config.json`
      already names a checkpoint of `path`, that one is returned.
    key: the key of the config that holds `path`.

  Returns:
    '', an absolute path, or `stage:NAME/...`. The path of a run ends with
    `checkpoints/STEP`.

  Raises:
    ValueError: there are no weights at `path`.
  """
  if not path:
    return ''
  saved = config_lib.flatten(config_lib.load(workdir) or {}).get(key) or ''
  if path == saved:
    return saved
  if path.startswith('stage:'):
    found = checkpoint_lib.find(resolve_path(path, workdir))
    return f'stage:{found.relative_to(epath.Path(workdir).parent)}'
  if hub.is_address(path):
    # The path in this machine's cache means nothing to others.
    same = saved.startswith(f'{path}@')
    return saved if same else hub.pinned(path, hub.download(path))
  given = str(resolve_path(path, workdir))
  if saved == given or saved.startswith(given + '/'):
    return saved
  return str(interop.locate(path))


def with_model(
  config: ml_collections.ConfigDict, workdir: epath.PathLike
) -> ml_collections.ConfigDict:
  """Takes the model, or its sizes, from the weights that a run starts from.

  Args:
    config: a config whose `init.checkpoint` is pinned; not changed.
    workdir: the work directory of the run that starts.

  Returns:
    A copy of the config. If the model's name was `auto`, the copy names the
    model of the weights, with its fine-tuning dropout rate if the config sets
    none. If the name was `auto`, or if the weights are of a run of the same
    model, the keys in `SIZES` that the config leaves open are taken over. If
    `init.preprocess` was `auto`, so are the image size and the preparation of
    images.

  Raises:
    ValueError: the name is `auto`, and there are no weights, or they do not
      tell their model.
  """
  config = config.copy_and_resolve_references()
  takes_images = config.init.preprocess == config_lib.AUTO
  if takes_images:
    config.init.preprocess = ''
  named = config.model.name != config_lib.AUTO
  if not config.init.checkpoint:
    if not named:
      raise ValueError(
        f'model.name={config.model.name!r} means the model of init.checkpoint,'
        ' which is not set: name the model.'
      )
    return config
  path = resolve_path(config.init.checkpoint, workdir)
  own = config_lib.load(workdir) or {}
  # The run that the weights came from may be gone by now.
  again = own.get('init', {}).get('checkpoint') == config.init.checkpoint
  run = checkpoint_lib.workdir_of(path)
  saved = config_lib.load(run) or (own if again else {})
  trained = saved.get('model', {})
  if takes_images and not run:
    _take_images(config, path, own if again else None)
  if not named:
    trained = trained or model_of(path)
    config.model.name = models.paper_name(trained['name'])
    if config.model.dropout_rate is None and 'dropout_rate' in models.options(
      config.model.name
    ):
      config.model.dropout_rate = dropout_rate(config.model.name)
    if config.model.dropout_rate:
      config.dropout_rng = 'rbg'
    logging.info('%s holds weights of a %s.', path, config.model.name)
  elif not trained or models.paper_name(trained['name']) != models.paper_name(
    config.model.name
  ):
    return config
  taken = {
    key: trained[key]
    for key in SIZES
    if config.model[key] is None and trained.get(key) is not None
  }
  for key, value in taken.items():
    config.model[key] = tuple(value) if isinstance(value, list) else value
  if taken:
    listed = ', '.join(f'{key}={value}' for key, value in taken.items())
    logging.info('Taken over from %s: %s.', path, listed)
  return config


def _take_images(
  config: ml_collections.ConfigDict,
  path: epath.Path,
  own: Mapping[str, Any] | None,
) -> None:
  """Sets image size and preparation to those of a folder; changes the config.

  Args:
    config: its `init.preprocess` is ''.
    path: the weights.
    own: the saved config of the run, if it goes on; the weights may be gone.
  """
  if own:
    operations, size = own['init'].get('preprocess', ''), own['image_size']
    decoding = own['data']
  else:
    weights = interop.read(path)
    operations = weights.preprocessing if weights.layout else ''
    size = weights.prepared_size or weights.image_size
    decoding = weights.decoding
  if not operations:
    return
  config.init.preprocess, config.image_size = operations, tuple(size)
  prepare_as(config, operations, decoding)
  # They were trained on crops of torchvision, with this interpolation.
  if config.data.preprocess == 'inception_crop|flip':
    method = re.search(r"method='(\w+)'", operations)
    words = f'method={method[1]!r}' if method else ''
    config.data.preprocess = f'random_resized_crop({words})|flip'


def prepare_as(
  config: ml_collections.ConfigDict,
  operations: str,
  decoding: Mapping[str, Any],
) -> None:
  """Lets the default preprocessing of evaluations give way to the weights'.

  Args:
    config: changed.
    operations: see `data/ops`.
    decoding: how images are decoded before; keys of `config.data` count.
  """
  default = config_lib.evaluation('').preprocess
  names = [k for k, v in config.evals.items() if v.preprocess == default]
  for name in names:
    config.evals[name].preprocess = operations
  if names and operations != default:
    config.data.jpeg_dct = decoding.get('jpeg_dct', config.data.jpeg_dct)
    listed = ', '.join(names)
    logging.info(
      'evals %s prepare images as the weights do: %s.', listed, operations
    )


def model_of(path: epath.PathLike) -> dict[str, Any]:
  """Returns the `name` and the overrides of the model of a file's weights.

  Raises:
    ValueError: there are no weights, or they do not tell their model.
  """
  weights = interop.read(path)
  model = weights.model
  try:
    if model is None:
      arrays = {'head/bias': np.zeros(1), **weights.params}
      model, _ = interop.infer_model(arrays, weights.image_size)
    name, overrides = inference.describe(model)
  except ValueError as error:
    raise ValueError(
      f'{path} does not tell which model its weights are of: {error} Name the'
      f' model instead of {config_lib.AUTO!r}.'
    ) from error
  return {'name': name} | overrides


def load(
  path: epath.PathLike, program: program_lib.Program, *, new_head: bool
) -> Any:
  """Reads weights, fits them to a program's model, puts them on the devices.

  No device ever holds more than its part. Low-rank additions are new.

  Args:
    path: see `interop.read`; every process reads it.
    program: the program that starts from them.
    new_head: whether the head is new.

  Returns:
    The parameters.

  Raises:
    ValueError: there are no weights, or they do not fit, or the processes read
      different ones. The message lists the arrays that are missing, extra, of
      the wrong shape or not finite.
  """
  weights, model = interop.read(path), program.model
  shapes = dict(program.shapes.params)
  additions = {lora.FOLDER: shapes.pop(lora.FOLDER, {})}
  params, report = fit(
    weights,
    shapes,
    model,
    position.stored_grid(model, tuple(program.config.image_size)),
    new_head=new_head,
    option='--config.init.new_head=True',
  )
  if jax.process_count() > 1:
    distributed.check_same({'initial weights': fingerprint.digests(params)})
  placed = sharding.put_tree(params, program.layout.params(shapes))
  flat = flax.traverse_util.flatten_dict(placed, sep='/')
  new = *report.new, *flax.traverse_util.flatten_dict(additions, sep='/')
  if new:
    made = program.init_params(new)
    flat |= flax.traverse_util.flatten_dict(made, sep='/')
  line = f'Weights from {weights.origin}: {report}.'
  if weights.preprocessing:
    line += (
      ' Their own evaluation prepares images by'
      f' {weights.preprocessing!r}, which evals.NAME.preprocess can name.'
    )
  logging.info('%s', line)
  return flax.traverse_util.unflatten_dict(flat, sep='/')
