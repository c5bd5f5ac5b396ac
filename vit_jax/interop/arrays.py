"""Reads and writes files of named arrays: `.npz` and `.safetensors`.

Reading never runs code: pickled arrays are refused.
"""

import io
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import safetensors.numpy
from etils import epath

from vit_jax.interop import weight_files
from vit_jax.workdir import files

_NUMBERS = 'fiub'  # Kinds of NumPy dtypes that are read.
_DTYPES = {
  'BF16': ml_dtypes.bfloat16,
  'F16': np.float16,
  'F32': np.float32,
  'F64': np.float64,
  'I64': np.int64,
  'I32': np.int32,
  'U8': np.uint8,
}


def read_npz(path: epath.PathLike) -> dict[str, np.ndarray]:
  """Reads the arrays of a `.npz` file, local or `gs://`.

  Returns:
    Name -> array, in the file's dtype. NumPy writes bfloat16 as raw items of 2
    bytes, which become bfloat16 again.

  Raises:
    ValueError: the file does not exist, is damaged, or is no `.npz` file; or it
      holds anything but arrays of numbers.
  """
  path = weight_files.existing_file(path)
  # From a bucket, one read is faster than the many small reads of zipfile.
  file = io.BytesIO(path.read_bytes())
  try:
    with np.load(file, allow_pickle=False) as archive:
      return {name: _numbers(name, archive[name]) for name in archive.files}
  except Exception as error:  # Damaged files raise errors of many types.
    raise ValueError(
      f'{path} is not a whole .npz file of plain arrays of numbers: {error}.'
      ' Copy it again; or, if you trust it, write its arrays again with'
      ' numpy.savez. Pickled arrays are not read, because they can run code.'
    ) from error


def _numbers(name: str, array: np.ndarray | bytes) -> np.ndarray:
  array = np.asarray(array)
  if array.dtype == np.dtype('V2'):
    return array.view(ml_dtypes.bfloat16)
  if array.dtype.kind not in _NUMBERS:
    raise ValueError(f'{name} has dtype {array.dtype}')
  return array


def write_npz(path: epath.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes a `.npz` file, whole or not at all.

  The bytes depend only on the arrays: names are sorted, and NumPy writes no
  times.

  Args:
    path: the file, local or `gs://`; replaced if it exists.
    arrays: name -> array.
  """
  path = files.absolute(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  ordered = {k: np.ascontiguousarray(arrays[k]) for k in sorted(arrays)}
  with files.atomic(path) as temporary, temporary.open('wb') as file:
    np.savez(file, **ordered)


def read_safetensors(path: epath.PathLike) -> dict[str, np.ndarray]:
  """Reads all arrays of a `.safetensors` file, local or `gs://`.

  Raises:
    ValueError: the file does not exist or is damaged, or an array has a dtype
      that is not read (such as float8).
  """
  path = weight_files.existing_file(path)
  try:
    return {
      name: np.frombuffer(tensor['data'], _DTYPES[tensor['dtype']]).reshape(
        tensor['shape']
      )
      for name, tensor in safetensors.deserialize(path.read_bytes())
    }
  except (safetensors.SafetensorError, KeyError) as error:
    raise ValueError(
      f'{path} is damaged, not a .safetensors file, or holds arrays of another'
      f' dtype than {", ".join(_DTYPES)}: {error}.'
    ) from error


def write_safetensors(
  path: epath.Path, tensors: Mapping[str, np.ndarray]
) -> None:
  """Writes a `.safetensors` file for PyTorch, whole or not at all."""
  tensors = {k: np.ascontiguousarray(v) for k, v in tensors.items()}
  with files.atomic(path) as temporary:
    # transformers and timm require this entry.
    temporary.write_bytes(
      safetensors.numpy.save(tensors, metadata={'format': 'pt'})
    )


def check_finite(arrays: Mapping[str, np.ndarray], origin: str) -> None:
  """Raises ValueError with the names of arrays that hold NaN or infinity."""
  bad = [k for k, v in arrays.items() if not np.isfinite(v).all()]
  if bad:
    raise ValueError(
      f'{origin} holds NaN or infinite values in {len(bad)} of'
      f' {len(arrays)} arrays: {", ".join(sorted(bad))}.'
    )
