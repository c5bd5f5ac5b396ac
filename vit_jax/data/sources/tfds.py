"""`tfds:NAME[/CONFIG][:VERSION]`: prepared TFDS data, without TensorFlow.

`arrayrecord:PATH` opens the same files by their folder. Both read only
ArrayRecord copies, the format with random access. They never prepare or
download data; their errors name the commands that do.
"""

import contextlib
import importlib
import json
import operator
import os
import resource
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from etils import epath
from tensorflow_datasets.core import file_adapters, read_only_builder

from vit_jax.data import identity, source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.data.sources import listing

_ARRAY_RECORD = file_adapters.FileFormat.ARRAY_RECORD
_INFO = 'dataset_info.json'


class Prepared(source.Source):
  """Some features of a prepared data set, read by index.

  Only these are parsed, so other features cost no time.
  """

  def __init__(
    self,
    spec: str,
    builder: tfds.core.DatasetBuilder,
    image_key: str,
    features: Mapping[str, tfds.features.FeatureConnector],
    label: Callable[[Mapping[str, Any]], Any],
    class_names: Sequence[str],
    multi_label: bool = False,
  ):
    """Opens nothing yet; the first read of a split opens its files.

    Args:
      spec: the data spec.
      builder: from `open_prepared`.
      image_key: the feature that holds the image, whose bytes stay undecoded.
      features: the features that `label` needs.
      label: function of these features' values that returns the label.
      class_names: the names of the classes.
      multi_label: whether the label is a sequence.
    """
    image = {image_key: builder.info.features[image_key]}
    self._builder, self._image_key = builder, image_key
    self._all = tfds.features.FeaturesDict({**image, **features})
    self._without_image = tfds.features.FeaturesDict(dict(features))
    self._function = label
    self._open_splits = {}
    self.info = source.SourceInfo(
      spec=spec,
      splits={k: s.num_examples for k, s in builder.info.splits.items()},
      class_names=tuple(class_names),
      multi_label=multi_label,
      is_remote=listing.is_remote(str(builder.data_path)),
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one record, with the image's stored bytes, undecoded."""
    example = self._all.deserialize_example_np(
      self._stored(split, index),
      decoders={self._image_key: tfds.decode.SkipDecoding()},
    )
    image = example.pop(self._image_key)
    return source.Record(image, self._label(example), f'{split}/{index}')

  def label(self, split: str, index: int) -> int | tuple[int, ...]:
    """Reads a record, and parses only what its label needs."""
    stored = self._stored(split, index)
    return self._label(self._without_image.deserialize_example_np(stored))

  def _label(self, example: Mapping[str, Any]) -> int | tuple[int, ...]:
    label = self._function(example)
    if self.info.multi_label:
      return tuple(map(int, label))
    return operator.index(label)

  def _stored(self, split: str, index: int) -> bytes:
    if split not in self._open_splits:
      _allow_files()  # One for each shard.
      self._open_splits[split] = self._builder.as_data_source(
        split,
        file_format=_ARRAY_RECORD,
        deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
      )
    return self._open_splits[split][index]

  def facts(self, split: str) -> dict[str, str]:
    """Returns a digest of the shards' names and numbers of examples."""
    info = self._builder.info.splits[split]
    shards = [sorted(info.filenames), list(info.shard_lengths)]
    return {'shards': identity.short_hash(shards)}

  def __getstate__(self) -> dict:
    # Open files cannot be pickled, so each process opens its own.
    return self.__dict__ | {'_open_splits': {}}


class Tfds(Prepared):
  """Encoded images and labels of a TFDS data set, in the order of its files.

  A label that is computed needs all features.
  """

  _KIND = 'tfds'

  def __init__(
    self,
    name: str,
    *,
    data_dir: str | None = None,
    image_key: str = 'image',
    label_key: str = 'label',
    num_classes: int | None = None,
  ):
    """Reads the data set's description; files are opened by the first read.

    Args:
      name: TFDS's name, such as `cifar10` or `eurosat/rgb:2.*.*`.
      data_dir: the folder of the prepared data; None means TFDS's default.
      image_key: the feature that holds the image, a `tfds.features.Image`.
      label_key: the feature that holds the label: a `ClassLabel` or an integer,
        or a `Sequence` of either for multi-label data. `MODULE:FUNCTION`
        computes it from a mapping of the record's features, without images,
        to their values; it returns the class, from 0.
      num_classes: number of classes, if the label feature does not define it;
        the class names are then '0', '1', ...

    Raises:
      ValueError: the data set is unknown, not prepared, or not stored as
        ArrayRecord; a feature is missing or of another kind, or a function is
        missing; the number of classes is unknown or contradicts the feature.
    """
    spec = f'{self._KIND}:{name}'
    builder = self._open(name, data_dir)
    features = builder.info.features
    kinds = {key: type(features[key]).__name__ for key in sorted(features)}
    images = {k for k in kinds if isinstance(features[k], tfds.features.Image)}
    function = _find_function(label_key)
    missing = []
    if image_key not in images:
      missing.append(f'image_key={image_key!r} that is an Image')
    if not (function or label_key in kinds):
      missing.append(f'label_key={label_key!r}')
    if missing:
      raise ValueError(
        f'{spec} has no feature {", and none ".join(missing)}; its features are'
        f' {kinds}.'
      )
    if function:
      feature = tfds.features.Scalar(np.int64)
      read = {key: features[key] for key in kinds.keys() - images}
    else:
      function, feature = operator.itemgetter(label_key), features[label_key]
      read = {label_key: feature}
    names = _class_names(
      feature, num_classes, f'{spec}: label_key={label_key!r}'
    )
    many = isinstance(feature, tfds.features.Sequence)
    super().__init__(spec, builder, image_key, read, function, names, many)

  def _open(self, name: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
    return open_prepared(name, data_dir)


class ArrayRecord(Tfds):
  """A data set in TFDS's layout, by its folder; see `Tfds`.

  The folder holds dataset_info.json and the shards, as `prepare_data` and TFDS
  write them; or folders of versions, of which the newest is read; or a single
  data set with these.
  """

  _KIND = 'arrayrecord'

  def _open(self, name, data_dir):
    spec = f'arrayrecord:{name}'
    folder = _find_version(os.path.expanduser(name), spec)
    builder = read_only_builder.builder_from_directory(folder)
    _check_format(builder, spec)
    return builder


def _allow_files() -> None:
  """Raises the soft limit of open files."""
  now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
  unlimited = resource.RLIM_INFINITY
  if now == unlimited:
    return
  # macOS states no hard limit, but refuses to set no limit.
  wanted = max(now, 2**16) if most == unlimited else most
  with contextlib.suppress(ValueError, OSError):
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def open_prepared(name: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
  """Opens a prepared data set; the error tells how to prepare a missing one."""
  folder = None if data_dir is None else os.path.expanduser(data_dir)
  try:
    # `tfds.builder` would prefer the newest version of the data set's code, if
    # TFDS ships it, to the prepared version.
    builder = read_only_builder.builder_from_files(name, data_dir=folder)
  except tfds.core.DatasetNotFoundError as e:
    place = f', data_dir={json.dumps(folder)}' if folder else ''
    code = (
      'import tensorflow_datasets as tfds;'
      f' tfds.builder({json.dumps(name)}{place})'
      '.download_and_prepare(file_format="array_record")'
    )
    raise ValueError(
      f'tfds:{name} is not in {folder or "the default data directory"}. If TFDS'
      ' knows it, prepare it (some data sets need TensorFlow for that) with:'
      f' {shlex.join(["python", "-c", code])}\nTFDS says: {e}'
    ) from e
  _check_format(builder, f'tfds:{name}')
  return builder


def _find_version(path: str, spec: str) -> epath.Path:
  """Returns the folder of the newest version of the data set in a folder.

  Args:
    path: the folder of the version, of the data set, or of all data sets, if
      there is only one.
    spec: the data spec, for error messages.

  Raises:
    ValueError: there is no data set, or more than one.
  """
  root = epath.Path(path)
  if (root / _INFO).exists():
    return root
  remedy = (
    'prepare data: python -m vit_jax.prepare_data --source=SPEC'
    f' --to={shlex.quote(path)}'
  )
  if not root.is_dir():
    raise ValueError(
      f'{spec}: there is no folder {path}. Correct the path, or {remedy}'
    )
  levels = ('*', '*/*', '*/*/*')  # NAME/CONFIG/VERSION is the deepest.
  versions = [
    info.parent
    for level in levels
    for info in root.glob(f'{level}/{_INFO}')
    if tfds.core.Version.is_valid(info.parent.name)
  ]
  found = {str(folder.parent) for folder in versions}
  if len(found) != 1:
    raise ValueError(
      f'{spec}: {path} holds {len(found)} data sets {sorted(found)}, and not'
      f' one, as {_INFO} in folders of versions (such as 1.0.0). Choose one, or'
      f' {remedy}'
    )
  return max(versions, key=lambda folder: tfds.core.Version(folder.name))


def _check_format(builder: tfds.core.DatasetBuilder, spec: str) -> None:
  formats = builder.info.available_file_formats()
  if _ARRAY_RECORD in formats:
    return
  command = [
    *('tfds', 'convert_format', '--out_file_format=array_record'),
    f'--dataset_version_dir={builder.data_path}',
  ]
  raise ValueError(
    f'{spec} in {builder.data_dir} is stored as '
    f'{sorted(f.value for f in formats)}, which has no random access; '
    'expected array_record. To add an ArrayRecord copy, where TensorFlow and'
    f' Apache Beam are installed: {shlex.join(command)}'
  )


def _class_names(
  label: tfds.features.FeatureConnector, num_classes: int | None, where: str
) -> tuple[str, ...]:
  """Checks the kind of a label feature, and returns its class names."""
  many = isinstance(label, tfds.features.Sequence)
  one = label.feature if many else label
  is_number = isinstance(one, tfds.features.Tensor) and one.shape == ()
  if not is_number or not np.issubdtype(one.np_dtype, np.integer):
    raise ValueError(
      f'{where} is {label}; expected a ClassLabel or an integer, or a '
      'Sequence of either.'
    )
  # TFDS stores an unknown number of classes as 0.
  known = getattr(one, 'num_classes', None) or None
  if known is None and num_classes is None:
    raise ValueError(
      f'{where} is {label}, which does not define the number of classes; '
      'set num_classes.'
    )
  if None not in (known, num_classes) and known != num_classes:
    raise ValueError(
      f'{where} has {known} classes, but num_classes={num_classes}; leave it '
      'out.'
    )
  # The names of a ClassLabel without names are made here, too.
  names = labels_lib.index_names(known or num_classes, where)
  return tuple(one.names if known else names)


def _find_function(label_key: str) -> Callable | None:
  """Returns the function that a label key names; None if it names a feature.

  Raises:
    ValueError: there is no such module, or no such function in it.
  """
  path, colon, name = label_key.partition(':')
  if not colon:
    return None
  try:
    return getattr(importlib.import_module(path), name)
  except (ImportError, ValueError, AttributeError) as error:
    raise ValueError(
      f'label_key={label_key!r}: {error}; expected PACKAGE.MODULE:FUNCTION,'
      ' with the module on PYTHONPATH.'
    ) from error
