"""`model.json`: what a user of the exported files must know."""

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

import vit_jax
from vit_jax.data import ops
from vit_jax.data.ops import geometry
from vit_jax.export.program import Program
from vit_jax.interop import inference, weight_files

FILE = 'model.json'
FORMAT_VERSION = 1


def describe(program: Program) -> dict[str, Any]:
  """Returns the description of a program, without its files."""
  loaded = program.loaded
  name, overrides = inference.describe(loaded.model)
  classes = loaded.model.num_classes
  meaning = 'logits; their softmax gives probabilities that add up to 1'
  if loaded.loss == 'sigmoid':
    meaning = 'logits; the sigmoid of each is the probability of its class'
  sizes = (
    'none: position embeddings are for this size. Export again with'
    ' --image_size to resize them'
  )
  if program.takes_any_size:
    sizes = 'any height and width: the model has no position embeddings'
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
      'meaning': meaning,
    },
    'image_size': list(loaded.image_size),
    'other_image_sizes': sizes,
    'classes': classes,
    'class_names': list(loaded.class_names),
    'decoding': {
      'upright': loaded.preprocess.upright,
      'jpeg_dct': loaded.preprocess.jpeg_dct,
      'channels': program.channels,
      'meaning': decoding(loaded.preprocess),
    },
    'preprocessing': {
      'text': loaded.preprocess.text,
      'operations': [
        {'operation': repr(op), 'meaning': operation(op)}
        for op in loaded.preprocess.ops
      ],
    },
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
  words = inspect.getdoc(op)
  if isinstance(op, geometry.ResizeSmall):  # Its methods are those of `Resize`.
    words += f'\n\nResize: {inspect.getdoc(geometry.Resize)}'
  return words


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


def read(folder: epath.Path) -> dict[str, Any]:
  """Reads a folder's description, and checks its files against it.

  Raises:
    ValueError: there is none, it is of a newer format, or a file is missing or
      changed.
  """
  path = folder / FILE
  content = weight_files.read_json(path)
  if content['format_version'] > FORMAT_VERSION:
    raise ValueError(
      f'{path} has format version {content["format_version"]}, and this'
      f' vit_jax reads versions up to {FORMAT_VERSION}: update it.'
    )
  for each in content['files']:
    file = folder / each['path']
    if not file.exists():
      raise ValueError(f'{file} is missing. Export again.')
    if _sha256(file) != each['sha256']:
      raise ValueError(
        f'{file} is damaged: its SHA-256 is not the one in {FILE}. Export'
        ' again.'
      )
  return content


def check_same(
  written: Mapping[str, Any], program: Program, folder: epath.Path
) -> None:
  """Raises ValueError if a program has another description than a folder."""
  old, new = _compared(written), _compared(describe(program))
  differing = [
    f'{key} is {old[key]!r:.80}, and now would be {new[key]!r:.80}'
    for key in old
    if old[key] != new[key]
  ]
  if differing:
    raise ValueError(
      f'{folder / FILE} does not describe {program.loaded.origin}:'
      f' {"; ".join(differing)}. Export again.'
    )


def _compared(content: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what logits depend on, without words, which versions may change."""
  keys = ('model', 'dtype', 'image_size', 'class_names')
  found = {key: content[key] for key in keys}
  for key in ('upright', 'jpeg_dct', 'channels'):
    found[f'decoding.{key}'] = content['decoding'][key]
  return found | {'preprocessing.text': content['preprocessing']['text']}
