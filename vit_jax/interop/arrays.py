"""Reads and writes files of named arrays: `.npz` and `.safetensors`.

Reading never runs code: pickled arrays are refused.
"""

import errno
import io
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import safetensors.numpy
from etils import epath

from vit_jax.interop import weight_files
from vit_jax.workdir import files

_NUMBERS = 'fiub'  # Kinds of NumPy dtypes that are read.
# How many times larger than its file the arrays may be. Trained arrays hardly
# shrink in a file; a file of zeros could unpack to any size.
_MAX_INFLATION = 16
_ALWAYS_READ = 2**28  # So many bytes do no harm, however small the file.
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
    ValueError: the file does not exist, is damaged, or is no `.npz` file; it
      holds anything but arrays of numbers; or its arrays are more than
      16 times as large as the file.
  """
  path = weight_files.existing_file(path)
  try:
    # From a bucket, one read is faster than the many small reads of zipfile.
    remote = weight_files.is_remote(path)
    with io.BytesIO(path.read_bytes()) if remote else path.open('rb') as file:
      size = file.seek(0, io.SEEK_END)
      file.seek(0)
      with np.load(file, allow_pickle=False) as archive:
        _check_size(size, [info.file_size for info in archive.zip.infolist()])
        return {name: _numbers(name, archive[name]) for name in archive.files}
  except Exception as error:  # Damaged files raise errors of many types.
    # EINVAL comes from a wrong offset in the file.
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
      raise
    raise ValueError(
      f'{path} is not a whole .npz file of plain arrays of numbers: {error}.'
      ' Copy it again; or, if you trust it, write its arrays again with'
      ' numpy.savez. Pickled arrays are not read, because they can run code.'
    ) from error


def _check_size(packed: int, sizes: list[int]) -> None:
  if not sizes:
    raise ValueError('it holds no arrays')
  if sum(sizes) > max(_ALWAYS_READ, _MAX_INFLATION * packed):
    raise ValueError(
      f'its {packed:,} bytes unpack to {sum(sizes):,}, more than'
      f' {_MAX_INFLATION} times as many'
    )


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
  path = weight_files.absolute(path)
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
  except safetensors.SafetensorError as error:
    raise ValueError(
      f'{path} is damaged or not a .safetensors file: {error}.'
    ) from error
  except KeyError as error:
    raise ValueError(
      f'{path} holds an array of the dtype {error}, which is not read. Expected'
      f' one of {", ".join(_DTYPES)}.'
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
