"""Maps the classes of a data set to the classes of the model.

ImageNet-A and -R have 200 of ImageNet's classes. ObjectNet has 313 classes of
its own, 113 of which match one or more of ImageNet's. A table maps the classes.
It comes from the names of the classes or from ObjectNet's files; this module
defines no table.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from etils import epath

from vit_jax import data
from vit_jax.interop import weight_files

# For each class of the data, the model's classes that count as correct.
Table = tuple[tuple[int, ...], ...]

BY_NAME = 'names'
# The files of ObjectNet's folder `mappings`.
OBJECTNET = (
  'folder_to_objectnet_label.json',
  'objectnet_to_imagenet_1k.json',
  'imagenet_to_label_2012_v2',
  'pytorch_to_imagenet_2012_id.json',
)


def table(how: str, found: Sequence[str], trained_on: Sequence[str]) -> Table:
  """Returns the table from the data's classes to the model's classes.

  Args:
    how: 'names' maps classes of the same name. Otherwise the path of
      ObjectNet's own folder of mappings, for a model with ImageNet's classes in
      the usual order.
    found: names of the data's classes.
    trained_on: names of the model's classes.

  Returns:
    A tuple for each class of the data, empty if the model does not know it.

  Raises:
    ValueError: the model knows no class, or the folder lacks a file.
  """
  if how == BY_NAME:
    place = {name: index for index, name in enumerate(trained_on)}
    mapping = {name: [place[name]] for name in found if name in place}
  else:
    mapping = _read_objectnet(epath.Path(how))
  result = tuple(tuple(mapping.get(name, ())) for name in found)
  if not any(result):
    raise ValueError(
      f'the model knows no class of the data by {how!r}: the data has'
      f' {_some(found)}, the model has {_some(trained_on)}.'
    )
  return result


def check_same(info: data.SourceInfo, trained_on: data.SourceInfo) -> None:
  """Raises ValueError unless class i is the same in both data sets."""
  remedy = 'Set `classes` to map them.'
  if info.num_classes != trained_on.num_classes:
    raise ValueError(
      f'{info.spec!r} has {info.num_classes} classes, but the training data'
      f' {trained_on.spec!r} has {trained_on.num_classes}. {remedy}'
    )
  pairs = zip(info.class_names, trained_on.class_names, strict=True)
  for index, (here, there) in enumerate(pairs):
    if here != there:
      raise ValueError(
        f'class {index} is {here!r} in {info.spec!r}, but {there!r} in the'
        f' training data {trained_on.spec!r}. {remedy}'
      )


def relabelled(
  how: str, view: data.View, trained_on: data.SourceInfo
) -> tuple['Relabelled', int]:
  """Returns the view with the model's classes, and the most per image.

  Args:
    how: see `table`.
    view: the images, with one label each.
    trained_on: the data with the model's classes.

  Raises:
    ValueError: see `table`; or images have several labels.
  """
  info = view.source.info
  if info.multi_label:
    raise ValueError(
      f'classes={how!r} needs one label per image, but {info.spec!r} has'
      ' several. Leave `classes` empty.'
    )
  found = table(how, info.class_names, trained_on.class_names)
  return Relabelled(view, found), max(map(len, found))


class Relabelled(data.View):
  """The records of a view with the model's classes as labels."""

  def __init__(self, view: data.View, table: Table):
    super().__init__(view.source, view.split)
    self._table = table

  def __getitem__(self, index: int) -> data.Record:
    record = super().__getitem__(index)
    return dataclasses.replace(record, label=self._table[record.label])

  def label(self, index: int) -> tuple[int, ...]:
    return self._table[super().label(index)]

  def labels(self) -> None:
    """Returns None: an image may have several labels."""


def _read_objectnet(folder: epath.Path) -> Mapping[str, list[int]]:
  """Maps folders of images to ImageNet's classes, numbered by WordNet's ids.

  The four files hold: folder -> label; label -> names in ImageNet, separated by
  '; '; the names, one per line, in the order of ILSVRC2012's own numbers; the
  usual number -> ILSVRC2012's number.
  """
  to_label, to_names, lines, to_own = (folder / name for name in OBJECTNET)
  usual = {
    own: int(number) for number, own in weight_files.read_json(to_own).items()
  }
  names = weight_files.read_json(to_names)
  text = weight_files.existing_file(lines).read_text()
  place = {
    line.strip(): usual[own]
    for own, line in enumerate(text.splitlines())
    if line.strip()
  }
  return {
    name: [place[one] for one in names[label].split('; ')]
    for name, label in weight_files.read_json(to_label).items()
    if label in names
  }


def _some(names: Sequence[str]) -> str:
  listed = ', '.join(map(repr, names[:3]))
  return f'{listed}, ...' if len(names) > 3 else listed
