"""The forms in which a model can be written."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from etils import epath

from vit_jax.export import (
  huggingface_folder,
  onnx_file,
  stablehlo,
  timm_folder,
)
from vit_jax.export.program import Program


@dataclasses.dataclass(frozen=True)
class Form:
  """One way to write a model, and to run what was written.

  Attributes:
    path: the file or folder that is written, within the folder of the export.
    check: raises ValueError if a program cannot be written in this form.
    write: writes a program into a folder; returns what a reader must know.
    logits: runs what was written on uint8 images [B, height, width, channels];
      returns float32 [B, K].
    tolerance: how much a logit may differ from the checkpoint's, as a part of
      the largest logit, or of 1 if that is smaller.
  """

  path: str
  check: Callable[[Program], None]
  write: Callable[[Program, epath.Path], dict[str, Any]]
  logits: Callable[[epath.Path, np.ndarray], np.ndarray]
  tolerance: float


FORMS = {
  'stablehlo': Form(
    stablehlo.FILE, stablehlo.check, stablehlo.write, stablehlo.logits, 1e-5
  ),
  'onnx': Form(
    onnx_file.FILE, onnx_file.check, onnx_file.write, onnx_file.logits, 1e-4
  ),
  'huggingface': Form(
    huggingface_folder.FOLDER,
    huggingface_folder.check,
    huggingface_folder.write,
    huggingface_folder.logits,
    1e-4,
  ),
  'timm': Form(
    timm_folder.FOLDER,
    timm_folder.check,
    timm_folder.write,
    timm_folder.logits,
    1e-4,
  ),
}


def choose(names: Sequence[str]) -> dict[str, Form]:
  """Returns the forms of these names; ValueError if one is unknown."""
  if not names:
    raise ValueError(f'--forms is empty; choose from {list(FORMS)}.')
  for name in names:
    if name not in FORMS:
      raise ValueError(
        f'There is no form {name!r} of export; choose from {list(FORMS)}.'
      )
  return {name: FORMS[name] for name in dict.fromkeys(names)}
