"""`tfds:NAME[/CONFIG][:VERSION]`: prepared TFDS data, without TensorFlow.

`arrayrecord:PATH` opens the same files by their folder. Both read only
ArrayRecord copies, the format with random access. They never prepare or
download data; their errors name the commands that do.
"""

import contextlib
import difflib
import importlib
import json
import os
import re
import resource
import shlex
from collections.abc import Callable, Iterator, Mapping
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


LabelFunction = Callable[[Mapping[str, Any]], int]


class Tfds(source.Source):
  """Encoded images and labels of a TFDS data set, in the order of its files.

  Only the image and the label are parsed, so other features cost no time. A
  label that is computed needs all features.
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
    info = builder.info
    self._function = _find_function(label_key)
    features = [] if self._function else [('label_key', label_key)]
    for flag, key in (('image_key', image_key), *features):
      if key not in info.features:
        raise ValueError(
          f'{spec} has no feature {flag}={key!r}; its features are '
          f'{_describe(info.features)}.'
        )
    image = info.features[image_key]
    if not isinstance(image, tfds.features.Image):
      raise ValueError(
        f'{spec}: image_key={image_key!r} is not an Image; the features '
        f'are {_describe(info.features)}.'
      )
    if self._function:
      label = tfds.features.Scalar(np.int64)
      read = {
        key: feature
        for key, feature in info.features.items()
        if not isinstance(feature, tfds.features.Image)
      }
    else:
      label = info.features[label_key]
      read = {label_key: label}
    self._image_key, self._label_key = image_key, label_key
    self._examples = Examples(
      builder, {image_key: image, **read}, image_key=image_key
    )
    self.info = source.SourceInfo(
      spec=spec,
      splits={split: s.num_examples for split, s in info.splits.items()},
      class_names=_class_names(
        label, num_classes, f'{spec}: label_key={label_key!r}'
      ),
      multi_label=isinstance(label, tfds.features.Sequence),
      is_remote=listing.is_remote(str(builder.data_path)),
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one record, with the image's stored bytes, undecoded."""
    example = self._examples.read(split, index)
    image, name = example.pop(self._image_key), f'{split}/{index}'
    return source.Record(image, self._label(example, name), name)

  def label(self, split: str, index: int) -> int | tuple[int, ...]:
    """Reads a record, and parses only what its label needs."""
    if self._function:
      return self.read(split, index).label
    example = self._examples.read(split, index, only=self._label_key)
    return self._label(example, f'{split}/{index}')

  def _label(
    self, example: Mapping[str, Any], name: str
  ) -> int | tuple[int, ...]:
    if self._function:
      where = f'{self.info.spec}, {name}'
      return _call(self._function, example, self.info.num_classes, where)
    label = example[self._label_key]
    return tuple(map(int, label)) if self.info.multi_label else int(label)

  def facts(self, split: str) -> dict[str, str]:
    """Returns a digest of the shards' names and numbers of examples."""
    return self._examples.facts(split)

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
    folder = find_version(os.path.expanduser(name), spec)
    builder = read_only_builder.builder_from_directory(folder)
    _check_format(builder, spec)
    return builder


class Examples:
  """Some features of a prepared data set's examples, read by index."""

  def __init__(
    self,
    builder: tfds.core.DatasetBuilder,
    features: Mapping[str, tfds.features.FeatureConnector],
    *,
    image_key: str,
  ):
    """Opens nothing yet; the first read of a split opens its files.

    Args:
      builder: from `open_prepared`.
      features: the features of the builder to parse.
      image_key: the feature whose bytes stay undecoded.
    """
    self._builder = builder
    self._features = tfds.features.FeaturesDict(features)
    self._single = {
      key: tfds.features.FeaturesDict({key: feature})
      for key, feature in features.items()
    }
    self._image_key = image_key
    self._open_splits = {}

  def read(
    self, split: str, index: int, only: str | None = None
  ) -> dict[str, Any]:
    """Returns the features' values, with the image as it is stored.

    Args:
      split: a split of the data set.
      index: index of the example in the split.
      only: the only feature to parse; None parses all.

    Raises:
      ValueError: the split has more files than the system lets a process open.
    """
    if split not in self._open_splits:
      _allow_open_files()
      self._open_splits[split] = self._builder.as_data_source(
        split,
        file_format=_ARRAY_RECORD,
        deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
      )
    features = self._single[only] if only else self._features
    decoders = {self._image_key: tfds.decode.SkipDecoding()}
    return features.deserialize_example_np(
      self._open_splits[split][index],
      decoders={k: v for k, v in decoders.items() if k in features},
    )

  def facts(self, split: str) -> dict[str, str]:
    """Returns a digest of the shards' names and numbers of examples."""
    info = self._builder.info.splits[split]
    shards = [sorted(info.filenames), list(info.shard_lengths)]
    return {'shards': identity.short_hash(shards)}

  def __getstate__(self) -> dict:
    # Open files cannot be pickled, so each process opens its own.
    return self.__dict__ | {'_open_splits': {}}


