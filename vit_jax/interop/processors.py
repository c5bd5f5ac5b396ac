"""Image processors of transformers and timm, as operations of `data/ops`.

Files beside weights say how images are prepared for a model. These functions
turn what such a file holds into `Prepared`, and back. They read no file.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data import ops
from vit_jax.data.ops.crops import CentralCrop, EvalCrop
from vit_jax.data.ops.geometry import Resize, ResizeSmall
from vit_jax.data.ops.resizing import PILLOW
from vit_jax.interop.weight_files import pair

# What our own keys in a file of transformers begin with.
OWN = 'vit_jax_'
_DESCRIBED = ('preprocessing', 'decoding', 'loss')
# Pillow decodes the images of both libraries.
_DECODED = {'decoding': {'jpeg_dct': 'accurate'}}
_SIDES = ('height', 'width')

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # Of ImageNet.
_USUAL = {
  'do_resize': True,
  'size': {'height': 224, 'width': 224},
  'default_to_square': True,
  'resample': 2,
  'do_center_crop': False,
  'crop_size': None,
  'do_rescale': True,
  'rescale_factor': 1 / 255,
  'do_normalize': True,
  'image_mean': 0.5,
  'image_std': 0.5,
}
_CENTRE = {'resample': 3, 'do_center_crop': True, 'crop_size': 224}
_CLIP = _CENTRE | {
  'size': {'shortest_edge': 224},
  'default_to_square': False,
  'image_mean': (0.48145466, 0.4578275, 0.40821073),
  'image_std': (0.26862954, 0.26130258, 0.27577711),
}
# Image processor -> its defaults in transformers, which files may leave out.
PROCESSORS = {
  'ViTImageProcessor': _USUAL,
  'DeiTImageProcessor': _USUAL
  | _CENTRE
  | {'size': dict(height=256, width=256)},
  'BitImageProcessor': _USUAL | _CLIP,
  'CLIPImageProcessor': _USUAL | _CLIP,
  'SiglipImageProcessor': _USUAL | {'resample': 3, 'default_to_square': False},
  'DINOv3ViTImageProcessor': _USUAL | {'image_mean': _MEAN, 'image_std': _STD},
}
# Fields that change no value of an image in RGB.
_NO_EFFECT = {
  *('image_processor_type', 'feature_extractor_type', 'processor_class'),
  *('do_convert_rgb', 'do_reduce_labels', 'data_format', 'input_data_format'),
  *('return_tensors', 'device', 'disable_grouping'),
}
# Of PIL.Image.Resampling.
_METHODS = {n: name for name, n in PILLOW.items() if n in range(6)}
_LINEAR = PILLOW['pillow_bilinear']

_TIMM = {
  'interpolation': 'bicubic',
  'crop_pct': 0.875,
  'crop_mode': 'center',
  'mean': _MEAN,
  'std': _STD,
}


@dataclasses.dataclass(frozen=True)
class Prepared:
  """How images are prepared for a model.

  Attributes:
    preprocessing, decoding, loss: see `Weights`; empty if unknown. Only files
      that were written here know the loss.
    image_mean: of each channel, of images in [0, 1]; what the model subtracts.
      None if the model takes inputs in [-1, 1] as they are.
    image_std: what it divides by, of each channel; None likewise.
    size: (height, width) of the prepared images; None: the model's own.
  """

  preprocessing: str = ''
  decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  loss: str = ''
  image_mean: tuple[float, ...] | None = None
  image_std: tuple[float, ...] | None = None
  size: tuple[int, int] | None = None

  @property
  def described(self) -> dict[str, Any]:
    """All but `image_mean`, `image_std` and `size`."""
    return {key: getattr(self, key) for key in _DESCRIBED}


def _normalized(mean: Any, std: Any, channels: int) -> dict[str, Any]:
  """Returns `image_mean` and `image_std` of `Prepared`, as far as needed.

  Args:
    mean: one number, or one per channel; of images in [0, 1].
    std: likewise.
    channels: the number of channels.

  Raises:
    ValueError: the number of means or deviations is not that of the channels,
      or a deviation is not above 0.
  """
  values = [np.ravel(np.float64(v)) for v in (mean, std)]
  if {*map(len, values)} - {1, channels} or not (values[1] > 0).all():
    raise ValueError(
      f'mean {mean} and standard deviation {std}, expected numbers for'
      f' {channels} channels, the latter above 0'
    )
  mean, std = (tuple(np.broadcast_to(v, channels).tolist()) for v in values)
  if {*mean, *std} == {0.5}:
    return {}
  return {'image_mean': mean, 'image_std': std}


def _nearest(
  preprocessing: str, size: tuple[int, int]
) -> tuple[Resize | ResizeSmall, Sequence[int], float]:
  """Returns what both libraries can do that is nearest to operations.

  Args:
    preprocessing: the operations; '' if they are unknown.
    size: (height, width) of the model's images, in pixels.

  Returns:
    The resize; the size of the crop of its middle, () if there is none; and the
    part of the resized image that stays. For unlike operations, that is a
    bilinear resize to the size.
  """
  match ops.parse(preprocessing, image_size=size, channels=3).ops:
    case (EvalCrop() as op,):
      return op.resize, op.size, op.ratio
    case (Resize() | ResizeSmall() as op, CentralCrop(size=crop)):
      return op, crop, max(crop) / max(op.size)
    case (Resize() as op,):
      return op, (), 1.0
  return Resize(size), (), 1.0


# ---- transformers ------------------------------------------------------------


def from_transformers(
  content: Mapping[str, Any] | None,
  *,
  processor: str,
  image_size: tuple[int, int],
  channels: int = 3,
) -> Prepared:
  """Returns what an image processor of transformers does.

  The operations do what the processors on Pillow do, bit by bit. Those on
  torchvision, the default since transformers 5, round in other places: bilinear
  by 1 grey level at most, bicubic by 2 (8 beside hard edges in small images),
  by 0.02 on average. DINOv3's has no Pillow; it rounds only at the end, which
  is less than 1 grey level from here, 0.3 on average.

  Args:
    content: of `preprocessor_config.json`, or of a `processor_config.json`
      with an image processor in it. None if there is no file.
    processor: the image processor if the file names none.
    image_size: (height, width) of the model's images, in pixels. A processor
      may crop others: most of DINOv2's files have positions for 518 px, and
      crop 224 px.
    channels: of these images.

  Raises:
    ValueError: the file asks for what is not done here; all reasons are given.
  """
  if content is None:
    return Prepared()
  # For transformers, None means its default, like a missing key.
  found = content.get('image_processor', content).items()
  content = {k: v for k, v in found if v is not None}
  own = {k: content.pop(OWN + k) for k in _DESCRIBED if OWN + k in content}
  kind = content.get('feature_extractor_type', processor)
  kind = content.get('image_processor_type', kind)
  kind = kind.removesuffix('Fast').replace('FeatureExtractor', 'ImageProcessor')
  given = PROCESSORS.get(kind, PROCESSORS[processor]) | content
  if reasons := [*_refused(given, kind)]:
    raise ValueError('; '.join(reasons))
  last = _sides(given['crop_size' if given['do_center_crop'] else 'size'])
  last = pair(last) if last else image_size
  if 'preprocessing' not in own:
    operations = _operations(given, last)
    own = _DECODED | own | {'preprocessing': operations}
  mean, std = given['image_mean'], given['image_std']
  if not given['do_normalize']:
    mean, std = 0, 1
  size = last if last != image_size else None
  return Prepared(**own, **_normalized(mean, std, channels), size=size)


def _sides(size: Any) -> Any:
  """Returns a side, or (height, width); None if a size has only one edge."""
  if isinstance(size, dict) and size.keys() >= {'height', 'width'}:
    return size['height'], size['width']
  return None if isinstance(size, dict) else size


def _refused(given: Mapping[str, Any], kind: str) -> Iterator[str]:
  """Yields the fields that no operation follows, and why."""
  if kind not in PROCESSORS:
    yield f'it is for {kind!r}, known are {", ".join(PROCESSORS)}'
  if not given['do_resize']:
    yield 'do_resize=False leaves images of any size'
  if given['resample'] not in _METHODS:
    yield f'resample={given["resample"]} is no method of Pillow'
  factor = given['do_rescale'] and given['rescale_factor']
  if abs(255 * factor - 1) > 1e-6:
    yield f'the range of the images is not known: rescale_factor is {factor}'
  for key, value in given.items():
    if value and key not in {*_USUAL, *_NO_EFFECT} and not key.startswith('_'):
      yield f'{key}={value!r:.60} is unknown'


def _operations(given: Mapping[str, Any], image_size: tuple[int, int]) -> str:
  """Returns what an image processor does, as `data/ops` reads it."""

  def text(size):  # The size of the model's images goes without saying.
    sides = pair(_sides(size) or size)
    if sides == image_size:
      return ''
    return str(sides[0] if sides[0] == sides[1] else sides)

  name, size = 'resize', given['size']
  if isinstance(size, int) and not given['default_to_square']:
    size = {'shortest_edge': size}
  if isinstance(size, dict) and size.keys() == {'shortest_edge'}:
    name, size = 'resize_small', size['shortest_edge']
  method = f'method={_METHODS[given["resample"]]!r}'
  operations = f'{name}({", ".join(filter(None, (text(size), method)))})'
  if given['do_center_crop']:
    crop = text(given['crop_size'])
    operations += '|central_crop' + (f'({crop})' if crop else '')
  return operations


def to_transformers(
  prepared: Prepared,
  *,
  processor: str,
  image_size: tuple[int, int],
  channels: int = 3,
) -> dict[str, Any]:
  """Inverts `from_transformers`: returns a `preprocessor_config.json`.

  Keys of our own hold the operations, the decoding and the loss. The others
  make transformers do what is nearest to the operations. If these are unknown
  or of another kind, it resizes to the image size.

  Args:
    prepared: how images are prepared.
    processor: the image processor of such models, a key of `PROCESSORS`. If it
      does not resize or crop like this, the first that does takes its place:
      before transformers 5, they accept no other sizes.
    image_size: (height, width) of the model's images, in pixels.
    channels: of these images.
  """
  resize, crop, _ = _nearest(prepared.preprocessing, image_size)
  size = {'shortest_edge': max(resize.size)}
  if isinstance(resize, Resize):
    size = dict(zip(_SIDES, resize.size, strict=True))
  for kind in (processor, *PROCESSORS):
    usual = PROCESSORS[kind]
    same = usual['size'].keys() == size.keys()
    if same and usual['do_center_crop'] == bool(crop):
      break
  return {
    'image_processor_type': kind,
    **_USUAL,
    'size': size,
    'resample': int(PILLOW.get(resize.method, _LINEAR)),
    'do_center_crop': bool(crop),
    'crop_size': dict(zip(_SIDES, crop, strict=False)) or None,
    'image_mean': [*(prepared.image_mean or [0.5] * channels)],
    'image_std': [*(prepared.image_std or [0.5] * channels)],
    **{OWN + key: v for key, v in prepared.described.items() if v},
  }


# ---- timm --------------------------------------------------------------------


def from_timm(
  pretrained_cfg: Mapping[str, Any] | None, *, image_size: tuple[int, int]
) -> Prepared:
  """Returns what timm does in evaluation, bit by bit.

  Args:
    pretrained_cfg: of timm's `config.json`; None or empty if it has none. Its
      `input_size` is not read.
    image_size: (height, width) of the model's images, in pixels.

  Raises:
    ValueError: images are cropped or resized in a way that is not done here.
  """
  if not pretrained_cfg:
    return Prepared()
  # For timm, 0 and None mean its default, like a missing key.
  given = _TIMM | {k: v for k, v in pretrained_cfg.items() if v}
  mode, method = given['crop_mode'], f'pillow_{given["interpolation"]}'
  if mode != 'squash' and (mode, len({*image_size})) != ('center', 1):
    raise ValueError(
      f"crop_mode={mode!r}, expected 'squash', or 'center' for square images"
    )
  squash = ', squash=True' if mode == 'squash' else ''
  operations = f'eval_crop({given["crop_pct"]}, method={method!r}{squash})'
  # Raises ValueError for other values.
  ops.parse(operations, image_size=image_size, channels=3)
  mean, std = given['mean'], given['std']
  return Prepared(operations, **_DECODED, **_normalized(mean, std, len(mean)))


def to_timm(
  prepared: Prepared, *, image_size: tuple[int, int], channels: int = 3
) -> dict[str, Any]:
  """Inverts `from_timm`: returns the entries of a `pretrained_cfg`.

  They make timm do what is nearest to the operations. If these are unknown or
  of another kind, it resizes to the image size. Its crop of the middle rounds
  up where transformers' rounds down, so it may lie a pixel beside.

  Args:
    prepared: how images are prepared.
    image_size: (height, width) of the model's images, in pixels.
    channels: of these images.
  """
  resize, _, ratio = _nearest(prepared.preprocessing, image_size)
  return {
    'input_size': [channels, *image_size],
    'interpolation': PILLOW.get(resize.method, _LINEAR).name.lower(),
    'crop_pct': ratio,
    'crop_mode': 'squash' if isinstance(resize, Resize) else 'center',
    'mean': [*(prepared.image_mean or [0.5] * channels)],
    'std': [*(prepared.image_std or [0.5] * channels)],
  }
