"""Reading and writing `.npz` files of named arrays.

Reading never runs code: pickled arrays are refused.
"""

import contextlib
import errno
import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

import ml_dtypes
import numpy as np
from etils import epath

from vit_jax.interop import weight_files
from vit_jax.workdir import files

Shapes = dict[str, tuple[int, ...]]

_NPY = '.npy'
# Kinds of NumPy dtypes that are read. bfloat16 is apart: NumPy writes it as raw
# items of 2 bytes.
_NUMBERS = 'fiub'
_LONGEST_HEADER = 10_000  # NumPy has this limit, too, but checks after reading.
_CHUNK = 2**22  # Bytes to read at once.
# NumPy writes these. With other methods, zipfile's first read may inflate all.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# How many times larger than its file the arrays may be. Trained arrays hardly
# shrink in a file; zeros (new heads, momenta) shrink by a factor of 1,000.
_MAX_INFLATION = 16
_ALWAYS_READ = 2**28  # So many bytes do no harm, however small the file.


class _Header(NamedTuple):
  """Where one array is in the archive, and its layout."""

  info: zipfile.ZipInfo
  shape: tuple[int, ...]
  order: str
  dtype: np.dtype
  start: int


def read_npz(
  path: epath.PathLike,
  *,
  check: Callable[[Shapes], Collection[str] | None] | None = None,
) -> dict[str, np.ndarray]:
  """Reads the arrays of a `.npz` file, local or `gs://`.

  Args:
    path: the file.
    check: called with name -> shape before any values are read; may raise. It
      may return names of arrays to skip: zeros that take no memory replace
      those arrays.

  Returns:
    Name -> array, in the file's dtype; raw 2-byte items become bfloat16.

  Raises:
    ValueError: the file does not exist, is damaged, or is not a zip file; it
      holds no arrays, or pickled objects, other types than numbers, empty
      arrays, or a name twice; or its arrays are too large for its size.
  """
  path = weight_files.existing_file(path)
  with _opened(path) as file:
    with _explained(path):
      archive = zipfile.ZipFile(file)
      headers = _headers(archive, path)
    unused = ()
    if check:
      unused = check({name: header.shape for name, header in headers.items()})
    used = headers.keys() - (unused or ())
    _check_inflation([headers[k] for k in used], file, path)
    with _explained(path):
      return {
        k: _read_array(archive, h)
        if k in used
        else np.broadcast_to(np.zeros((), h.dtype), h.shape)
        for k, h in headers.items()
      }


def _opened(path: epath.Path) -> BinaryIO:
  # From a bucket, one read is faster than the many small reads of zipfile.
  return (
    io.BytesIO(path.read_bytes())
    if weight_files.is_remote(path)
    else path.open('rb')
  )


def _check_inflation(
  headers: Iterable[_Header], file: BinaryIO, path: epath.Path
) -> None:
  """Raises ValueError if arrays are too large for their file."""
  # The members' packed sizes are not summed, because members may overlap.
  packed = max(1, file.seek(0, io.SEEK_END))
  size = sum(header.info.file_size for header in headers)
  if size > max(_ALWAYS_READ, _MAX_INFLATION * packed):
    raise ValueError(
      f'{path} is refused: its {packed:,} bytes unpack to {size:,}, more than'
      f' {_MAX_INFLATION} times as many. Trained weights do not shrink so. If'
      ' you trust the file, write its arrays again with numpy.savez, which does'
      ' not compress.'
    )


@contextlib.contextmanager
def _explained(path: epath.Path) -> Iterator[None]:
  """Turns every error of a damaged zip file into a ValueError with a remedy."""
  try:
    yield
  except UnicodeDecodeError as error:
    problem = 'has a member whose name is not UTF-8: copy it again'
    raise ValueError(f'{path} {problem}. {error}') from error
  except NotImplementedError as error:
    problem = 'is compressed in a way that is not read'
    raise ValueError(
      f'{path} {problem}: write it again with numpy.savez. {error}'
    ) from error
  except RuntimeError as error:
    problem = 'is encrypted, which is not read: write it again without'
    raise ValueError(f'{path} {problem}. {error}') from error
  except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
    # EINVAL comes from a wrong offset in the file; other OSErrors are not the
    # file's fault.
    if isinstance(error, OSError) and error.errno != errno.EINVAL:
      raise
    with path.open('rb') as file:
      start = file.read(4)
    if start.startswith(b'PK'):
      problem = 'is cut short or damaged: copy it again'
    else:
      problem = f'is not a .npz file (it begins with {start!r})'
    raise ValueError(f'{path} {problem}. {error}') from error


