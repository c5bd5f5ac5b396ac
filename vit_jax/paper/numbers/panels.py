"""Axes and legends of the plots among the figures of arXiv:2010.11929."""

import dataclasses

from vit_jax.paper.numbers.values import IMAGENET, IMAGENET21K, JFT, VTAB


@dataclasses.dataclass(frozen=True)
class Panel:
  """A plot.

  Attributes:
    x: what the x axis is.
    y: what the y axis is.
    x_ticks: the legible ticks, or the names along the axis.
    y_ticks: the lowest and the highest legible tick; empty if none is legible.
    series: what is plotted; models have our names.
    title: of the panel, in figures with several.
    log_x: whether the x axis is logarithmic.
    log_y: whether the y axis is.
  """

  x: str
  y: str
  x_ticks: tuple[float | str, ...]
  y_ticks: tuple[float, ...]
  series: tuple[str, ...]
  title: str = ''
  log_x: bool = False
  log_y: bool = False


FAMILIES = ('ViT', 'ResNet (BiT)', 'Hybrid')
VTAB_SERIES = (
  'ViT-H/14, JFT-300M',
  'BiT-R152x4, JFT-300M',
  'VIVI-Ex-100%, R50x3',
  'S4L, R50x1',
)
AXIAL_SERIES = (
  *('ViT-B/32', 'ViT-B/16', 'Axial-ViT-B/32', 'Axial-ViT-B/16'),
  *('AxialResNet50', 'BiT-R50x1'),
)

_FEW_SHOT = 'ImageNet, linear 5-shot top-1'
_SHAPES = ('All', 'Depth', 'Patch size', 'Width MLP', 'Width')
# `vit_jax.inference_speed` times the same, but imports JAX.
_TIMED = (
  *('BiT-R50x1', 'BiT-R50x2', 'BiT-R152x4', 'ViT-B/32', 'ViT-L/32'),
  *('ViT-B/16', 'ViT-L/16', 'ViT-H/14'),
)
_SIZES = (64, 128, 224, 384, 512)
# A dot for each head, 16 in each of the 24 layers.
_DISTANCES = ('depth, layers', 'mean attention distance, px', (0, 23), (0, 120))


def _vtab(title: str, ticks: tuple[float, float]) -> Panel:
  return Panel('', 'accuracy, %', (), ticks, VTAB_SERIES, title)


def _scaling(title: str, ticks: tuple[float, float]) -> Panel:
  compute = 'pre-training compute, exaFLOPs'
  accuracy = 'transfer accuracy, %'
  return Panel(
    compute, accuracy, (100, 1000), ticks, FAMILIES, title, log_x=True
  )


def _shape(title: str, ticks: tuple[float, float]) -> Panel:
  return Panel(
    'relative compute', 'accuracy', (1, 10), ticks, _SHAPES, title, log_x=True
  )


# Figures 1, 6 and 14 and parts of 7 are pictures.
PANELS = {
  'figure2': (
    _vtab(VTAB, (65, 80)),
    _vtab('natural', (70, 90)),
    _vtab('specialized', (80, 90)),
    _vtab('structured', (50, 70)),
  ),
  'figure3': (
    Panel(
      *('pre-training data', 'ImageNet top-1, %'),
      *((IMAGENET, IMAGENET21K, JFT), (70, 90)),
      # BiT is an area; the paper does not say of which models.
      ('BiT', 'ViT-B/32', 'ViT-B/16', 'ViT-L/32', 'ViT-L/16', 'ViT-H/14'),
    ),
  ),
  'figure4': (
    Panel(
      *('images of JFT-300M', f'{_FEW_SHOT}, %'),
      *((10e6, 30e6, 100e6, 300e6), (30, 70)),
      (
        *('ViT-L/16', 'ViT-L/32', 'ViT-B/32', 'ViT-b/32'),
        *('BiT-R50x1', 'BiT-R152x2'),
      ),
      log_x=True,
    ),
  ),
  'figure5': (
    _scaling('Average-5', (90, 95)),
    _scaling(IMAGENET, (75, 90)),
  ),
  'figure7': (Panel(*_DISTANCES, ('ViT-L/16',), 'right'),),
  'figure8': (
    _shape('ImageNet 5shot', (0.2, 0.6)),
    _shape('Average 5shot', (0.4, 0.8)),
  ),
  'figure9': (
    Panel(
      *('epochs', f'{_FEW_SHOT}, %', (0, 7), (25, 60)),
      ('CLS, lr=8e-4', 'GAP, lr=8e-4', 'GAP, lr=3e-4'),
    ),
  ),
  # 14x14 maps, one for each patch, with cosines between -1 and 1.
  'figure10': tuple(
    Panel('patch column', 'patch row', (), (), ('ViT-L/16',), setting)
    for setting in (
      '7 epochs, LR=2e-4, WD=0.01',
      '7 epochs, LR=4e-4, WD=0.1',
      '14 epochs, LR=4e-4, WD=0.1',
    )
  ),
  'figure11': (
    Panel(*_DISTANCES, ('ViT-L/16',), 'ViT-L/16'),
    Panel(*_DISTANCES, ('R50+ViT-L/16',), 'R50+ViT-L/16'),
  ),
  'figure12': (
    Panel(
      *('input size, px', 'peak inference speed, images/s/core'),
      *(_SIZES, (), _TIMED, 'left'),
      log_y=True,
    ),
    Panel(
      *('input size, px', 'largest batch that fits a core'),
      *(_SIZES, (), _TIMED, 'right'),
      log_y=True,
    ),
  ),
  # The paper's caption calls both panels left.
  'figure13': (
    Panel(
      *('pre-training compute, exaFLOPs', _FEW_SHOT),
      *((100, 1000), (0.5, 0.65), AXIAL_SERIES, 'left'),
      log_x=True,
    ),
    Panel(
      *('peak inference speed, images/s/core', _FEW_SHOT),
      *((), (0.5, 0.65), AXIAL_SERIES, 'right'),
      log_x=True,
    ),
  ),
}
