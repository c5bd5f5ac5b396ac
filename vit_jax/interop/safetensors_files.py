"""Reads `.safetensors` files."""

import ml_dtypes
import numpy as np
import safetensors
from etils import epath

from vit_jax.interop import weight_files

_DTYPES = {
  'BF16': ml_dtypes.bfloat16,
  'F16': np.float16,
  'F32': np.float32,
  'F64': np.float64,
  'I64': np.int64,
  'I32': np.int32,
  'U8': np.uint8,
}


def read(path: epath.PathLike) -> dict[str, np.ndarray]:
  """Reads all arrays of a `.safetensors` file, local or `gs://`.

  Raises:
    ValueError: the file does not exist or is damaged, or an array has a dtype
      that is not read (such as float8).
  """
  path = weight_files.existing_file(path)
  try:
    tensors = safetensors.deserialize(path.read_bytes())
  except safetensors.SafetensorError as error:
    raise ValueError(
      f'{path} is damaged or not a .safetensors file: {error}.'
    ) from error
  unknown = [
    f'{name} ({tensor["dtype"]})'
    for name, tensor in tensors
    if tensor['dtype'] not in _DTYPES
  ]
  if unknown:
    raise ValueError(
      f'{path} holds arrays of a dtype that is not read: {", ".join(unknown)}.'
      f' Expected one of {", ".join(_DTYPES)}.'
    )
  return {
    name: np.frombuffer(tensor['data'], _DTYPES[tensor['dtype']]).reshape(
      tensor['shape']
    )
    for name, tensor in tensors
  }
