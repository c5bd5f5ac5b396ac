"""Reading and writing files of named arrays: `.npz` and `.safetensors`.

Nothing that is read here can run code: pickled arrays are refused.
"""

import contextlib
import errno
import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np
import safetensors
from etils import epath

from vit_jax import paths

_NPY = '.npy'
# What a file of array data can hold; NumPy writes bfloat16 as raw 2 bytes.
_NUMBERS = 'fiub'
_SAFETENSORS_DTYPES = {
  'BF16': ml_dtypes.bfloat16,
  'F16': np.float16,
  'F32': np.float32,
  'F64': np.float64,
  'I64': np.int64,
  'I32': np.int32,
  'U8': np.uint8,
}


def read_npz(path: epath.PathLike) -> dict[str, np.ndarray]:
  """Reads all arrays of a `.npz` file, local or `gs://`.

  Args:
    path: the file.

  Returns:
    Name -> array, in the file's dtype; raw 2-byte items become bfloat16.

  Raises:
    ValueError: there is no such file, it is damaged or no zip file, it holds
      pickled objects, what is no number, or a name twice.
  """
  arrays = {}
  with _archive(path) as archive:
    headers = _headers(archive, path)
    for name, (shape, fortran, dtype, start) in headers.items():
      with archive.open(name + _NPY) as member:
        member.read(start)
        data = bytearray(member.read(math.prod(shape) * dtype.itemsize))
      array = np.frombuffer(data, dtype)
      arrays[name] = array.reshape(shape, order='F' if fortran else 'C')
  return arrays


def npz_shapes(path: epath.PathLike) -> dict[str, tuple[int, ...]]:
  """Reads only the shapes; like `read_npz` otherwise."""
  with _archive(path) as archive:
    headers = _headers(archive, path)
  return {name: header[0] for name, header in headers.items()}


@contextlib.contextmanager
def _archive(path: epath.PathLike) -> Iterator[zipfile.ZipFile]:
  """Opens a zip file; whatever is wrong with it becomes one ValueError."""
  path = existing_file(path)
  try:
    with path.open('rb') as file, zipfile.ZipFile(file) as archive:
      yield archive
  except (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,  # Encrypted, or compressed in an unknown way.
    OSError,
  ) as error:
    # A wrong offset in the file makes a seek invalid; others are real.
    if isinstance(error, OSError) and error.errno != errno.EINVAL:
      raise
    with path.open('rb') as file:
      start = file.read(4)
    if start.startswith(b'PK'):
      problem = 'is cut short or damaged: copy it again'
    else:
      problem = f'is no .npz file (it begins with {start!r})'
    raise ValueError(f'{path} {problem}. {error}') from error


def existing_file(path: epath.PathLike) -> epath.Path:
  """Returns the absolute path; ValueError if no file is there."""
  path = paths.absolute(path)
  if not path.exists():
    raise ValueError(f'There is no file {path}.')
  if path.is_dir():
    raise ValueError(f'{path} is a directory, expected a file.')
  return path


def _headers(archive: zipfile.ZipFile, path: epath.PathLike) -> dict:
  """Name -> (shape, in Fortran's order, dtype, where the data starts)."""
  headers, problems = {}, {}
  for info in archive.infolist():
    name = info.filename.removesuffix(_NPY)
    if name == info.filename:
      problems[name] = 'is no array (.npy)'
      continue
    if name in headers:
      problems[name] = 'is there twice'
      continue
    with archive.open(info) as member:
      try:
        shape, fortran, dtype = _read_header(member)
      except (ValueError, SyntaxError, tokenize.TokenError) as error:
        problems[name] = f'has no readable header ({error})'
        continue
      start = member.tell()
    if dtype.kind == 'V' and dtype.itemsize == 2 and not dtype.names:
      dtype = np.dtype(ml_dtypes.bfloat16)
    if dtype.hasobject:
      problems[name] = 'is a pickled object, which could run code'
    elif dtype.kind not in _NUMBERS and dtype != ml_dtypes.bfloat16:
      problems[name] = f'is of dtype {dtype}, no number'
    elif start + math.prod(shape) * dtype.itemsize != info.file_size:
      problems[name] = 'is not of the size that its header says'
    headers[name] = (shape, fortran, dtype, start)
  if problems:
    listed = '\n'.join(f'  {name} {why}' for name, why in problems.items())
    raise ValueError(
      f'{path} is refused; only plain arrays of numbers are read:\n{listed}'
    )
  return headers


