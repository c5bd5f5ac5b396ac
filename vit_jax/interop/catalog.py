"""The released weights by name: their files, where they are, their models.

    from vit_jax.interop import catalog
    catalog.names()              # All of them.
    catalog.find('augreg/B_16')  # Where the file lies on this machine.

Nothing is downloaded: the error for a missing file says how to fetch it. Files
are expected in $VIT_JAX_WEIGHTS, or else in ~/.cache/vit_jax.

Sources: the README and `configs/models.py` of
google-research/vision_transformer, and the README of
google-research/big_transfer.
"""

import dataclasses
import difflib
import os
import shlex
import urllib.parse
from collections.abc import Iterator

from etils import epath

from vit_jax.workdir import files

VARIABLE = 'VIT_JAX_WEIGHTS'
_DEFAULT_FOLDER = '~/.cache/vit_jax'
IMAGENET21K_CLASSES = 21843
IMAGENET_CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Entry:
  """One released file.

  Attributes:
    path: its public bucket, and its path in there.
    model: name of the model.
    num_classes: number of classes of the file's head.
    image_size: side in pixels of the images that position embeddings are for.
  """

  path: str
  model: str
  num_classes: int
  image_size: int

  @property
  def address(self) -> str:
    """The file's path in its bucket, `gs://...`."""
    return f'gs://{self.path}'

  @property
  def url(self) -> str:
    """The public address of the file."""
    return f'https://storage.googleapis.com/{urllib.parse.quote(self.path)}'

  @property
  def local(self) -> str:
    """The file's path below the local folder."""
    # BiT's files are at the top of their bucket.
    bucket, _, path = self.path.partition('/')
    return path if '/' in path else f'{bucket.removesuffix("_models")}/{path}'

  def class_names(self) -> tuple[str, ...]:
    """The names of ImageNet's 1,000 classes; () for other data sets."""
    if self.num_classes != IMAGENET_CLASSES:
      return ()
    # The released heads have the order of TFDS: that of the sorted synsets.
    from tensorflow_datasets.datasets.siscore import labels

    return tuple(labels.IMAGENET_LABELS_LIST)


_RELEASED = {
  # Folder -> the files, their classes and image size.
  'imagenet21k': (
    (
      *('ViT-B_16', 'ViT-B_32', 'ViT-L_16', 'ViT-L_32', 'ViT-H_14'),
      *('R50+ViT-B_16', 'R50+ViT-L_32'),
    ),
    IMAGENET21K_CLASSES,
    224,
  ),
  'imagenet21k+imagenet2012': (
    (
      *('ViT-B_16', 'ViT-B_32', 'ViT-L_16', 'ViT-L_32', 'R50+ViT-B_16'),
      *('ViT-B_16-224', 'ViT-L_16-224'),
    ),
    IMAGENET_CLASSES,
    384,  # Unless the name says 224.
  ),
  'sam': (('ViT-B_16', 'ViT-B_32'), IMAGENET_CLASSES, 224),
}
# AugReg's recommended file for each model, pre-trained on ImageNet-21k for 300
# epochs: its augmentation, weight decay and dropout (also stochastic depth).
# Then the learning rate and resolution of its recommended ImageNet fine-tuning.
_AUGREG = {
  'L_16': ('strong1', 0.1, 0.0, 0.01, 384),
  # timm loads medium1, too; big_vision's list has medium2 here.
  'B_8': ('medium1', 0.1, 0.0, 0.01, 224),
  'B_16': ('medium1', 0.1, 0.0, 0.03, 384),
  'S_16': ('light1', 0.03, 0.0, 0.03, 384),
  'R50_L_32': ('medium1', 0.1, 0.1, 0.01, 384),
  'R26_S_32': ('light1', 0.1, 0.0, 0.01, 384),
  'Ti_16': ('none', 0.03, 0.0, 0.03, 384),
  'B_32': ('light1', 0.1, 0.0, 0.01, 384),
  'S_32': ('none', 0.1, 0.0, 0.01, 384),
  'R_Ti_16': ('none', 0.03, 0.0, 0.03, 384),
}
_BIT_RESNETS = ('R50x1', 'R50x3', 'R101x1', 'R101x3', 'R152x2', 'R152x4')
_BIT = {
  # Prefix and suffix of a file's name -> its classes and image size.
  ('BiT-S', ''): (IMAGENET_CLASSES, 224),
  ('BiT-M', ''): (IMAGENET21K_CLASSES, 224),
  # 480 is BiT-HyperRule's crop in the released code.
  ('BiT-M', '-ILSVRC2012'): (IMAGENET_CLASSES, 480),
}


