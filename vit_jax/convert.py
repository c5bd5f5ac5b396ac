"""Converts weights: `python -m vit_jax.convert --from=PATH --to=PATH`.

  --from=runs/birds --to=birds.npz           a run, with the released names
  --from=runs/birds --to=birds_hf --license=mit
                                             for Hugging Face, with a model card
  --from=ViT-B_16.npz --to=runs/b16 --format=run
                                             a run to start from
  --from=augreg/B_16 --to=b16_hf             a released file by its name
  --from=birds.npz --to=birds512.npz --resolution=512
  --from=birds.npz --to=birds512.npz --resolution=512 --preprocess=resize
                                             if the file names its own size
  --from=runs/birds --to=hf://me/birds       uploads to the Hugging Face Hub
  --from=hf://google/vit-base-patch16-224 --to=b16.npz
                                             downloads from there

--from is a run's directory or one of its checkpoints, a .npz file, a Hugging
Face folder, hf://OWNER/NAME[/FILE][@REVISION], or one of the names in
vit_jax/interop/catalog.py, whose file must be on this machine. The model and
its image size come from the flags, or from the files beside the weights, or
else from the arrays' names and shapes. An array that is missing, left over, of
the wrong shape or not finite is an error.
"""

import dataclasses
import re
import tempfile
from collections.abc import Sequence

import flax.linen as nn
from absl import flags
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import interop, loaded, models
from vit_jax.export import card
from vit_jax.interop import (
  hub,
  huggingface,
  huggingface_export,
  inference,
  run_export,
  weight_files,
  weights,
)
from vit_jax.models import position
from vit_jax.runtime import command_line, printable
from vit_jax.workdir import files

# A directory with one of these endings is surely a mistake.
_FILES = ('.npy', '.safetensors', '.bin', '.pt', '.pth', '.h5', '.msgpack')
FORMATS = ('auto', 'npz', 'huggingface', 'run')

_FROM = flags.DEFINE_string(
  'from', None, 'Weights to read: a path, or the name of a released file.'
)
_TO = flags.DEFINE_string('to', None, 'File or directory to write.')
_FORMAT = flags.DEFINE_enum(
  'format',
  'auto',
  FORMATS,
  'What to write; auto: .npz if --to ends with it, else a Hugging Face folder.',
)
_MODEL = flags.DEFINE_string(
  'model',
  None,
  'The model of --from if it is not known, as NAME[:KEY=VALUE,...]: ViT-B/16,'
  ' or ViT-B/16:gelu=exact.',
)
_IMAGE_SIZE = flags.DEFINE_string(
  'image_size',
  None,
  'Image size of the position embeddings of --from if it is not known, in'
  ' pixels, as 384 or HEIGHTxWIDTH.',
)
_RESOLUTION = flags.DEFINE_string(
  'resolution',
  None,
  'Image size of the position embeddings of --to, in pixels, as 512 or'
  ' HEIGHTxWIDTH.',
)
_PREPROCESS = flags.DEFINE_string(
  'preprocess',
  None,
  'Operations on each image, as in vit_jax/data/ops, that are recorded in'
  ' --to; by default those of --from.',
)
_CLASS_NAMES = flags.DEFINE_string(
  'class_names', None, 'Text file with one class name on each line.'
)
_LICENSE = flags.DEFINE_string(
  'license',
  '',
  'The licence of the weights, such as apache-2.0, for the model card of a'
  ' Hugging Face folder.',
)
_PRIVATE = flags.DEFINE_bool(
  'private',
  True,
  'Whether a repository that --to=hf://... creates is private.',
)
_OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Replace the existing file, directory or repository --to.'
)


def main():
  image_size = command_line.parse_size('image_size', _IMAGE_SIZE.value)
  resolution = command_line.parse_size('resolution', _RESOLUTION.value)
  names = None
  if _CLASS_NAMES.value:
    names = weight_files.class_names(_CLASS_NAMES.value)
  convert(
    flags.FLAGS['from'].value,
    _TO.value,
    format_=_FORMAT.value,
    model_name=_MODEL.value,
    image_size=image_size,
    resolution=resolution,
    preprocess=_PREPROCESS.value,
    class_names=names,
    overwrite=_OVERWRITE.value,
    license_=_LICENSE.value,
    private=_PRIVATE.value,
  )


