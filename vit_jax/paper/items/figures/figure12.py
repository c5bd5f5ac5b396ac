"""Figure 12: speed and memory of inference by image size (Appendix D.5).

It needs no runs: a file of `vit_jax.inference_speed` answers the claims. It is
of one device, which is one sample, so the answers are 'seen once' or 'not
seen'. The paper says neither which models are similar nor how much is
comparable or clear. These are choices, which were made before any measurement
was looked at.
"""

import itertools
import math
import pathlib
import statistics
from collections.abc import Callable, Sequence

from vit_jax.inference_speed import networks, store
from vit_jax.paper import answers, plots
from vit_jax.paper.item import Item
from vit_jax.paper.items.figures import speeds
from vit_jax.paper.report import Claim, Number, Section
from vit_jax.paper.runs import Results

_TITLE = 'Inference speed and largest batch by input size'
_FINDING = (
  "The paper's finding (Appendix D.5): ViTs are about as fast as comparable"
  ' ResNets. For large ViTs, clearly larger batches fit into the memory than'
  ' for ResNets.'
)
# Scale -> ViTs with the ResNets that are similar: the operations of a forward
# pass at the size of pre-training are within this factor of each other.
SIMILAR_FACTOR = 1.6
SIMILAR = {
  'paper': (
    ('ViT-B/32', 'BiT-R50x1'),
    ('ViT-L/32', 'BiT-R50x2'),
    ('ViT-B/16', 'BiT-R50x2'),
    ('ViT-H/14', 'BiT-R152x4'),
  ),
  'mini': (
    ('ViT-B/32', 'BiT-R50x2'),
    ('ViT-L/32', 'BiT-R152x4'),
    ('ViT-B/16', 'BiT-R152x4'),
  ),
}
# The two ViTs with the most operations.
LARGEST = ('ViT-L/16', 'ViT-H/14')
_VITS = tuple(name for name in networks.MODELS if name.startswith('ViT'))
# Speeds within this factor are comparable.
_COMPARABLE = 2.0
# Batches that are larger by this factor are clearly larger.
_CLEARLY = 1.5
# More than the number of pixels, the second power of the side, by more than the
# errors of two speeds. By their operations, the largest models have 2.22
# between the largest sizes of the paper.
_BEGINS = 2.1
# Half-way from the second power to the fourth.
_BELOW = 3.0

_SIMILAR_TEXT = (
  'Similar are models whose operations at the size of pre-training differ by a'
  f' factor of {SIMILAR_FACTOR:g} at most.'
)


def of_measured(measured: store.Measured | None, scale: str) -> list[Claim]:
  """Returns the answers to the three claims.

  Args:
    measured: the measurements of a device; None: there are none.
    scale: 'paper' or 'mini', the scale of the measured models.
  """
  similar = SIMILAR[scale]
  large = [pair for pair in similar if not pair[0].startswith('ViT-B')]
  return [
    _answer(
      'The speed of ViTs is comparable to that of similar ResNets (D.5, Figure'
      ' 12).',
      itertools.chain(*similar),
      lambda found: _speed(found, similar),
      measured,
      scale,
    ),
    _answer(
      'Large ViTs are clearly more memory-efficient than ResNets: larger'
      ' batches fit into the memory (D.5, Figure 12).',
      itertools.chain(*large),
      lambda found: _memory(found, large),
      measured,
      scale,
    ),
    _answer(
      "In theory, a ViT's time for an image grows with the fourth power of the"
      " image's side. This begins to show only for the largest models at the"
      ' largest sizes (D.5, Figure 12).',
      _VITS,
      _growth,
      measured,
      scale,
    ),
  ]


# Returns whether a claim holds and the numbers behind that, or None if too
# little fits the memory.
_Test = Callable[[store.Measured], tuple[bool, str] | None]


def _answer(
  statement: str,
  models: Sequence[str],
  test: _Test,
  measured: store.Measured | None,
  scale: str,
) -> Claim:
  lacking = [
    f'{model} at {size} px'
    for model in dict.fromkeys(models)
    for size in networks.SIZES[scale]
    if measured is None or measured.find(model, size) is None
  ]
  if lacking:
    return Claim(
      statement,
      answers.MISSING,
      f'Not measured yet: {len(lacking)} of the speeds that it needs, such as'
      f' {lacking[0]}.',
    )
  device = measured.settings.device
  found = test(measured)
  if found is None:
    why = f'{device}: too few of the models fit the memory.'
    return Claim(statement, answers.MISSING, why)
  holds, numbers = found
  answer = answers.SEEN if holds else answers.NOT_SEEN
  return Claim(statement, answer, f'{device}, one sample: {numbers}')


def _speed(
  measured: store.Measured, pairs: Sequence[tuple[str, str]]
) -> tuple[bool, str] | None:
  ratios = _ratios(measured, pairs, 'images_per_second')
  if ratios is None:
    return None
  holds = all(1 / _COMPARABLE <= ratio <= _COMPARABLE for ratio in ratios)
  return holds, (
    f'images a second, ViT by ResNet: {_listed(pairs, ratios)}.'
    f' Comparable is a factor of {_COMPARABLE:g} at most, for each pair, on the'
    f' geometric mean over sizes. {_SIMILAR_TEXT}'
  )


