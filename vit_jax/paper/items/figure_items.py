"""Figures 3 and 5 as items: drawn from the runs of Tables 5 and 6."""

import pathlib

from vit_jax.pages import drawing
from vit_jax.paper import averages, cost, numbers, plots
from vit_jax.paper.claims import transfer_claims
from vit_jax.paper.items import table_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Picture, Section
from vit_jax.paper.runs import Results, Transfer, pretraining

_DATA = (values.IMAGENET, values.IMAGENET21K, values.JFT)
_VITS = ('ViT-B/32', 'ViT-B/16', 'ViT-L/32', 'ViT-L/16', 'ViT-H/14')
_ERROR_BARS = (
  ' If a model was pre-trained with several seeds, the point shows the mean'
  ' over the seeds, and the error bar shows the standard deviation. The'
  ' accuracy of a seed is the mean over its fine-tuning runs.'
)


def figure3() -> Item:
  """Fine-tuned accuracy on ImageNet by pre-training data (Section 4.3)."""
  title = 'ImageNet accuracy by pre-training data'
  # The paper has no ViT-H/14 that is pre-trained on ImageNet.
  starts = {
    (model, data): pretraining(model, data)
    for data in _DATA
    for model in (*_VITS, *transfer_claims.BITS)
    if (model, data) != ('ViT-H/14', values.IMAGENET)
  }

  def render(results: Results, pictures: pathlib.Path) -> Section:
    found = {
      place: averages.transfers(results, results.seeds(start), values.IMAGENET)
      for place, start in starts.items()
    }
    points = {place: n for place, n in found.items() if n is not None}
    # Without all BiT models, the range would be misleading.
    for data in _DATA:
      if any((model, data) not in points for model in transfer_claims.BITS):
        for model in transfer_claims.BITS:
          points.pop((model, data), None)
    notes = table_items.seen(results) + table_items.images_21k(results)
    # In miniature each model has one rate.
    if results.comparable:
      notes.append(
        'The paper does not say how it pre-trained BiT on ImageNet and on'
        " ImageNet-21k. On ImageNet, we use the BiT authors' settings: 90"
        ' epochs of SGD. On ImageNet-21k, we use the settings of the ViTs.'
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
      "The paper's finding: large ViTs need much data. If they are pre-trained"
      ' on ImageNet, they are worse than smaller ViTs and than BiT. If they are'
      f' pre-trained on JFT-300M, they are the best.{seen}{_ERROR_BARS}',
      pictures,
    )

  return Item(
    'figure3',
    title,
    tuple(Transfer(start, values.IMAGENET) for start in starts.values()),
    render,
    claims=transfer_claims.figure3,
  )


def figure5() -> Item:
  """Accuracy by compute of the pre-training (Section 4.4)."""
  title = 'Accuracy by compute of the pre-training'
  starts = transfer_claims.starts5()

  def render(results: Results, pictures: pathlib.Path) -> Section:
    points = {}
    for row, start in starts.items():
      family = transfer_claims.family(start.model)
      compute = cost.compute_of(results, start)
      seeds = results.seeds(start)
      panels = {
        'Average-5': averages.average5_transfers(results, seeds),
        'ImageNet': averages.transfers(results, seeds, values.IMAGENET),
      }
      found = {name: n for name, n in panels.items() if n is not None}
      if found and compute is not None:
        points[row] = (family, compute, found)
    # In miniature the paper's points would be in another unit.
    paper = numbers.FIGURES['figure5'] if results.comparable else ()
    unit = cost.UNITS[results.scale]
    counted = 'our smaller models'
    if results.comparable:
      counted = "the paper's models"
    drawing.save(
      plots.figure5(points, paper, x_label=f'Pre-training compute ({unit})'),
      pictures / 'figure5',
      plots.figure5_rows(points, paper),
      mark=results.mark,
    )
    return _section(
      'figure5',
      title,
      "The paper's finding: for the same accuracy, ViTs need 2 to 4 times less"
      ' compute than ResNets. With little compute, hybrids are ahead of ViTs.'
      ' The compute of a pre-training is the number of operations of a forward'
      ' pass on one image, times 3 to include the backward pass, times the'
      ' number of images seen. We calculate the operations from the layers of'
      f' {counted}.{_ERROR_BARS}',
      pictures,
    )

  return Item(
    'figure5',
    title,
    tuple(
      Transfer(start, task)
      for start in starts.values()
      for task in numbers.AVERAGE5
    ),
    render,
    claims=transfer_claims.figure5,
  )


def _section(
  name: str,
  title: str,
  caption: str,
  pictures: pathlib.Path,
) -> Section:
  picture = Picture(title, f'{pictures.name}/{name}', caption)
  return Section(name, title, (picture,))