def convert(
  source: str,
  target: str,
  *,
  format_: str = 'auto',
  model_name: str | None = None,
  image_size: tuple[int, int] | None = None,
  resolution: tuple[int, int] | None = None,
  preprocess: str | None = None,
  class_names: Sequence[str] | None = None,
  overwrite: bool = False,
  license_: str = '',
  private: bool = True,
) -> None:
  """Reads, checks and writes weights; see the flags. Prints a summary.

  Raises:
    ValueError: the source cannot be read or fits no model, its operations give
      images of another size, the target exists, or its format cannot express
      the model.
  """
  if hub.is_address(target):
    _check_hub_format(target, format_)
    address = hub.check_target(target, overwrite)
    with tempfile.TemporaryDirectory() as folder:
      convert(
        source,
        folder,
        format_='huggingface',
        model_name=model_name,
        image_size=image_size,
        resolution=resolution,
        preprocess=preprocess,
        class_names=class_names,
        license_=license_,
      )
      commit = hub.upload(epath.Path(folder), address, private=private)
    print(f'Uploaded it as {commit}.')
    return
  to = weight_files.absolute(target)
  if format_ == 'auto':
    format_ = 'npz' if to.suffix == '.npz' else 'huggingface'
  check_target(to, format_, overwrite)
  card.check_license(license_)

  def understood(read):
    model, size = _model_and_size(read, model_name, image_size)
    if format_ == 'huggingface':
      huggingface_export.check_savable(model)
    operations = preprocess or read.preprocessing
    read = dataclasses.replace(
      read, grid=position.grid_of(model, size), preprocessing=operations
    )
    if operations and (preprocess or resolution):
      loaded.prepared(read, operations, resolution or size)
    return read, model, resolution or size

  # Checks the shapes before the values of a file are read.
  read = interop.read(
    source,
    check=lambda w: interop.check_weights(*understood(w)),
  )
  read, model, size = understood(read)
  params, report = interop.fit_weights(read, model, size)
  described = {
    'image_size': size,
    'class_names': class_names or read.class_names,
    'preprocessing': read.preprocessing,
    'decoding': read.decoding,
    'loss': read.loss,
  }
  if format_ == 'npz':
    interop.save_npz(to, params, model, **described)
  elif format_ == 'run':
    run_export.save_run(to, params, model, **described)
  else:
    interop.save_huggingface(to, params, model, **described)
    card.write(
      to,
      model,
      read.origin,
      image_size=size,
      channels=inference.channels(read.params),
      preprocessing=read.preprocessing,
      decoding=read.decoding,
      license_=license_,
    )
  _print_summary(read, to, format_, model, report, described)


def _check_hub_format(target: str, format_: str) -> None:
  if format_ not in ('auto', 'huggingface'):
    raise ValueError(
      f'--to={target} with --format={format_}: only Hugging Face folders are'
      ' uploaded. Remove --format.'
    )


def _print_summary(read, to, format_, model, report, described) -> None:
  name, overrides = inference.describe(model)
  options = ''.join(f', {k}={v}' for k, v in overrides.items())
  height, width = described['image_size']
  # The report has names from the file, which may hold control characters.
  print(printable.text(f'Read {read.origin}: {report}.'))
  print(
    f'Wrote {to} ({format_}): {name}{options}; {model.num_classes} classes,'
    f' {"named" if described["class_names"] else "without names"};'
    f' {height}x{width} px.'
  )
  operations = described['preprocessing']
  if format_ == 'huggingface' and re.search('crop|resize_small', operations):
    print(
      'The evaluation differs: transformers only resizes images to'
      f' {height}x{width} px, while the source applied {operations!r}.'
    )
  assumed = {'gelu': 'tanh', 'norm_epsilon': 1e-6}
  differing = {
    k: v
    for k, v in weights.settings_of(model).items()
    if assumed.get(k, v) != v
  }
  if format_ == 'npz' and differing:
    print(
      f'Only {to.name}.json says that the model has {differing}: programs that'
      f' do not read it assume {assumed}.'
    )


def check_target(to: epath.Path, format_: str, overwrite: bool) -> None:
  """Raises ValueError if `to` has a wrong name or must not be replaced."""
  if (format_ == 'npz') != (to.suffix == '.npz'):
    raise ValueError(
      f'--to={to} with --format={format_}: a file of format npz ends with .npz,'
      ' and other formats do not. Change --to or --format.'
    )
  if to.suffix in _FILES:
    raise ValueError(
      f'--to={to}: format {format_} is a directory, but the name is that of a'
      ' file. To write a file, let its name end with .npz.'
    )
  if not to.exists() or (to.is_dir() and not any(to.iterdir())):
    return
  if not overwrite:
    raise ValueError(f'{to} exists; --overwrite replaces it.')
  if to.is_dir() != (format_ != 'npz'):
    raise ValueError(
      f'{to} is {"a directory" if to.is_dir() else "a file"}, which format'
      f' {format_} does not replace: remove it, or choose another --to.'
    )
  if format_ == 'huggingface' and not huggingface.is_folder(to):
    raise ValueError(
      f'{to} is not a Hugging Face folder, so it is not replaced: choose'
      ' another --to.'
    )
  if format_ == 'run':
    step = checkpoint_lib.latest_step(to)
    known = {config_lib.FILE, checkpoint_lib.FOLDER, files.CLASS_NAMES}
    if step or {path.name for path in to.iterdir()} - known:
      raise ValueError(
        f'{to} holds more than converted weights, perhaps a run, so it is not'
        ' replaced: choose another --to.'
      )


def _model_and_size(
  read: interop.Weights,
  name: str | None,
  image_size: tuple[int, int] | None,
) -> tuple[nn.Module, tuple[int, int]]:
  """Returns the source's model and image size: given, described or inferred."""
  model = read.model
  image_size = image_size or read.image_size
  if name:
    if 'head/bias' not in read.params:
      raise ValueError(
        f'{read.origin} has no head, and only models with a head are converted.'
      )
    model = _named(name, read)
  if model is not None and image_size is not None:
    return model, image_size
  inferred, image_size = interop.infer_model(read.params, image_size)
  return model or inferred, image_size


def _named(spec: str, read: interop.Weights) -> nn.Module:
  """Returns the model of --model, with the source's options as defaults."""
  sizes = {
    key: read.params[name].shape[0]
    for key, name in (
      ('num_classes', 'head/bias'),
      ('representation_size', 'pre_logits/bias'),
    )
    if name in read.params and read.params[name].ndim
  }
  known = models.options(spec.partition(':')[0])
  settings = {k: v for k, v in read.settings.items() if k in known}
  return models.parse(spec, **{'num_classes': 1} | sizes | settings)


if __name__ == '__main__':
  command_line.run(main, required=('from', 'to'))
