"""The forms in which a model can be written, and `model.json` beside them.

Each form is a module with

  PATH: the file or folder that is written, within the folder of the export.
  TOLERANCE: how much a logit may differ from the checkpoint's, as a part of the
    largest logit, or of 1 if that is smaller.
  check(program): raises ValueError if a program cannot be written.
  write(program, folder): writes it.
  logits(folder, images): runs what was written on uint8 images [B, height,
    width, channels]; returns float32 [B, K].
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
from etils import epath

import vit_jax
from vit_jax.export import (
  huggingface_folder,
  onnx_file,
  stablehlo,
  timm_folder,
)
from vit_jax.export.program import Program
from vit_jax.interop import inference, weight_files
from vit_jax.runtime import printable

FORMS = {
  'stablehlo': stablehlo,
  'onnx': onnx_file,
  'huggingface': huggingface_folder,
  'timm': timm_folder,
}
DESCRIPTION = 'model.json'


def choose(names: Sequence[str]) -> dict[str, ModuleType]:
  """Returns the forms of these names; ValueError if one is unknown."""
  if not names or not FORMS.keys() >= set(names):
    raise ValueError(
      f'--forms={",".join(names)}: choose forms from {list(FORMS)}.'
    )
  return {name: FORMS[name] for name in dict.fromkeys(names)}


def write(
  program: Program, to: epath.Path, chosen: Mapping[str, ModuleType]
) -> None:
  """Writes forms of a program, and their description as the last file.

  Args:
    program: the model.
    to: the directory; created if it does not exist. Its earlier export is
      removed.
    chosen: the forms, by name.
  """
  to.mkdir(parents=True, exist_ok=True)
  (to / DESCRIPTION).unlink(missing_ok=True)
  for form in FORMS.values():
    path = to / form.PATH
    if path.is_dir():
      path.rmtree()
    path.unlink(missing_ok=True)
  for form in chosen.values():
    form.write(program, to)
  content = {**_describe(program), 'forms': list(chosen)}
  weight_files.write_json(to / DESCRIPTION, content)
  print(
    printable.text(
      f'Wrote {to} ({", ".join(chosen)}): {program.loaded.name} of'
      f' {program.loaded.origin}.'
    )
  )


def _describe(program: Program) -> dict[str, Any]:
  """Returns what a user of the files must know."""
  loaded = program.loaded
  name, overrides = inference.describe(loaded.model)
  return {
    'format_version': 2,
    'versions': {'vit_jax': vit_jax.__version__, 'jax': jax.__version__},
    'model': {'name': name, 'overrides': overrides},
    'dtype': program.dtype,
    'input': {'shape': list(program.input_shape), 'dtype': 'uint8'},
    'output': {'shape': ['b', loaded.model.num_classes], 'dtype': 'float32'},
    'loss': loaded.loss,
    'image_size': list(loaded.image_size),
    'classes': loaded.model.num_classes,
    'class_names': list(loaded.class_names),
    'decoding': {
      'upright': loaded.preprocess.upright,
      'jpeg_dct': loaded.preprocess.jpeg_dct,
      'channels': program.loaded.channels,
    },
    'preprocessing': {
      'text': loaded.preprocess.text,
      'operations': list(map(repr, loaded.preprocess.ops)),
    },
  }
