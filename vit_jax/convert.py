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
  --from=birds.npz --to=birds_timm --layout=timm
                                             for timm

--to is a .npz file if it ends with .npz, and otherwise a Hugging Face folder,
for transformers or timm. --layout says whose names its arrays have: without it,
those of --from if that is such a folder, or else the first ones that can
express the model. Weights without a head are converted, too, and get none.

--from is a run's directory or one of its checkpoints, a .npz file, a Hugging
Face folder, hf://OWNER/NAME[/FILE][@REVISION], or one of the names in
vit_jax/interop/catalog.py, whose file must be on this machine. The model and
its image size come from the flags, or from the files beside the weights, or
else from the arrays' names and shapes. An array that is missing, left over, of
the wrong shape or not finite is an error.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
from absl import flags

from vit_jax import interop, loaded, models
from vit_jax.export import card
from vit_jax.interop import (
  families,
  fitting,
  hub,
  huggingface,
  inference,
  saving,
  sources,
  timm_layouts,
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
_LAYOUT = flags.DEFINE_string(
  'layout',
  '',
  'The layout of a Hugging Face folder, such as vit, dinov2 or timm: a key of'
  ' vit_jax/interop/families.OTHERS. By default that of --from, or the first'
  ' that can express the model.',
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
    layout=_LAYOUT.value,
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
  layout: str = '',
) -> None:
  """Reads, checks and writes weights; see the flags. Prints a summary.

  Raises:
    ValueError: the source cannot be read or fits no model, its operations give
      images of another size, the target exists, its format or layout cannot
      express the model, or a layout is given for a file.
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
    if layout:
      raise ValueError(f'--layout={layout} is for folders, but --to is {to}.')
  weight_files.check_target(to, overwrite, kind, is_same)
  read = interop.read(source)
  model, old_size = sources.model_and_size(
    read, model_name and _named(model_name, read), image_size
  )
  has_head = 'head/kernel' in read.params
  if is_folder:
    layout = layout or read.layout
    layout = layout or families.layout_of(model, read.params)
    families.check(layout, model, has_head=has_head)
  size = resolution or old_size
  if layout in timm_layouts.FAMILIES and not resolution:
    # timm knows one size, that of the images.
    size = read.prepared_size or old_size
  read = dataclasses.replace(
    read,
    model=model,
    image_size=old_size,
    class_names=tuple(class_names or read.class_names),
    preprocessing=preprocess or read.preprocessing,
    layout=layout,
    # It is that of the source's own operations.
    prepared_size=None
    if preprocess or size != old_size
    else read.prepared_size,
  )
  if read.preprocessing and (preprocess or resolution):
    loaded.prepared(read, read.preprocessing, size)
  params, report = interop.fit_weights(read, model, size, new_head=not has_head)
  if not has_head:
    params, report = _without_head(params, report)
  save = saving.save_huggingface if is_folder else saving.save_npz
  described = read.described | ({'layout': layout} if is_folder else {})
  save(to, params, model, image_size=size, **described)
  written = dataclasses.replace(read, image_size=size)
  if is_folder:
    card.write(to, written, license_)
  _print_summary(written, to, report)


def _without_head(
  params: dict[str, Any], report: fitting.Report
) -> tuple[dict[str, Any], fitting.Report]:
  """Takes a new head away from parameters and from the report on them.

  Raises:
    ValueError: other parameters are new, too.
  """
  heads = ('head', 'head_dist')
  if new := [k for k in report.new if k.partition('/')[0] not in heads]:
    raise ValueError(
      f'The weights lack {", ".join(new)}, which the model has: name another'
      ' --model.'
    )
  params = {k: v for k, v in params.items() if k not in heads}
  return params, dataclasses.replace(report, new=())


def _print_summary(read, to, report) -> None:
  height, width = read.image_size
  head = 'no head'
  if 'head/kernel' in read.params:
    names = 'named' if read.class_names else 'without names'
    head = f'{read.model.num_classes} classes, {names}'
  # The report has names from the file, which may hold control characters.
  print(printable.text(f'Read {read.origin}: {report}.'))
  print(
    f'Wrote {to}: {inference.title(read.model)}; {head}; {height}x{width} px'
    + (f'; layout {read.layout}.' if read.layout else '.')
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
  sizes = {'num_classes': inference.num_classes(read.params)}
  if 'pre_logits/bias' in read.params:
    sizes['representation_size'] = read.params['pre_logits/bias'].size
  known = models.options(spec.partition(':')[0])
  settings = {k: v for k, v in read.settings.items() if k in known}
  return models.parse(spec, **sizes | settings)


if __name__ == '__main__':
  command_line.run(main, required=('from', 'to'))
