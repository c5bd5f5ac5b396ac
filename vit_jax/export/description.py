"""`model.json`: what a user of the exported files must know."""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

import vit_jax
from vit_jax.data import ops
from vit_jax.data.ops import augment, geometry, resizing
from vit_jax.export.program import Program
from vit_jax.interop import inference, weight_files

FILE = 'model.json'
FORMAT_VERSION = 1

_PADDING = {'zeros': 'zeros', 'reflect': 'the image mirrored'}
_RESIZES = {
  (False, 'bilinear'): (
    'interpolates between the two nearest pixel centres along each axis'
    ' (half-pixel centres, no antialiasing), rounds to uint8'
  ),
  (True, 'bilinear'): (
    'takes the mean of the pixels that a new one covers if both sides shrink,'
    ' else interpolates between the two nearest pixel centres along each axis'
    ' (half-pixel centres); rounds to uint8'
  ),
  (False, 'area'): (
    'takes the mean of the pixels that a new one covers, truncates to uint8'
  ),
} | {
  (False, method): f"as Pillow's resize with Resampling.{resample.name}"
  for method, resample in resizing.PILLOW.items()
}


def describe(program: Program) -> dict[str, Any]:
  """Returns the description of a program, without its files."""
  subject = program.subject
  name, overrides = inference.describe(subject.model)
  classes = subject.model.num_classes
  return {
    'format_version': FORMAT_VERSION,
    'versions': {'vit_jax': vit_jax.__version__, 'jax': jax.__version__},
    'model': {'name': name, 'overrides': overrides},
    'dtype': program.dtype,
    'input': {
      'shape': list(program.input_shape),
      'dtype': 'uint8',
      'meaning': (
        'RGB or grey pixels from 0 to 255, batch x height x width x channels;'
        ' the program itself maps them to [-1, 1]'
      ),
    },
    'output': {
      'shape': ['b', classes],
      'dtype': 'float32',
      'meaning': _MEANINGS[subject.loss == 'sigmoid'],
    },
    'image_size': list(subject.image_size),
    'other_image_sizes': _SIZES[program.takes_any_size],
    'classes': classes,
    'class_names': list(subject.class_names),
    'decoding': {
      'upright': subject.preprocess.upright,
      'jpeg_dct': subject.preprocess.jpeg_dct,
      'channels': program.channels,
      'meaning': decoding(subject.preprocess),
    },
    'preprocessing': {
      'text': subject.preprocess.text,
      'operations': [
        {'operation': repr(op), 'meaning': operation(op)}
        for op in subject.preprocess.ops
      ],
    },
  }


_MEANINGS = {
  False: 'logits; their softmax gives probabilities that add up to 1',
  True: 'logits; the sigmoid of each is the probability of its class',
}
_SIZES = {
  True: 'any height and width: the model has no position embeddings',
  False: (
    'none: position embeddings are for this size. Export again with'
    ' --image_size to resize them'
  ),
}


def decoding(preprocess: ops.Preprocess) -> str:
  """Says in words how images are decoded."""
  colours = {1: 'grey', 3: 'RGB'}.get(preprocess.channels, 'all channels')
  turned = 'rotated' if preprocess.upright else 'not rotated'
  return (
    f'decoded to {colours}, {turned} by their EXIF orientation; JPEGs with'
    f' the {preprocess.jpeg_dct} cosine transform of libjpeg'
  )