def _memory(
  measured: store.Measured, pairs: Sequence[tuple[str, str]]
) -> tuple[bool, str] | None:
  ratios = _ratios(measured, pairs, 'largest_batch')
  if ratios is None:
    return None
  return all(ratio >= _CLEARLY for ratio in ratios), (
    f'largest batch, ViT by ResNet: {_listed(pairs, ratios)}.'
    f' Clearly is a factor of {_CLEARLY:g} at least, for each pair, on the'
    f' geometric mean over sizes. {_SIMILAR_TEXT}'
  )


def _ratios(
  measured: store.Measured, pairs: Sequence[tuple[str, str]], field: str
) -> list[float] | None:
  """Returns for each pair the ratio of a field, a geometric mean over sizes.

  A size counts if both models fit the memory; None: a pair has no such size.
  """
  means = []
  for pair in pairs:
    ratios = []
    for size in networks.SIZES[measured.settings.scale]:
      vit, resnet = (getattr(measured.find(m, size), field) for m in pair)
      if vit and resnet:
        ratios.append(vit / resnet)
    if not ratios:
      return None
    means.append(statistics.geometric_mean(ratios))
  return means


def _listed(pairs: Sequence[tuple[str, str]], ratios: Sequence[float]) -> str:
  return '; '.join(
    f'{vit} by {resnet} {ratio:.2f}'
    for (vit, resnet), ratio in zip(pairs, ratios, strict=True)
  )


def _growth(measured: store.Measured) -> tuple[bool, str] | None:
  """Compares the power of the side that the time of an image grows with."""
  sizes = networks.SIZES[measured.settings.scale]
  powers = {}
  for model in _VITS:
    for low, high in itertools.pairwise(sizes):
      fast, slow = (
        measured.find(model, size).images_per_second for size in (low, high)
      )
      if fast and slow:
        powers[model, high] = math.log(fast / slow) / math.log(high / low)
  last = {
    place: power
    for place, power in powers.items()
    if place[0] in LARGEST and place[1] == sizes[-1]
  }
  others = {
    place: power for place, power in powers.items() if place not in last
  }
  if not last or not others:
    return None
  begins = statistics.fmean(last.values())
  (model, size), most = max(others.items(), key=lambda item: item[1])
  models = ' and '.join(name for name, _ in last)
  return begins > _BEGINS and most < _BELOW, (
    'power of the side by which the time of an image grows, between'
    f' neighbouring sizes: {begins:.2f} for {models} up to {sizes[-1]} px; at'
    f' most {most:.2f} elsewhere ({model} up to {size} px). The number of'
    f' pixels grows with the power 2. The claim needs more than {_BEGINS:g} for'
    f' the former, and less than {_BELOW:g} elsewhere.'
  )


def _render(results: Results, pictures: pathlib.Path) -> Section:
  folder = pictures.parent / 'measured'
  scale = speeds.timed(results.scale)
  found = speeds.read(folder, scale)
  blocks, claims = [], []
  # Empty axes show that the figure is missing.
  for stem, measured in (found or {'figure12': None}).items():
    title, caption = _TITLE, _FINDING
    if measured:
      title = f'{_TITLE}: {measured.settings.device}'
      caption = f'{_FINDING} {speeds.described(measured.settings)}'
    figure, marks = _draw(measured)
    blocks.append(
      plots.save(stem, title, caption, figure, marks, pictures, results)
    )
    claims += of_measured(measured, scale)
  return Section(
    'figure12',
    _TITLE,
    (*blocks, *claims),
    measured=speeds.progress(results.scale, folder),
    missing=() if found else (speeds.missing(folder, results.scale),),
  )


def _draw(measured: store.Measured | None):
  """Returns the figure of a device, and its marks.

  Both axes are logarithmic, so models that do not fit the memory are not drawn.
  """
  marks = []
  for entry in measured.entries if measured else ():
    numbers = {'left': entry.images_per_second, 'right': entry.largest_batch}
    for panel, number in numbers.items():
      # The axial models are Figure 13's, in the same file.
      if number and 'Axial' not in entry.model:
        found = Number((float(number),), ('',))
        marks += plots.Mark.of(entry.model, entry.size, found, panel)
  unit = measured.settings.unit if measured else 'core'
  figure = plots.lines(
    marks,
    x_label='Input size (px)',
    y_label=(
      f'Peak speed (images/s/{unit})',
      f'Largest batch that fits a {unit}',
    ),
    panels={'left': '', 'right': ''},
    log_y=True,
    x_ticks=sorted({mark.x for mark in marks}),
    height=3.5,
  )
  return figure, marks


ITEM = Item(
  'figure12',
  _TITLE,
  _render,
  measure=speeds.measure,
  measured=speeds.progress,
)
