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

import flax.linen as nn
from etils import epath

from vit_jax import models
from vit_jax.interop import weight_files

VARIABLE = 'VIT_JAX_WEIGHTS'
_DEFAULT_FOLDER = '~/.cache/vit_jax'
IMAGENET21K_CLASSES = 21843
IMAGENET_CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Entry:
  """One released file.

  Attributes:
    bucket: the public storage bucket.
    path: path of the file in the bucket.
    model: name of the model.
    num_classes: number of classes of the file's head.
    image_size: side in pixels of the images that position embeddings are for.
  """

  bucket: str
  path: str
  model: str
  num_classes: int
  image_size: int

  @property
  def address(self) -> str:
    """The file's path in its bucket, `gs://...`."""
    return f'gs://{self.bucket}/{self.path}'

  @property
  def url(self) -> str:
    """The public address of the file."""
    path = urllib.parse.quote(self.path)
    return f'https://storage.googleapis.com/{self.bucket}/{path}'

  @property
  def local(self) -> str:
    """The file's path below the local folder."""
    # BiT's files are at the top of their bucket.
    return self.path if '/' in self.path else f'bit/{self.path}'

  def class_names(self) -> tuple[str, ...]:
    """The names of ImageNet's 1,000 classes; () for other data sets."""
    if self.num_classes != IMAGENET_CLASSES:
      return ()
    # The released heads have the order of TFDS: that of the sorted synsets.
    from tensorflow_datasets.datasets.siscore import labels

    return tuple(labels.IMAGENET_LABELS_LIST)

  def build(self, representation_size: int | None = None) -> nn.Module:
    """Builds the model whose parameters the file holds.

    Args:
      representation_size: size of the pre-training head's hidden layer. The
        file's arrays show it: most files before fine-tuning have that layer.
    """
    return models.build(
      self.model,
      num_classes=self.num_classes,
      representation_size=representation_size,
    )


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


def _vits() -> Iterator[tuple[str, Entry]]:
  for folder, (stems, classes, size) in _RELEASED.items():
    for stem in stems:
      name, model = f'{folder}/{stem}', stem.removesuffix('-224')
      yield (
        name,
        Entry(
          'vit_models',
          f'{name}.npz',
          model.replace('_', '/'),
          classes,
          size if model == stem else 224,
        ),
      )


def _augreg() -> Iterator[tuple[str, Entry]]:
  for stem, (augmentation, decay, drop, rate, size) in _AUGREG.items():
    *resnet, width, patch = stem.split('_')
    model = f'{resnet[0]}+{width}/{patch}' if resnet else f'ViT-{width}/{patch}'
    path = (
      f'augreg/{stem}-i21k-300ep-lr_0.001-aug_{augmentation}-wd_{decay}'
      f'-do_{drop}-sd_{drop}'
    )
    tuned = f'{path}--imagenet2012-steps_20k-lr_{rate}-res_{size}.npz'
    yield (
      f'augreg/{stem}',
      Entry('vit_models', f'{path}.npz', model, IMAGENET21K_CLASSES, 224),
    )
    yield (
      f'augreg+imagenet2012/{stem}',
      Entry('vit_models', tuned, model, IMAGENET_CLASSES, size),
    )


def _bits() -> Iterator[tuple[str, Entry]]:
  for resnet in _BIT_RESNETS:
    for stem, classes, size in (
      (f'BiT-S-{resnet}', IMAGENET_CLASSES, 224),
      (f'BiT-M-{resnet}', IMAGENET21K_CLASSES, 224),
      # 480 is BiT-HyperRule's crop in the released code.
      (f'BiT-M-{resnet}-ILSVRC2012', IMAGENET_CLASSES, 480),
    ):
      model = f'BiT-{resnet}'
      yield (
        f'bit/{stem}',
        Entry('bit_models', f'{stem}.npz', model, classes, size),
      )


_ENTRIES = dict([*_vits(), *_augreg(), *_bits()])
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
  return weight_files.absolute(os.environ.get(VARIABLE) or _DEFAULT_FOLDER)


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
  if not weight_files.is_remote(path):
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
