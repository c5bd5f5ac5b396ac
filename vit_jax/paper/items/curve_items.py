"""Figures 4, 9 and 13 as items: few-shot accuracy over images, epochs, compute.

Figure 8 is in `scaling_item`.
"""

import pathlib
from collections.abc import Mapping, Sequence

from vit_jax.inference_speed import networks, store
from vit_jax.pages import drawing
from vit_jax.paper import averages, cost, numbers, plots
from vit_jax.paper.claims import curve_claims
from vit_jax.paper.items import speed_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import panels
from vit_jax.paper.report import Picture, Section
from vit_jax.paper.runs import Results

_ALL_IMAGES = 300_000_000
# In miniature, these large models of Figure 4 have only the points of claims.
_LARGE = ('ViT-L/16', 'BiT-R152x2')
_COUNTS = {
  'paper': 'Models that no claim needs have one run for each point.',
  'mini': 'In miniature, the curves of ViT-L/16 and BiT-R152x2 have only the'
  ' points that the claims need. The paper compares ViT-B/32 with'
  f' {curve_claims.RESNET["paper"]}. In miniature, this ResNet has far less'
  ' compute than ViT-B/32. So the claims compare ViT-B/32 with'
  f' {curve_claims.RESNET["mini"]}. We chose {curve_claims.RESNET["mini"]}'
  ' after the first runs of this figure (LOG.md). In miniature, all'
  ' numbers of images are divided by the same factor. We still call them 9M,'
  ' 30M, 90M and 300M, as in the paper.',
}
_POOLING_MINI = (
  ' In miniature, the class token has a linear head, too. Each learning rate is'
  " the paper's, times one common factor. Each curve is the mean of several"
  ' runs.'
)


def figure4() -> Item:
  """Few-shot accuracy by number of pre-training images (Section 4.3)."""
  title = 'Few-shot accuracy by number of pre-training images'
  [panel] = panels.PANELS['figure4']
  tested = {
    start for claim in curve_claims.figure4('mini') for start in claim.starts()
  }
  every = {
    (model, images): curve_claims.run(model, images=images)
    for model in (*panel.series, curve_claims.RESNET['mini'])
    for images in curve_claims.IMAGES
  }
  starts = {
    'paper': {k: start for k, start in every.items() if k[0] in panel.series},
    'mini': {
      k: start
      for k, start in every.items()
      if k[0] not in _LARGE or start in tested
    },
  }

  def render(results: Results, pictures: pathlib.Path) -> Section:
    points = {
      (model, images or _ALL_IMAGES): number
      for (model, images), start in starts[results.structure].items()
      if (
        number := results.early_stopped(results.seeds(start), averages.FEW_SHOT)
      )
      is not None
    }
    paper = numbers.FIGURES['figure4']
    label = 'Number of JFT-300M images'
    if not results.comparable:
      label = 'JFT-300M images\n(pre-training images, in proportion)'
    drawing.save(
      plots.figure4(
        points, paper=paper, overlay=results.comparable, x_label=label
      ),
      pictures / 'figure4',
      plots.figure4_rows(points, paper=paper),
      mark=results.mark,
    )
    return _section(
      'figure4',
      title,
      "The paper's finding: with few images, ResNets are ahead, but they level"
      ' off. With more images, ViTs overtake them. Larger ViTs need more images'
      ' to overtake the ResNets. We pre-train each model on random subsets of'
      ' JFT-300M, of several sizes, and on all of it. The settings are the same'
      ' each time. We show the few-shot accuracy at'
      ' the step of the pre-training where the model was most accurate on'
      ' held-out pre-training images (early stopping, as in the paper).',
      pictures,
      [
        _COUNTS[results.structure],
        'The paper does not say for how many steps it pre-trained on the'
        ' subsets of JFT-300M. Here, a model that is pre-trained on a subset'
        ' takes as many steps as one that is pre-trained on all images.',
      ],
    )

  return Item(
    'figure4',
    title,
    tuple(starts['paper'].values()),
    render,
    claims=curve_claims.figure4,
    in_miniature=tuple(starts['mini'].values()),
    curves=True,
  )


