"""Converts weights: `python -m vit_jax.convert --from=PATH --to=PATH`.

  --from=runs/birds --to=birds.npz           a run, with the released names
  --from=runs/birds --to=birds_hf --license=mit
                                             for Hugging Face, with a model card
  --from=augreg/B_16 --to=b16_hf             a released file by its name
  --from=birds.npz --to=birds512.npz --resolution=512
  --from=birds.npz --to=birds512.npz --resolution=512 --preprocess=resize
                                             if the file names its own size
  --from=hf://google/vit-base-patch16-224 --to=b16.npz
                                             downloads from there

--to is a .npz file if it ends with .npz, and otherwise a Hugging Face folder.
--from is a run's directory or one of its checkpoints, a .npz file, a Hugging
Face folder, hf://OWNER/NAME[/FILE][@REVISION], or one of the names in
vit_jax/interop/catalog.py, whose file must be on this machine. The model and
its image size come from the flags, or from the files beside the weights, or
else from the arrays' names and shapes. An array that is missing, left over, of
the wrong shape or not finite is an error.
"""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
from absl import flags

from vit_jax import interop, loaded, models
from vit_jax.export import card
from vit_jax.interop import (
  hub,
  huggingface,
  inference,
  saving,
  sources,
  weight_files,
)
from vit_jax.runtime import command_line, printable
from vit_jax.workdir import files

_FROM = flags.DEFINE_string(
  'from', None, 'Weights to read: a path, or the name of a released file.'
)
_TO = flags.DEFINE_string('to', None, 'File or directory to write.')
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
_OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Replace the existing file or directory --to.'
)


def main():
  names = None
  if _CLASS_NAMES.value:
    names = weight_files.class_names(_CLASS_NAMES.value)
  convert(
    flags.FLAGS['from'].value,
    _TO.value,
    model_name=_MODEL.value,
    image_size=command_line.parse_size('image_size', _IMAGE_SIZE.value),
    resolution=command_line.parse_size('resolution', _RESOLUTION.value),
    preprocess=_PREPROCESS.value,
    class_names=names,
    overwrite=_OVERWRITE.value,
    license_=_LICENSE.value,
  )


def convert(
  source: str,
  target: str,
  *,
  model_name: str | None = None,
  image_size: tuple[int, int] | None = None,
  resolution: tuple[int, int] | None = None,
  preprocess: str | None = None,
  class_names: Sequence[str] | None = None,
  overwrite: bool = False,
  license_: str = '',
) -> None:
  """Reads, checks and writes weights; see the flags. Prints a summary.

  Raises:
    ValueError: the source cannot be read or fits no model, its operations give
      images of another size, the target exists, or its format cannot express
      the model.
  """
  if hub.is_address(target):
    raise ValueError(
      f'--to={target}: write a folder, and upload it with'
      f' hf upload {target.removeprefix(hub.SCHEME)} FOLDER'
    )
  to = files.absolute(target)
  is_folder = to.suffix != '.npz'
  if is_folder:
    kind, is_same = 'Hugging Face folder', huggingface.is_folder(to)
  else:
    kind, is_same = '.npz file', not to.is_dir()
  weight_files.check_target(to, overwrite, kind, is_same)
  read = interop.read(source)
  if 'head/bias' not in read.params:
    raise ValueError(
      f'{read.origin} has no head, and only models with a head are converted.'
    )
  model, old_size = sources.model_and_size(
    read, model_name and _named(model_name, read), image_size
  )
  if is_folder:
    huggingface.check_savable(model)
  size = resolution or old_size
  read = dataclasses.replace(
    read,
    model=model,
    image_size=old_size,
    class_names=tuple(class_names or read.class_names),
    preprocessing=preprocess or read.preprocessing,
  )
  if read.preprocessing and (preprocess or resolution):
    loaded.prepared(read, read.preprocessing, size)
  params, report = interop.fit_weights(read, model, size)
  save = saving.save_huggingface if is_folder else saving.save_npz
  save(to, params, model, image_size=size, **read.described)
  written = dataclasses.replace(read, image_size=size)
  if is_folder:
    card.write(to, written, license_)
  _print_summary(written, to, report)


def _print_summary(read, to, report) -> None:
  height, width = read.image_size
  # The report has names from the file, which may hold control characters.
  print(printable.text(f'Read {read.origin}: {report}.'))
  print(
    f'Wrote {to}: {inference.title(read.model)}; {read.model.num_classes}'
    f' classes, {"named" if read.class_names else "without names"};'
    f' {height}x{width} px.'
  )
  assumed = {'gelu': 'tanh', 'norm_epsilon': 1e-6, 'rotary': None}
  differing = {k: v for k, v in read.settings.items() if assumed.get(k, v) != v}
  if differing and to.suffix == '.npz':
    print(
      f'Only {to.name}.json says that the model has {differing}: programs that'
      f' do not read it assume {assumed}.'
    )


def _named(spec: str, read: interop.Weights) -> nn.Module:
  """Returns the model of --model, with the source's options as defaults."""
  sizes = {'num_classes': read.params['head/bias'].size}
  if 'pre_logits/bias' in read.params:
    sizes['representation_size'] = read.params['pre_logits/bias'].size
  known = models.options(spec.partition(':')[0])
  settings = {k: v for k, v in read.settings.items() if k in known}
  return models.parse(spec, **sizes | settings)


if __name__ == '__main__':
  command_line.run(main, required=('from', 'to'))
