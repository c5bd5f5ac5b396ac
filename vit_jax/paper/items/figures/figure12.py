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
from collections.abc import Iterator, Mapping, Sequence

from vit_jax.inference_speed import networks, store
from vit_jax.paper import answers, plots
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items import speeds
from vit_jax.paper.report import Claim, Missing
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

_OF_EACH = (
  'for each pair, on the geometric mean over sizes. Similar are models whose'
  ' operations at the size of pre-training differ by a factor of'
  f' {SIMILAR_FACTOR:g} at most.'
)
_STATEMENTS = (
  'The speed of ViTs is comparable to that of similar ResNets (D.5, Figure'
  ' 12).',
  'Large ViTs are clearly more memory-efficient than ResNets: larger'
  ' batches fit into the memory (D.5, Figure 12).',
  "In theory, a ViT's time for an image grows with the fourth power of the"
  " image's side. This begins to show only for the largest models at the"
  ' largest sizes (D.5, Figure 12).',
)


def of_measured(measured: store.Measured | None, scale: str) -> list[Claim]:
  """Returns the answers to the three claims.

  Args:
    measured: the measurements of a device; None: there are none.
    scale: 'paper' or 'mini', the scale of the measured models.
  """
  pairs = SIMILAR[scale]
  large = [pair for pair in pairs if not pair[0].startswith('ViT-B')]
  tests = (
    (itertools.chain(*pairs), lambda found: _speed(found, pairs)),
    (itertools.chain(*large), lambda found: _memory(found, large)),
    (_VITS, _growth),
  )
  answered = []
  for statement, (models, test) in zip(_STATEMENTS, tests, strict=True):
    lacking = [
      f'{model} at {size} px'
      for model in dict.fromkeys(models)
      for size in networks.SIZES[scale]
      if measured is None or measured.find(model, size) is None
    ]
    answer = answers.MISSING
    if lacking:
      said = (
        f'Not measured yet: {len(lacking)} of the speeds that it needs, such as'
        f' {lacking[0]}.'
      )
    elif found := test(measured):
      holds, numbers = found
      answer = answers.SEEN if holds else answers.NOT_SEEN
      said = f'{measured.settings.device}, one sample: {numbers}'
    else:
      device = measured.settings.device
      said = f'{device}: too few of the models fit the memory.'
    answered.append(Claim(statement, answer, said))
  return answered


# Each test returns whether a claim holds and the numbers behind that, or None
# if too little fits the memory.
_Tested = tuple[bool, str] | None
_Pairs = Sequence[tuple[str, str]]


def _speed(measured: store.Measured, pairs: _Pairs) -> _Tested:
  ratios = _ratios(measured, pairs, 'images_per_second')
  return ratios and (
    all(1 / _COMPARABLE <= ratio <= _COMPARABLE for ratio in ratios.values()),
    f'images a second, {_listed(ratios)} Comparable is a factor of'
    f' {_COMPARABLE:g} at most, {_OF_EACH}',
  )


def _memory(measured: store.Measured, pairs: _Pairs) -> _Tested:
  ratios = _ratios(measured, pairs, 'largest_batch')
  return ratios and (
    all(ratio >= _CLEARLY for ratio in ratios.values()),
    f'largest batch, {_listed(ratios)} Clearly is a factor of {_CLEARLY:g} at'
    f' least, {_OF_EACH}',
  )


def _ratios(
  measured: store.Measured, pairs: _Pairs, field: str
) -> dict[tuple[str, str], float] | None:
  """Returns for each pair the ratio of a field, a geometric mean over sizes.

  A size counts if both models fit the memory; None: a pair has no such size.
  """
  found = {}
  for pair in pairs:
    both = [
      [getattr(measured.find(model, size), field) for model in pair]
      for size in networks.SIZES[measured.settings.scale]
    ]
    ratios = [vit / resnet for vit, resnet in both if vit and resnet]
    if not ratios:
      return None
    found[pair] = statistics.geometric_mean(ratios)
  return found


def _listed(ratios: Mapping[tuple[str, str], float]) -> str:
  each = (f'{vit} by {bit} {ratio:.2f}' for (vit, bit), ratio in ratios.items())
  return f'ViT by ResNet: {"; ".join(each)}.'


def _growth(measured: store.Measured) -> _Tested:
  """Compares the power of the side that the time of an image grows with."""
  sizes = networks.SIZES[measured.settings.scale]
  last, others = {}, {}
  for model in _VITS:
    for low, high in itertools.pairwise(sizes):
      fast, slow = (
        measured.find(model, size).images_per_second for size in (low, high)
      )
      if fast and slow:
        largest = model in LARGEST and high == sizes[-1]
        power = math.log(fast / slow) / math.log(high / low)
        (last if largest else others)[model, high] = power
  if not last or not others:
    return None
  begins = statistics.fmean(last.values())
  model, size = max(others, key=others.get)
  models = ' and '.join(name for name, _ in last)
  return begins > _BEGINS and others[model, size] < _BELOW, (
    'power of the side by which the time of an image grows, between'
    f' neighbouring sizes: {begins:.2f} for {models} up to {sizes[-1]} px; at'
    f' most {others[model, size]:.2f} elsewhere ({model} up to {size} px). The'
    ' number of pixels grows with the power 2. The claim needs more than'
    f' {_BEGINS:g} for the former, and less than {_BELOW:g} elsewhere.'
  )


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  folder = pictures.parent / 'measured'
  found = speeds.read(folder, results.scale)
  # Empty axes show that the figure is missing.
  for stem, measured in (found or {'figure12': None}).items():
    title, caption = _TITLE, _FINDING
    if measured:
      title = f'{_TITLE}: {measured.settings.device}'
      caption = f'{_FINDING} {speeds.described(measured.settings)}'
    figure, marks = _draw(measured)
    yield plots.save(stem, title, caption, figure, marks, pictures, results)
  for measured in found.values() or [None]:
    yield from of_measured(measured, speeds.timed(results.scale))
  if not found:
    yield Missing(speeds.missing(folder, results.scale))


def _draw(measured: store.Measured | None):
  """Returns the figure of a device, and its marks.

  Both axes are logarithmic, so models that do not fit the memory are not drawn.
  """
  marks = [
    plots.Mark(entry.model, entry.size, float(number), None, 1, panel)
    for entry in (measured.entries if measured else ())
    # The axial models are Figure 13's, in the same file.
    if 'Axial' not in entry.model
    for panel, number in (
      ('left', entry.images_per_second),
      ('right', entry.largest_batch),
    )
    if number
  ]
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
  _blocks,
  measure=speeds.measure,
  measured=speeds.progress,
)