def figure9() -> Item:
  """Class token and mean over patches, during pre-training (D.3)."""
  title = 'Class token and global average pooling'
  starts = {scale: curve_claims.curves(scale) for scale in ('paper', 'mini')}

  def render(results: Results, pictures: pathlib.Path) -> Section:
    curves = {
      label: [
        (start.epochs * part, number)
        for part, number in results.curve(
          results.seeds(start), averages.FEW_SHOT
        )
      ]
      for label, start in starts[results.structure].items()
    }
    paper = numbers.FIGURES['figure9']
    drawing.save(
      plots.figure9(curves, paper, overlay=results.comparable),
      pictures / 'figure9',
      plots.figure9_rows(curves, paper),
      mark=results.mark,
    )
    return _section(
      'figure9',
      title,
      "The paper's finding: the mean over patches (GAP) with a linear head"
      ' works as well as a class token with a hidden layer, but needs a lower'
      ' learning rate.' + ('' if results.comparable else _POOLING_MINI),
      pictures,
      [
        'The paper does not say which model it trained for Figure 9. Here it is'
        ' ViT-B/16.'
      ],
    )

  return Item(
    'figure9',
    title,
    tuple(starts['paper'].values()),
    render,
    in_miniature=tuple(starts['mini'].values()),
    claims=curve_claims.figure9,
    curves=True,
  )


def _speeds(
  folder: pathlib.Path, results: Results
) -> tuple[store.Settings | None, Mapping[str, float]]:
  """Returns where Figure 12 was measured, and model -> images per second.

  The speed is that of the local device, or else the compiler's estimate for the
  paper's device. If neither exists, there are no numbers.
  """
  scale = speed_items.scale_of(results.scale)
  for measured in speed_items.read(folder, scale).values():
    found = measured.speeds(networks.PRETRAINING_SIZE[scale])
    if found:
      return measured.settings, found
  return None, {}


def figure13() -> Item:
  """Axial models, by compute and by speed (D.6)."""
  title = 'Few-shot accuracy of axial models'
  every = {
    scale: {
      model: curve_claims.axial(scale, model) for model in panels.AXIAL_SERIES
    }
    for scale in ('paper', 'mini')
  }

  def render(results: Results, pictures: pathlib.Path) -> Section:
    starts = every[results.structure]
    settings, found = _speeds(pictures.parent / 'measured', results)
    points = {
      model: (cost.compute_of(results, node), found.get(model), number)
      for model, node in starts.items()
      if (number := results.few_shot(results.seeds(node), scale=1.0))
      is not None
    }
    # In miniature the paper's points would be in another unit.
    paper = numbers.FIGURES['figure13'] if results.comparable else ()
    drawing.save(
      plots.figure13(
        points,
        paper,
        compute_unit=cost.UNITS[results.scale],
        unit=settings.unit if settings else 'core',
      ),
      pictures / 'figure13',
      plots.figure13_rows(points, paper),
      mark=results.mark,
    )
    where = f': {settings.device}' if settings else ''
    notes = [
      "The paper's tables have no learning rate for axial models. The one that"
      ' we chose is in configs/pretrain.py.'
    ]
    missing = []
    unknown = [model for model in starts if model not in found]
    if unknown:
      missing.append(
        f'The speed of {", ".join(unknown)} is not measured yet. The item'
        ' figure12 measures these speeds.'
      )
    return _section(
      'figure13',
      title,
      "The paper's finding: axial ViTs are better than the ViTs that they are"
      ' derived from, and cost more compute. AxialResNet50 is accurate for its'
      ' compute, but very slow. Speed is the inference speed, measured as for'
      f' Figure 12{where}.',
      pictures,
      notes,
      missing,
    )

  return Item(
    'figure13',
    title,
    tuple(every['paper'].values()),
    render,
    in_miniature=tuple(every['mini'].values()),
    claims=curve_claims.figure13,
  )


def _section(
  name: str,
  title: str,
  caption: str,
  pictures: pathlib.Path,
  notes: Sequence[str] = (),
  missing: Sequence[str] = (),
) -> Section:
  picture = Picture(title, f'{pictures.name}/{name}', caption)
  return Section(name, title, (picture,), notes=notes, missing=missing)
