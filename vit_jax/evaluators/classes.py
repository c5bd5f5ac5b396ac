"""Data sets whose classes are not the model's, but can be told in them.

ImageNet-A and -R have 200 of ImageNet's classes; ObjectNet has 313 of its own,
113 of which are one or more of ImageNet's. What an image counts as follows from
a table of the data's classes, which comes from the names of the classes or from
a file of the user's, never from here.
"""

from collections.abc import Mapping, Sequence

from etils import epath

from vit_jax import data
from vit_jax.interop import json_files, weight_files

# For each class of the data, the model's classes that it may count as.
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
  """Says which of the model's classes each class of a data set is.

  Args:
    how: 'names': those of the same name. Else a path: of a JSON file, name of
      the data's class -> name or index of the model's, or a list of them; or of
      ObjectNet's own folder of mappings, for a model of ImageNet's classes in
      the usual order.
    found: names of the data's classes.
    trained_on: names of the model's.

  Returns:
    For each class a tuple, empty if the model does not know it.

  Raises:
    ValueError: no class is known, or the file is not as said.
  """
  if how == BY_NAME:
    place = {name: index for index, name in enumerate(trained_on)}
    mapping = {name: [place[name]] for name in found if name in place}
  else:
    mapping = _read(epath.Path(how), trained_on)
    unknown = sorted(set(mapping) - set(found))
    if unknown:
      raise ValueError(
        f'{how} names {len(unknown)} classes that the data does not have, such'
        f' as {unknown[0]!r}; the data has {_some(found)}.'
      )
  result = tuple(tuple(mapping.get(name, ())) for name in found)
  if not any(result):
    raise ValueError(
      f'no class of the data is one that the model knows, by {how!r}: the data'
      f' has {_some(found)}, the model {_some(trained_on)}.'
    )
  return result


class Relabelled:
  """The records of a view with the model's classes as labels; picklable."""

  def __init__(self, view: data.View, table: Table):
    self._view = view
    self._table = table
    # What describes it, see `data.digest`.
    self.source = view.source
    self.selection = view.selection
    self.split = view.split

  def __len__(self) -> int:
    return len(self._view)

  def __getitem__(self, index: int) -> data.Record:
    record = self._view[index]
    return data.Record(record.image, self._table[record.label], record.name)

  def label(self, index: int) -> tuple[int, ...]:
    return self._table[self._view.label(index)]


def _read(
  path: epath.Path, trained_on: Sequence[str]
) -> Mapping[str, list[int]]:
  if not path.exists():
    raise ValueError(
      f'{path} does not exist; classes must be {BY_NAME!r}, a JSON file, or'
      " ObjectNet's folder of mappings."
    )
  if path.is_dir():
    return _read_objectnet(path)
  place = {name: index for index, name in enumerate(trained_on)}
  mapping = {}
  for name, known in json_files.read(path).items():
    known = known if isinstance(known, list) else [known]
    for one in known:
      if one not in place and one not in range(len(trained_on)):
        raise ValueError(
          f"{path}: {name!r} is {one!r}, which is neither one of the model's"
          f' {len(trained_on)} classes by name ({_some(trained_on)}) nor by'
          ' index.'
        )
    mapping[name] = [place.get(one, one) for one in known]
  return mapping


def _read_objectnet(folder: epath.Path) -> Mapping[str, list[int]]:
  """Folder of the images -> ImageNet's classes, numbered by WordNet's ids.

  The four files say: folder -> label; label -> names in ImageNet, with '; '
  between them; the names, one a line, in the order of ILSVRC2012's own numbers;
  the usual number -> that number.
  """
  missing = [name for name in OBJECTNET if not (folder / name).exists()]
  if missing:
    raise ValueError(
      f'{folder} lacks {missing}; expected the folder `mappings` of ObjectNet,'
      f' with {list(OBJECTNET)}.'
    )
  to_label, to_names, lines, to_own = (folder / name for name in OBJECTNET)
  usual = {own: int(number) for number, own in json_files.read(to_own).items()}
  names = json_files.read(to_names)
  text = weight_files.existing_file(lines).read_text()
  try:
    place = {
      line.strip(): usual[own]
      for own, line in enumerate(text.splitlines())
      if line.strip()
    }
    return {
      name: [place[one] for one in names[label].split('; ')]
      for name, label in json_files.read(to_label).items()
      if label in names
    }
  except KeyError as error:
    raise ValueError(
      f'the files of {folder} do not fit each other: one names {error}, which'
      ' the next does not know.'
    ) from error


def _some(names: Sequence[str]) -> str:
  listed = ', '.join(map(repr, names[:3]))
  return f'{listed}, ...' if len(names) > 3 else listed