def open_prepared(name: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
  """Opens a prepared data set; the error tells how to prepare a missing one."""
  folder = None if data_dir is None else os.path.expanduser(data_dir)
  try:
    # `tfds.builder` would prefer the newest version of the data set's code, if
    # TFDS ships it, to the prepared version.
    builder = read_only_builder.builder_from_files(name, data_dir=folder)
  except tfds.core.DatasetNotFoundError as e:
    known = tfds.list_builders(with_community_datasets=False)
    base = re.split('[/:]', name)[0]
    similar = difflib.get_close_matches(base, known)
    place = f', data_dir={json.dumps(folder)}' if folder else ''
    code = (
      'import tensorflow_datasets as tfds;'
      f' tfds.builder({json.dumps(name)}{place})'
      '.download_and_prepare(file_format="array_record")'
    )
    advice = (
      'Prepare it (some data sets need TensorFlow for that) with:'
      f' {shlex.join(["python", "-c", code])}'
      if base in known
      else f'TFDS knows no {base!r}; similar names: {similar}.'
    )
    raise ValueError(
      f'tfds:{name} is not in {folder or "the default data directory"}. '
      f'{advice}\nTFDS says: {e}'
    ) from e
  _check_format(builder, f'tfds:{name}')
  return builder


def find_version(path: str, spec: str) -> str:
  """Returns the folder of the newest version of the data set in a folder.

  Args:
    path: the folder of the version, of the data set, or of all data sets, if
      there is only one.
    spec: the data spec, for error messages.

  Raises:
    ValueError: there is no data set, or more than one.
  """
  found = {}  # Folder of a data set or config -> (version, folder).
  for folder in _described(epath.Path(path), levels=3):
    version = tfds.core.Version(folder.name)
    key = os.fspath(folder.parent)
    found[key] = max(found.get(key, (version, '')), (version, str(folder)))
  if (epath.Path(path) / _INFO).exists():
    return path
  if not found:
    command = ['python', '-m', 'vit_jax.prepare_data', '--source=SPEC']
    command.append(f'--to={path}')
    raise ValueError(
      f'{spec}: {path} holds neither {_INFO} nor a folder of a version (such as'
      f' 1.0.0) that does. To prepare data: {shlex.join(command)}'
    )
  if len(found) > 1:
    raise ValueError(
      f'{spec}: {path} holds {len(found)} data sets; choose one of'
      f' {sorted(found)}.'
    )
  [(_, folder)] = found.values()
  return folder


def _described(folder: epath.Path, levels: int) -> Iterator[epath.Path]:
  """Yields the folders of versions that lie up to some levels below."""
  if not levels or not folder.is_dir():
    return
  for one in folder.iterdir():
    if not tfds.core.Version.is_valid(one.name):
      yield from _described(one, levels - 1)
    elif (one / _INFO).exists():
      yield one


def _check_format(builder: tfds.core.DatasetBuilder, spec: str) -> None:
  formats = builder.info.available_file_formats()
  if _ARRAY_RECORD in formats:
    return
  name, _, version = builder.info.full_name.rpartition('/')
  root = str(builder.data_dir).removesuffix(f'/{name}/{version}')
  command = [
    *('python', '-m', 'vit_jax.prepare_data'),
    *(f'--source=tfds:{name}:{version}', f'--data_dir={root}', f'--to={root}'),
  ]
  raise ValueError(
    f'{spec} in {builder.data_dir} is stored as '
    f'{sorted(f.value for f in formats)}, which has no random access; '
    f'expected array_record. To add an ArrayRecord copy: {shlex.join(command)}'
  )


def _describe(features: tfds.features.FeaturesDict) -> dict[str, str]:
  return {key: type(features[key]).__name__ for key in sorted(features)}


def _class_names(
  label: tfds.features.FeatureConnector, num_classes: int | None, where: str
) -> tuple[str, ...]:
  """Checks the kind of a label feature, and returns its class names."""
  many = isinstance(label, tfds.features.Sequence)
  one = label.feature if many else label
  if (
    not isinstance(one, tfds.features.Tensor)
    or one.shape != ()
    or not np.issubdtype(one.np_dtype, np.integer)
  ):
    raise ValueError(
      f'{where} is {label}; expected a ClassLabel or an integer, or a '
      'Sequence of either.'
    )
  is_class = isinstance(one, tfds.features.ClassLabel)
  # TFDS stores an unknown number of classes as 0.
  known = (one.num_classes or None) if is_class else None
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


def _find_function(label_key: str) -> LabelFunction | None:
  """Returns the function that a label key names; None if it names a feature.

  Raises:
    ValueError: there is no such module, or no such function in it.
  """
  path, colon, name = label_key.partition(':')
  if not colon:
    return None
  try:
    module = importlib.import_module(path)
  except (ImportError, ValueError) as error:
    raise ValueError(
      f'label_key={label_key!r}: cannot import {path!r} ({error}); expected'
      ' PACKAGE.MODULE:FUNCTION, with the module on PYTHONPATH.'
    ) from error
  function = getattr(module, name, None)
  if not callable(function):
    raise ValueError(
      f'label_key={label_key!r}: {path} has no function {name!r}.'
    )
  return function


def _call(
  function: LabelFunction,
  features: Mapping[str, Any],
  num_classes: int,
  where: str,
) -> int:
  """Returns the class of a record.

  Args:
    function: see `Tfds`.
    features: the record's features, without images.
    num_classes: the number of classes.
    where: what a message calls the record.

  Raises:
    ValueError: the function returns no integer, or none of the classes.
  """
  label = function(features)
  whole = isinstance(label, int | np.integer)
  if not whole or not 0 <= label < num_classes:
    raise ValueError(
      f'{where}: {function.__module__}:{function.__name__} returned {label!r},'
      f' expected an integer from 0 to {num_classes - 1}, as'
      f' num_classes={num_classes}.'
    )
  return int(label)


def _allow_open_files() -> None:
  """Lets this process open as many files as it may, one for each shard."""
  _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  with contextlib.suppress(ValueError, OSError):  # macOS refuses no limit.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