def operation(op: ops.Op) -> str:
  """Says in words what an operation does; see `data/ops`."""
  by = ' x '.join(map(str, getattr(op, 'size', ())))
  match op:
    case geometry.Resize():
      how = _RESIZES[op.antialias, op.method]
      return f'resizes to {by} pixels (height x width), aspect not kept; {how}'
    case geometry.ResizeSmall():
      how = _RESIZES[op.antialias, op.method]
      rounded = 'truncated' if op.method in resizing.PILLOW else 'rounded'
      return (
        f'resizes the shorter side to {max(op.size)} pixels and the longer one'
        f' in proportion, {rounded}; {how}'
      )
    case geometry.CentralCrop():
      return (
        f'crops {by} pixels (height x width) from the middle; of an odd'
        ' remainder, the top or left gets the smaller part'
      )
    case geometry.Pad():
      return f'adds {op.n} pixels of {_PADDING[op.mode]} on each side'
    case geometry.Shift():
      return (
        f'moves the image {op.y} pixels down and {op.x} to the right;'
        f' {_PADDING[op.mode]} enters'
      )
    case geometry.Trim():
      return f'removes {op.n} pixels from each side'
    case geometry.RandomCrop():
      return f'crops {by} pixels (height x width) at a random place'
    case geometry.InceptionCrop():
      return (
        f'crops {op.min_area:g} to {op.max_area:g} of the area at random, of'
        f' an aspect (width / height) from {op.min_aspect:g} to'
        f' {op.max_aspect:g}, and resizes to {by} pixels; '
        + _RESIZES[False, 'bilinear']
      )
    case geometry.Flip():
      return 'mirrors half of the images horizontally, at random'
    case augment.RandAugment():
      return (
        f'applies {op.n} random changes of magnitude {op.m:g} (RandAugment)'
      )
    case augment.RandomErasing():
      return f'replaces a random rectangle, with a probability of {op.p:g}'
    case augment.ColourJitter():
      return (
        f'changes brightness by up to {op.brightness:g}, contrast by'
        f' {op.contrast:g}, saturation by {op.saturation:g} and hue by'
        f' {op.hue:g}, at random'
      )
  raise ValueError(f'{op!r} has no description.')


def files(folder: epath.Path, form: str, path: str) -> list[dict[str, Any]]:
  """Lists the files of a form with their sizes and checksums."""
  place = folder / path
  found = [place]
  if place.is_dir():
    found = sorted(
      root / name for root, _, names in place.walk() for name in names
    )
  return [
    {
      'form': form,
      'path': str(each.relative_to(folder)),
      'bytes': each.stat().length,
      'sha256': _sha256(each),
    }
    for each in found
  ]


def _sha256(path: epath.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


_KINDS = {
  'format_version': int,
  'dtype': str,
  'image_size': list,
  'decoding': dict,
  'preprocessing': dict,
  'forms': dict,
  'files': list,
}


def read(folder: epath.Path) -> dict[str, Any]:
  """Reads a folder's description, and checks its files against it.

  Raises:
    ValueError: there is none, it is of a newer format, or a file is missing or
      changed.
  """
  path = folder / FILE
  content = weight_files.read_json(path)
  if wrong := [
    key for key, kind in _KINDS.items() if type(content.get(key)) is not kind
  ]:
    raise ValueError(f'{path} is damaged: see {", ".join(wrong)}.')
  if content['format_version'] > FORMAT_VERSION:
    raise ValueError(
      f'{path} has format version {content["format_version"]}, and this'
      f' vit_jax reads versions up to {FORMAT_VERSION}: update it.'
    )
  _check_files(folder, content['files'])
  return content


def check_same(
  written: Mapping[str, Any], program: Program, folder: epath.Path
) -> None:
  """Raises ValueError if a program has another description than a folder."""
  found = describe(program)
  compared = [
    (key, written.get(key), found[key])
    for key in ('model', 'dtype', 'image_size', 'class_names')
  ]
  for section, key in (
    *(('decoding', key) for key in ('upright', 'jpeg_dct', 'channels')),
    ('preprocessing', 'text'),
  ):
    pair = written[section].get(key), found[section][key]
    compared.append((f'{section}.{key}', *pair))
  differing = [
    f'{key} is {old!r:.80}, and now would be {new!r:.80}'
    for key, old, new in compared
    if old != new
  ]
  if differing:
    raise ValueError(
      f'{folder / FILE} does not describe {program.subject.origin}:'
      f' {"; ".join(differing)}. Export again.'
    )


def _check_files(folder: epath.Path, listed: list[Mapping[str, Any]]) -> None:
  for each in listed:
    path = folder / each['path']
    if not path.exists():
      raise ValueError(f'{path} is missing. Export again.')
    if _sha256(path) != each['sha256']:
      raise ValueError(
        f'{path} is damaged: its SHA-256 is not the one in {FILE}. Export'
        ' again.'
      )
