"""An ONNX file, made by PyTorch's exporter from a Hugging Face folder."""

import contextlib
import io
import tempfile

import numpy as np
from etils import epath

from vit_jax.export import huggingface_folder
from vit_jax.export.program import Program
from vit_jax.runtime import installed

PATH, TOLERANCE = 'model.onnx', 1e-4  # See `forms`.
_OPSET = 18


def check(program: Program) -> None:
  """Raises ValueError if the model cannot be written."""
  installed.require(
    *('torch', 'transformers', 'onnx', 'onnxscript', 'onnxruntime'),
    extra='onnx',
  )
  huggingface_folder.check(program)
  program.check_one_file('an ONNX file with its weights inside')


def write(program: Program, folder: epath.Path) -> None:
  """Writes the file, its weights inside."""
  import torch

  of = program.loaded.model
  mean, std = (
    torch.tensor(values or [0.5]) for values in (of.image_mean, of.image_std)
  )

  class Whole(torch.nn.Module):
    """Takes the same images as the other programs."""

    def __init__(self, model):
      super().__init__()
      self.model = model

    def forward(self, images):
      pixels = (images.to(torch.float32) / 255 - mean) / std
      return self.model(pixels.permute(0, 3, 1, 2)).logits

  with tempfile.TemporaryDirectory() as temporary:
    huggingface_folder.write(program, epath.Path(temporary))
    model = Whole(huggingface_folder.load(epath.Path(temporary))).eval()
  shape = (2, *program.loaded.image_size, program.loaded.channels)
  with contextlib.redirect_stdout(io.StringIO()):  # It tells each of its steps.
    exported = torch.onnx.export(
      model,
      (torch.zeros(shape, dtype=torch.uint8),),
      dynamo=True,
      input_names=['images'],
      output_names=['logits'],
      opset_version=_OPSET,
      dynamic_shapes={'images': {0: torch.export.Dim('batch')}},
    )
  for node in exported.model.graph:
    # They name the files of the source, which would tell about the user's
    # machine.
    node.metadata_props.pop('pkg.torch.onnx.stack_trace', None)
  exported.save(str(folder / PATH), external_data=False)


def logits(folder: epath.Path, images: np.ndarray) -> np.ndarray:
  """Returns the logits of uint8 images, float32 [B, K], by ONNX Runtime."""
  import onnxruntime

  session = onnxruntime.InferenceSession(
    folder / PATH, providers=['CPUExecutionProvider']
  )
  return session.run(['logits'], {'images': images})[0]