def _read_header(member: zipfile.ZipExtFile) -> tuple:
  version = np.lib.format.read_magic(member)
  if version == (1, 0):
    return np.lib.format.read_array_header_1_0(member)
  if version == (2, 0):
    return np.lib.format.read_array_header_2_0(member)
  raise ValueError(f'version {version} of the format, expected 1.0 or 2.0')


def write_npz(path: epath.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes a `.npz` file, whole or not at all.

  The bytes depend on the arrays alone: names are sorted, times are left out.

  Args:
    path: the file, local or `gs://`; replaced if it exists.
    arrays: name -> array.
  """
  path = paths.absolute(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  with atomic(path) as temporary, temporary.open('wb') as file:  # noqa: SIM117
    with zipfile.ZipFile(file, 'w') as archive:
      for name in sorted(arrays):
        # Without a date of its own an entry gets 1980's.
        info = zipfile.ZipInfo(name + _NPY)
        with archive.open(info, 'w', force_zip64=True) as member:
          np.lib.format.write_array(
            member, np.ascontiguousarray(arrays[name]), allow_pickle=False
          )


@contextlib.contextmanager
def atomic(path: epath.Path) -> Iterator[epath.Path]:
  """Yields a temporary path, which takes the name `path` in the end."""
  temporary = path.with_name(f'{path.name}.tmp')
  try:
    yield temporary
    temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


def write_json(path: epath.Path, content: Mapping) -> None:
  """Writes a JSON file, whole or not at all."""
  with atomic(path) as temporary:
    temporary.write_text(json.dumps(content, indent=2) + '\n')


def read_json(path: epath.Path) -> dict:
  """Reads a JSON object; ValueError if it is none."""
  try:
    content = json.loads(existing_file(path).read_text())
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise ValueError(f'{path} is no readable JSON: {error}.') from error
  if not isinstance(content, dict):
    raise ValueError(f'{path} holds {content!r:.80}, expected an object.')
  return content


def read_safetensors(path: epath.PathLike) -> dict[str, np.ndarray]:
  """Reads all arrays of a `.safetensors` file, local or `gs://`.

  Raises:
    ValueError: there is no such file, it is damaged, or of a dtype that has no
      plain numbers (such as float8).
  """
  path = existing_file(path)
  try:
    tensors = safetensors.deserialize(path.read_bytes())
  except safetensors.SafetensorError as error:
    raise ValueError(
      f'{path} is damaged or no .safetensors file: {error}.'
    ) from error
  strange = [
    f'{name} ({tensor["dtype"]})'
    for name, tensor in tensors
    if tensor['dtype'] not in _SAFETENSORS_DTYPES
  ]
  if strange:
    raise ValueError(
      f'{path} holds arrays of a dtype that is not read: {", ".join(strange)}.'
      f' Expected one of {", ".join(_SAFETENSORS_DTYPES)}.'
    )
  return {
    name: np.frombuffer(
      tensor['data'], _SAFETENSORS_DTYPES[tensor['dtype']]
    ).reshape(tensor['shape'])
    for name, tensor in tensors
  }


def check_finite(arrays: Mapping[str, np.ndarray], origin: str) -> None:
  """Raises ValueError with the names of arrays that hold NaN or infinity."""
  bad = [k for k, v in arrays.items() if not _is_finite(v)]
  if bad:
    raise ValueError(
      f'{origin} holds NaN or infinite values, in {len(bad)} of'
      f' {len(arrays)} arrays: {_listed(bad)}.'
    )


def _is_finite(array: np.ndarray) -> bool:
  return bool(np.isfinite(array).all())


def _listed(names: Iterable[str]) -> str:
  return ', '.join(sorted(names))
