"""Gives a data set of TFDS random access, with all of its features.

If there is a copy in TFRecord format, its records are copied one by one into
ArrayRecord files of the same number, without TensorFlow. If there is none, TFDS
downloads and prepares the data set.
"""

import dataclasses
import io
import os
import struct
import tempfile
from collections.abc import Iterator

import fsspec
import tensorflow_datasets as tfds
from array_record.python import array_record_module
from etils import epath
from tensorflow_datasets.core import file_adapters, read_only_builder

from vit_jax.prepare_data import job as job_lib
from vit_jax.prepare_data import parallel
from vit_jax.runtime import json_text
from vit_jax.workdir import files

_ARRAY_RECORD = file_adapters.FileFormat.ARRAY_RECORD
_TFRECORD = file_adapters.FileFormat.TFRECORD
_OPTIONS = 'group_size:1'
# A TFRecord: the length, its checksum, the record, its checksum.
_HEAD = struct.Struct('<QI')
_TAIL_BYTES = 4


@dataclasses.dataclass(frozen=True)
class _Copy:
  """A file to copy, and the number of records that it must have."""

  source: str
  target: str
  records: int


def prepare(
  spec: str, to: str, data_dir: str, part: tuple[int, int], processes: int
) -> str:
  """Prepares a TFDS data set in ArrayRecord format.

  Args:
    spec: `tfds:NAME[/CONFIG][:VERSION]`.
    to: the folder of prepared data sets to write to.
    data_dir: the folder of existing copies; '' means TFDS's default.
    part: (k, n): this command copies every n-th file from the k-th.
    processes: number of processes.

  Returns:
    What was done.

  Raises:
    ValueError: TFDS does not know the data set, or cannot prepare it; a file is
      damaged.
  """
  name = spec.partition(':')[2]
  target = os.fspath(files.absolute(to))
  for folder in dict.fromkeys((target, data_dir or None)):
    try:
      builder = read_only_builder.builder_from_files(name, data_dir=folder)
    except tfds.core.DatasetNotFoundError:
      continue
    formats = builder.info.available_file_formats()
    if _ARRAY_RECORD in formats:
      return (
        f'{builder.data_path} has random access already.\n{_counts(builder)}'
      )
    if _TFRECORD in formats:
      return _copy(builder, target, part, processes)
    raise ValueError(
      f'{builder.data_path} is stored as {sorted(f.value for f in formats)};'
      ' only tfrecord is converted.'
    )
  return _download(name, target, data_dir)


def _download(name: str, target: str, data_dir: str) -> str:
  try:
    builder = tfds.builder(name, data_dir=target)
  except tfds.core.DatasetNotFoundError as error:
    raise ValueError(
      f'tfds:{name}: TFDS knows no such data set, and there is no copy in'
      f' {target} or {data_dir or "its default folder"}. {error}'
    ) from error
  try:
    builder.download_and_prepare(file_format='array_record')
  except Exception as error:  # Of the network, of missing manual downloads, ...
    raise ValueError(
      f'tfds:{name}: TFDS cannot prepare it: {type(error).__name__}: {error}\n'
      'If it asks for files to be downloaded by hand, put them where it says.'
      ' If it asks for TensorFlow or Apache Beam, install them for this command'
      ' only: training does not need them.'
    ) from error
  return f'TFDS has prepared {builder.data_path}.\n{_counts(builder)}'


def _copy(
  builder: tfds.core.DatasetBuilder,
  to: str,
  part: tuple[int, int],
  processes: int,
) -> str:
  """Copies the files of a TFRecord copy, then its description."""
  source = epath.Path(builder.data_path)
  target = epath.Path(to) / builder.info.full_name
  target.mkdir(parents=True, exist_ok=True)
  copies = [
    _Copy(
      os.fspath(path),
      os.fspath(target / path.name.replace('.tfrecord-', '.array_record-', 1)),
      length,
    )
    for split in builder.info.splits.values()
    for path, length in zip(
      map(epath.Path, split.filepaths), split.shard_lengths, strict=True
    )
  ]
  mine = [
    one
    for i, one in enumerate(copies)
    if i % part[1] == part[0] and not epath.Path(one.target).exists()
  ]
  for _ in parallel.run(
    _copy_file,
    None,
    mine,
    processes=processes,
    records=sum(one.records for one in mine),
    what='Copied',
  ):
    pass
  left = [one for one in copies if not epath.Path(one.target).exists()]
  if left:
    return f'This part is done. Others have {len(left)} files left.'
  _describe(source, target)
  made = read_only_builder.builder_from_directory(target)
  return f'Copied {source} to {target}.\n{_counts(made)}'


def _copy_file(_, one: _Copy) -> None:
  remote = '://' in one.target
  folder = None if remote else os.path.dirname(one.target)
  handle, temporary = tempfile.mkstemp(suffix='.tmp', dir=folder)
  os.close(handle)
  try:
    writer = array_record_module.ArrayRecordWriter(temporary, _OPTIONS)
    count = 0
    with epath.Path(one.source).open('rb') as f:
      for record in read_tfrecord(f, one.source):
        writer.write(record)
        count += 1
        parallel.advance(1)
    writer.close()
    if count != one.records:
      raise ValueError(
        f'{one.source} has {count:,} records, but its data set states'
        f' {one.records:,}. Copy or prepare it again.'
      )
    os.chmod(temporary, 0o644)
    if remote:
      system, path = fsspec.core.url_to_fs(one.target)
      system.put_file(temporary, path)
    else:
      os.replace(temporary, one.target)
  finally:
    if os.path.exists(temporary):
      os.unlink(temporary)


def read_tfrecord(f: io.BufferedIOBase, path: str) -> Iterator[bytes]:
  """Yields the records of a TFRecord file.

  The checksums are not compared: that takes another library. Lengths are.

  Args:
    f: the file.
    path: its path, for error messages.

  Raises:
    ValueError: the file ends within a record.
  """
  while head := f.read(_HEAD.size):
    if len(head) == _HEAD.size:
      length, _ = _HEAD.unpack(head)
      record = f.read(length + _TAIL_BYTES)
      if len(record) == length + _TAIL_BYTES:
        yield record[:-_TAIL_BYTES]
        continue
    raise ValueError(f'{path} ends within a record. Copy or prepare it again.')


def _describe(source: epath.Path, target: epath.Path) -> None:
  """Writes the description of a copy, with its format; the last file is INFO.

  In the folder of the original, the new format becomes an alternative.
  """
  info = json_text.read(source / job_lib.INFO)
  if source == target:
    others = info.get('alternativeFileFormats', [])
    info['alternativeFileFormats'] = [*others, _ARRAY_RECORD.value]
  else:
    info['fileFormat'] = _ARRAY_RECORD.value
    info.pop('alternativeFileFormats', None)
    for path in source.iterdir():
      is_data = '.tfrecord' in path.name or path.name == job_lib.INFO
      if not path.is_dir() and not is_data:
        files.write_shared(target / path.name, path.read_bytes())
  job_lib.write_json(target / job_lib.INFO, info)


def _counts(builder: tfds.core.DatasetBuilder) -> str:
  splits = ', '.join(
    f'{name} {split.num_examples:,}'
    for name, split in builder.info.splits.items()
  )
  name = builder.info.full_name.rpartition('/')[0]
  return f'{splits}.\nRead it as tfds:{name}'
