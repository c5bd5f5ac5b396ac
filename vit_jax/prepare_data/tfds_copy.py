"""Gives a data set of TFDS random access, with all of its features.

If there is a copy in TFRecord format, its records are copied one by one into
ArrayRecord files of the same number, without TensorFlow. If there is none, TFDS
downloads and prepares the data set.
"""

import os
from collections.abc import Iterator

import tensorflow_datasets as tfds
from etils import epath
from tensorflow_datasets.core import read_only_builder

from vit_jax.prepare_data import job as job_lib
from vit_jax.prepare_data import shards
from vit_jax.runtime import json_text
from vit_jax.workdir import files


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
  name, target = spec.partition(':')[2], os.fspath(files.absolute(to))
  for folder in dict.fromkeys((target, data_dir or None)):
    try:
      builder = read_only_builder.builder_from_files(name, data_dir=folder)
    except tfds.core.DatasetNotFoundError:
      continue
    formats = [kind.value for kind in builder.info.available_file_formats()]
    if 'array_record' in formats:
      return (
        f'{builder.data_path} has random access already.\n{_counts(builder)}'
      )
    return _copy(builder, target, part, processes)
  try:
    builder = tfds.builder(name, data_dir=target)
    builder.download_and_prepare(file_format='array_record')
  # It is unknown, the network is down, files must be downloaded by hand, ...
  except Exception as error:
    raise ValueError(
      f'tfds:{name}: there is no copy in {target} or'
      f' {data_dir or "its default folder"}, and TFDS cannot prepare it:'
      f' {type(error).__name__}: {error}\nIf it asks for files to be downloaded'
      ' by hand, put them where it says. If it asks for TensorFlow or Apache'
      ' Beam, install them for this command only: training does not need them.'
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
  copies = {}  # Source and target of each file -> its number of records.
  for split in builder.info.splits.values():
    lengths = zip(split.filepaths, split.shard_lengths, strict=True)
    for path, length in lengths:
      name = epath.Path(path).name.replace('.tfrecord-', '.array_record-', 1)
      copies[epath.Path(path), target / name, length] = length
  mine = {
    one: one[2]
    for one in list(copies)[part[0] :: part[1]]
    if not one[1].exists()
  }
  job_lib.run(_copy_file, None, mine, processes, 'Copied')
  if left := sum(not path.exists() for _, path, _ in copies):
    return f'This part is done. Others have {left} files left.'
  _describe(source, target)
  made = read_only_builder.builder_from_directory(target)
  return f'Copied {source} to {target}.\n{_counts(made)}'


def _copy_file(_, one: tuple[epath.Path, epath.Path, int]) -> None:
  source, target, length = one
  shards.write_file(target, read_tfrecord(source, length), 'group_size:1')


def read_tfrecord(path: epath.Path, length: int) -> Iterator[bytes]:
  """Yields the records of a TFRecord file.

  The checksums are not compared: that takes another library. Lengths are.

  Args:
    path: of the file.
    length: the number of records that it must have.

  Raises:
    ValueError: the file ends within a record, or has another number of them.
  """
  count = 0
  with path.open('rb') as f:
    # The length, its checksum, the record, its checksum.
    while head := f.read(12):
      size = int.from_bytes(head[:8], 'little')
      record = f.read(size + 4)
      if len(head) < 12 or len(record) < size + 4:
        raise ValueError(
          f'{path} ends within a record. Copy or prepare it again.'
        )
      count += 1
      yield record[:-4]
  if count != length:
    raise ValueError(
      f'{path} has {count:,} records, but its data set states {length:,}. Copy'
      ' or prepare it again.'
    )


def _describe(source: epath.Path, target: epath.Path) -> None:
  """Writes the description of a copy, with its format; the last file is INFO.

  In the folder of the original, the new format becomes an alternative.
  """
  info = json_text.read(source / job_lib.INFO)
  if source == target:
    others = info.get('alternativeFileFormats', [])
    info['alternativeFileFormats'] = [*others, 'array_record']
  else:
    info['fileFormat'] = 'array_record'
    info.pop('alternativeFileFormats', None)
    for path in source.iterdir():
      is_data = '.tfrecord' in path.name or path.name == job_lib.INFO
      if not path.is_dir() and not is_data:
        files.write_shared(target / path.name, path.read_bytes())
  job_lib.write_json(target / job_lib.INFO, info)
  (target / job_lib.STATE).rmtree(missing_ok=True)


def _counts(builder: tfds.core.DatasetBuilder) -> str:
  splits = ', '.join(
    f'{name} {split.num_examples:,}'
    for name, split in builder.info.splits.items()
  )
  name = builder.info.full_name.rpartition('/')[0]
  return f'{splits}.\nRead it as tfds:{name}'