def _entries() -> Iterator[tuple[str, Entry]]:
  for folder, (stems, classes, size) in _RELEASED.items():
    for stem in stems:
      name, model = f'{folder}/{stem}', stem.removesuffix('-224')
      side = size if model == stem else 224
      path = f'vit_models/{name}.npz'
      yield name, Entry(path, model.replace('_', '/'), classes, side)
  for stem, (augmentation, decay, drop, rate, size) in _AUGREG.items():
    *resnet, width, patch = stem.split('_')
    model = f'{resnet[0]}+{width}/{patch}' if resnet else f'ViT-{width}/{patch}'
    path = (
      f'vit_models/augreg/{stem}-i21k-300ep-lr_0.001-aug_{augmentation}'
      f'-wd_{decay}-do_{drop}-sd_{drop}'
    )
    tuned = f'{path}--imagenet2012-steps_20k-lr_{rate}-res_{size}.npz'
    name = f'augreg+imagenet2012/{stem}'
    yield name, Entry(tuned, model, IMAGENET_CLASSES, size)
    path = f'{path}.npz'
    yield f'augreg/{stem}', Entry(path, model, IMAGENET21K_CLASSES, 224)
  for resnet in _BIT_RESNETS:
    for (prefix, suffix), (classes, size) in _BIT.items():
      stem = f'{prefix}-{resnet}{suffix}'
      path = f'bit_models/{stem}.npz'
      yield f'bit/{stem}', Entry(path, f'BiT-{resnet}', classes, size)


_ENTRIES = dict(_entries())
_ALL_NAMES = (
  'All names: python -c "from vit_jax.interop import catalog;'
  ' print(*catalog.names())"'
)


def names() -> list[str]:
  """Returns all names, such as `imagenet21k/ViT-B_16`."""
  return sorted(_ENTRIES)


def similar(name: str) -> list[str]:
  """Returns similar names; `name` may lack the part before the slash."""
  last = name.rpartition('/')[2].lower()
  same = [k for k in names() if last and k.lower().endswith('/' + last)]
  close = difflib.get_close_matches(name, names(), cutoff=0.5)
  return list(dict.fromkeys([*same, *close]))


def entry(name: str) -> Entry:
  """Returns the entry of a name; ValueError for unknown ones lists similar."""
  if name not in _ENTRIES:
    found = similar(name)
    known = f'Similar are {", ".join(found)}. ' if found else ''
    raise ValueError(
      f'There are no released weights {name!r}. {known}{_ALL_NAMES}'
    )
  return _ENTRIES[name]


def folder() -> epath.Path:
  """Returns the folder of the released files on this machine."""
  return files.absolute(os.environ.get(VARIABLE) or _DEFAULT_FOLDER)


def path_of(name: str) -> epath.Path:
  """Returns where the file of a name belongs on this machine."""
  return folder() / entry(name).local


def fetch_commands(name: str, path: epath.PathLike) -> list[str]:
  """Returns commands that copy the file of a name to a path; any one will do.

  Raises:
    ValueError: the name is unknown.
  """
  found = entry(name)
  path = os.fspath(path)
  ways = [['gcloud', 'storage', 'cp', found.address, path]]
  if '://' not in path:
    ways.insert(0, ['curl', '-fL', '--create-dirs', '-o', path, found.url])
  return [shlex.join(way) for way in ways]


def find(name: str) -> epath.Path:
  """Finds the local file of a name.

  Raises:
    ValueError: the name is unknown, or the file does not exist. The message
      says how to fetch it.
  """
  path = path_of(name)
  if not path.exists():
    ways = fetch_commands(name, path)
    raise ValueError(
      f'The weights {name!r} are not on this machine: there is no file {path}.'
      ' Fetch them with\n  ' + '\nor\n  '.join(ways) + '\n'
      f'To use another folder, set ${VARIABLE}.'
    )
  return path