def _headers(
  archive: zipfile.ZipFile, path: epath.PathLike
) -> dict[str, _Header]:
  """Reads the arrays' headers; ValueError lists all arrays that are refused."""
  headers, problems = {}, {}
  for info in archive.infolist():
    name = info.filename.removesuffix(_NPY)
    if name == info.filename:
      problems[name] = 'is not an array (.npy)'
      continue
    if name in headers:
      problems[name] = 'is there twice'
      continue
    if info.compress_type not in _COMPRESSIONS:
      raise NotImplementedError(f'{name}: method {info.compress_type}.')
    # Errors of the zip file itself go to the caller.
    with archive.open(info) as member:
      try:
        header = headers[name] = _read_header(info, member)
      # NumPy's parser reads the header as Python, and raises all of these.
      except (
        ValueError,
        TypeError,
        SyntaxError,
        tokenize.TokenError,
        MemoryError,
        RecursionError,
      ) as error:
        problems[name] = f'has no readable header ({error!s:.200})'
        continue
    if problem := _problem(header):
      problems[name] = problem
  if problems:
    listed = '\n'.join(f'  {name} {why}' for name, why in problems.items())
    raise ValueError(
      f'{path} is refused; only plain arrays of numbers are read:\n{listed}'
    )
  if not headers:
    raise ValueError(f'{path} holds no arrays.')
  return headers


def _read_header(info: zipfile.ZipInfo, member: zipfile.ZipExtFile) -> _Header:
  version = np.lib.format.read_magic(member)
  if version not in ((1, 0), (2, 0)):
    raise ValueError(f'version {version} of the format, expected 1.0 or 2.0')
  length = member.read(2 * version[0])
  size = int.from_bytes(length, 'little')
  if size > _LONGEST_HEADER:
    raise ValueError(f'it has {size} bytes, expected at most {_LONGEST_HEADER}')
  header = io.BytesIO(length + member.read(size))
  if version == (1, 0):
    parsed = np.lib.format.read_array_header_1_0(header)
  else:
    parsed = np.lib.format.read_array_header_2_0(header)
  shape, fortran, dtype = parsed
  if not all(type(n) is int and 0 <= n < 2**63 for n in shape):
    raise ValueError(f'shape {shape!s:.60}')
  is_raw = dtype.kind == 'V' and dtype.names is dtype.subdtype is None
  if is_raw and dtype.itemsize == 2:
    dtype = np.dtype(ml_dtypes.bfloat16)
  return _Header(info, shape, 'F' if fortran else 'C', dtype, member.tell())


def _problem(header: _Header) -> str:
  """Returns why an array is refused, or ''."""
  dtype, size = header.dtype, math.prod(header.shape)
  if dtype.hasobject:
    return 'is a pickled object, which could run code'
  if dtype.kind not in _NUMBERS and dtype != ml_dtypes.bfloat16:
    return f'has dtype {dtype}, expected numbers'
  if not size:
    return f'is empty: its shape is {header.shape}'
  if header.start + size * dtype.itemsize != header.info.file_size:
    return 'has another size than its header says'
  return ''


def _read_array(archive: zipfile.ZipFile, header: _Header) -> np.ndarray:
  # Reads in parts into one buffer, so that the values are in memory only once.
  data = np.empty(math.prod(header.shape) * header.dtype.itemsize, np.uint8)
  with archive.open(header.info) as member:
    member.read(header.start)
    for start in range(0, data.size, _CHUNK):
      part = memoryview(data)[start : start + _CHUNK]
      if member.readinto(part) != len(part):
        raise EOFError('It ends too early.')
    member.read(1)  # zipfile compares the checksum when it meets the end.
  return data.view(header.dtype).reshape(header.shape, order=header.order)


def write_npz(path: epath.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes a `.npz` file, whole or not at all.

  The bytes depend only on the arrays: names are sorted, times are left out.

  Args:
    path: the file, local or `gs://`; replaced if it exists.
    arrays: name -> array.
  """
  path = weight_files.absolute(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.atomic(path) as temporary, temporary.open('wb') as file:  # noqa: SIM117
    with zipfile.ZipFile(file, 'w') as archive:
      for name in sorted(arrays):
        # Without a date, each entry gets the same fixed one, of 1980.
        info = zipfile.ZipInfo(name + _NPY)
        with archive.open(info, 'w', force_zip64=True) as member:
          np.lib.format.write_array(
            member, np.ascontiguousarray(arrays[name]), allow_pickle=False
          )


def check_finite(arrays: Mapping[str, np.ndarray], origin: str) -> None:
  """Raises ValueError with the names of arrays that hold NaN or infinity."""
  bad = [k for k, v in arrays.items() if not _is_finite(v)]
  if bad:
    raise ValueError(
      f'{origin} holds NaN or infinite values in {len(bad)} of'
      f' {len(arrays)} arrays: {_listed(bad)}.'
    )


def _is_finite(array: np.ndarray) -> bool:
  return bool(np.isfinite(array).all())


def _listed(names: Iterable[str]) -> str:
  return ', '.join(sorted(names))
