"""Figures 3 and 5 as items: drawn from the runs of Tables 5 and 6."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from vit_jax.compare import drawing
from vit_jax.paper import averages, cost, numbers, plots
from vit_jax.paper.claims import transfer_claims
from vit_jax.paper.items import table_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Claim, Picture, Section
from vit_jax.paper.runs import Pretraining, Results, Transfer

_DATA = (values.IMAGENET, values.IMAGENET21K, values.JFT)
_VITS = ('ViT-B/32', 'ViT-B/16', 'ViT-L/32', 'ViT-L/16', 'ViT-H/14')
# The paper does not name Figure 3's BiT models; these are Table 6's smallest
# and largest with 7 epochs.
_BITS = ('BiT-R50x1', 'BiT-R152x2')
# Claims need three pre-trainings of a model. All models have three on
# ImageNet, which is small. On JFT-300M, the following (model, epochs) have
# three. Most are also runs of Figure 4 or Tables 7 and 8. Figure 5's smallest
# hybrid is compared with ViT-B/32 and ViT-L/32, which have less and more
# compute. In miniature, two more have three: Figure 3's best ViT, and the
# ResNet below ViT-B/32 in Figure 5.
_SEEDS = 3
_SEVERAL = tuple((model, 7) for model in ('ViT-B/32', 'ViT-L/32', *_BITS))
_BEST = (('ViT-B/16', 7), ('ViT-L/16', 14))
_SEVERAL_3 = {
  'paper': (*_SEVERAL, ('ViT-B/16', 7)),
  'mini': (*_SEVERAL, *_BEST),
}
_SEVERAL_5 = {
  'paper': (*_SEVERAL, ('R50+ViT-B/32', 7)),
  'mini': (*_SEVERAL, ('R50+ViT-B/32', 7), ('BiT-R50x2', 7)),
}
_ERROR_BARS = (
  ' Error bars are standard deviations over pre-trainings, for points with'
  f' {_SEEDS} of them; the value of each is the mean of its fine-tuning runs.'
)
# Scale -> the models whose compute Figure 5 counts.
_COUNTED = {'paper': "the paper's models", 'mini': 'the models that were run'}


def figure3() -> Item:
  """Fine-tuned accuracy on ImageNet by pre-training data (Section 4.3)."""
  title = 'ImageNet accuracy by pre-training data'
  # The paper has no ViT-H/14 that is pre-trained on ImageNet.
  starts = {
    scale: {
      (model, data): _seeds(table_items.pretraining(model, data), several)
      for data in _DATA
      for model in (*_VITS, *_BITS)
      if (model, data) != ('ViT-H/14', values.IMAGENET)
    }
    for scale, several in _SEVERAL_3.items()
  }

  def render(results: Results, pictures: pathlib.Path) -> Section:
    found = {
      place: averages.transfers(results, seeds, values.IMAGENET)
      for place, seeds in starts[results.scale].items()
    }
    points = {place: n for place, n in found.items() if n is not None}
    # Without all BiT models, the range would be misleading.
    for data in _DATA:
      if any((model, data) not in points for model in _BITS):
        for model in _BITS:
          points.pop((model, data), None)
    notes = table_items.seen(results) + table_items.images_21k(results)
    # In miniature each model has one rate.
    if results.comparable:
      notes.append(
        'The paper gives no settings for BiT on the smaller data sets. Here BiT'
        ' has the settings of its authors on ImageNet (90 epochs of SGD), and'
        ' those of the ViTs on ImageNet-21k.'
      )
    seen = ''.join(f' {note}' for note in notes)
    options = dict(data=_DATA, paper=numbers.FIGURES['figure3'])
    drawing.save(
      plots.figure3(points, overlay=results.comparable, **options),
      pictures / 'figure3',
      plots.figure3_rows(points, **options),
      mark=results.mark,
    )
    return _section(
      'figure3',
      title,
      "The paper's finding: large ViTs need much data. Pre-trained on ImageNet"
      ' they are worse than smaller ViTs and than BiT; pre-trained on JFT-300M'
      f' they are best.{seen}{_ERROR_BARS}',
      pictures,
      transfer_claims.data_claims(found),
    )

  return _item('figure3', title, starts, (values.IMAGENET,), render)


def figure5() -> Item:
  """Accuracy by compute of the pre-training (Section 4.4)."""
  title = 'Accuracy by compute of the pre-training'
  starts = {
    scale: {
      row: _seeds(Pretraining(model, values.JFT, epochs), several)
      for row, (model, epochs) in zip(
        numbers.TABLE_6.rows, numbers.ROWS_6, strict=True
      )
    }
    for scale, several in _SEVERAL_5.items()
  }

  def render(results: Results, pictures: pathlib.Path) -> Section:
    points, scaled = {}, {}
    for row, seeds in starts[results.scale].items():
      family, compute = (
        _family(seeds[0].model),
        cost.compute_of(results, seeds[0]),
      )
      average = averages.average5_transfers(results, seeds)
      scaled[row] = transfer_claims.Scaled(family, compute, average)
      panels = {
        'Average-5': average,
        'ImageNet': averages.transfers(results, seeds, values.IMAGENET),
      }
      found = {name: n for name, n in panels.items() if n is not None}
      if found and compute is not None:
        points[row] = (family, compute, found)
    # In miniature the paper's points would be in another unit.
    paper = numbers.FIGURES['figure5'] if results.comparable else ()
    unit = cost.UNITS[results.scale]
    drawing.save(
      plots.figure5(points, paper, x_label=f'Pre-training compute ({unit})'),
      pictures / 'figure5',
      plots.figure5_rows(points, paper),
      mark=results.mark,
    )
    return _section(
      'figure5',
      title,
      "The paper's finding: ViTs reach an accuracy with 2 to 4 times less"
      ' compute than ResNets; hybrids are ahead where compute is small.'
      f' Compute is counted in the forward pass of {_COUNTED[results.scale]},'
      ' times 3 for forward and backward pass, times the images that are'
      f' seen.{_ERROR_BARS}',
      pictures,
      transfer_claims.compute_claims(scaled),
    )

  return _item('figure5', title, starts, numbers.AVERAGE5, render)


def _item(
  name: str,
  title: str,
  starts: Mapping[str, Mapping[object, Sequence[Pretraining]]],
  tasks: Sequence[str],
  render: Callable[[Results, pathlib.Path], Section],
) -> Item:
  """Makes an item of `starts`, scale -> point -> seeds, fine-tuned on tasks."""
  nodes = {
    scale: tuple(
      Transfer(start, task)
      for seeds in points.values()
      for start in seeds
      for task in tasks
    )
    for scale, points in starts.items()
  }
  return Item(name, title, nodes['paper'], render, in_miniature=nodes['mini'])


def _seeds(
  start: Pretraining, several: Sequence[tuple[str, float]]
) -> list[Pretraining]:
  """Returns the pre-trainings of a point.

  Args:
    start: the first one.
    several: (model, epochs) with more than one pre-training on JFT-300M.
  """
  many = start.data == values.IMAGENET or (
    start.data == values.JFT and (start.model, start.epochs) in several
  )
  return table_items.seeds(start, _SEEDS if many else 1)


def _family(model: str) -> str:
  if model.startswith('BiT-'):
    return 'ResNet'
  return 'Hybrid' if '+' in model else 'Transformer'


def _section(
  name: str,
  title: str,
  caption: str,
  pictures: pathlib.Path,
  answers: Sequence[Claim],
) -> Section:
  picture = Picture(title, f'{pictures.name}/{name}', caption)
  return Section(name, title, (picture, *answers))
