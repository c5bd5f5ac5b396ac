"""Figures 4, 9 and 13 as items: few-shot accuracy over images, epochs, compute.

Figure 8 is in `scaling_item`.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from vit_jax.compare import drawing
from vit_jax.inference_speed import networks, store
from vit_jax.paper import cost, numbers, plots
from vit_jax.paper.claims import curve_claims
from vit_jax.paper.items import speed_items, table_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import panels, values
from vit_jax.paper.report import Claim, Picture, Section
from vit_jax.paper.runs import Pretraining, Results
from vit_jax.sweep.spec import Value

_FEW_SHOT = 'few_shot/5shot/accuracy'
_EPOCHS = 7
# The paper does not say how many seeds it has; claims need a spread.
_SEEDS = 3
# Numbers of images in Figure 4; None is the whole set.
_IMAGES = (9_000_000, 30_000_000, 90_000_000, None)
_ALL_IMAGES = 300_000_000
# These large models of Figure 4 are in no claim: they have single runs, and
# none in miniature.
_SINGLE = ('ViT-L/16', 'BiT-R152x2')
# The ResNet to compare with ViT-B/32. By Table 6, BiT-R50x1 has 50 exaFLOPs and
# ViT-B/32 has 55; in miniature, BiT-R50x1 has only a fifth of the operations of
# ViT-B/32, and BiT-R50x2 two thirds.
_RESNET = {'paper': 'BiT-R50x1', 'mini': 'BiT-R50x2'}
_COUNTS = {
  'paper': f'{" and ".join(_SINGLE)} have one run for each point, the others'
  f' {_SEEDS}.',
  'mini': f'{" and ".join(_SINGLE)} are left out; the others have {_SEEDS} runs'
  f' for each point. {_RESNET["mini"]} is compared with {curve_claims.VIT}'
  f' instead of {_RESNET["paper"]}, whose miniature has far less compute. This'
  ' choice, and the claim on the average over models, were made after the first'
  ' runs (LOG.md).',
}
# Seeds of Figure 9. Only its first run is also a run of another item.
_MANY_9 = {'paper': 1, 'mini': _SEEDS}
# D.3: the mean over patches had a linear head, unlike the class token.
_POOLING = (('model.pooling', 'gap'), ('model.representation_size', 0))
_POOLING_MINI = (
  ' In miniature, the class token has a linear head too, learning rates are in'
  f" proportion to the paper's, and curves are means of {_SEEDS} runs."
)


def figure4() -> Item:
  """Few-shot accuracy by number of pre-training images (Section 4.3)."""
  title = 'Few-shot accuracy by number of pre-training images'
  [panel] = panels.PANELS['figure4']
  several = [model for model in panel.series if model not in _SINGLE]
  counts = {
    'paper': dict.fromkeys(panel.series, 1) | dict.fromkeys(several, _SEEDS),
    'mini': dict.fromkeys([*several, _RESNET['mini']], _SEEDS),
  }
  starts = {
    scale: {
      (model, images): table_items.seeds(_run(model, images=images), count)
      for model, count in models.items()
      for images in _IMAGES
    }
    for scale, models in counts.items()
  }

  def render(results: Results, pictures: pathlib.Path) -> Section:
    points = {
      (model, images or _ALL_IMAGES): number
      for (model, images), nodes in starts[results.scale].items()
      if (number := results.early_stopped(nodes, _FEW_SHOT)) is not None
    }
    resnet = _RESNET[results.scale]
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
      "The paper's finding: ResNets are ahead with few images and level off;"
      ' ViTs overtake them with more images, larger ViTs later. All runs have'
      ' random parts of the data and the same settings; accuracy is at the step'
      ' that validates best.',
      pictures,
      curve_claims.by_data(
        points,
        resnet=resnet,
        models=[k for k, n in counts[results.scale].items() if n == _SEEDS],
        few=_IMAGES[0],
        many=_ALL_IMAGES,
        computes=_computes(results, (resnet, curve_claims.VIT)),
        unit=cost.UNITS[results.scale],
      ),
      [
        _COUNTS[results.scale],
        'The paper does not say how long it trained on parts of the data; here'
        ' the number of steps is the same as on all images.',
      ],
    )

  return _item('figure4', title, starts, render)


def figure9() -> Item:
  """Class token and mean over patches, during pre-training (D.3)."""
  title = 'Class token and global average pooling'
  token, high, low = first = {
    'CLS-Token, lr=8e-4': _run('ViT-B/16'),
    'GAP, lr=8e-4': _run('ViT-B/16', _POOLING, 'GAP, lr 8e-4'),
    'GAP, lr=3e-4': _run(
      'ViT-B/16', (*_POOLING, ('schedule.peak', 3e-4)), 'GAP, lr 3e-4'
    ),
  }
  starts = {
    scale: {
      label: table_items.seeds(node, count) for label, node in first.items()
    }
    for scale, count in _MANY_9.items()
  }

  def render(results: Results, pictures: pathlib.Path) -> Section:
    curves = {
      label: [
        (_EPOCHS * part, number)
        for part, number in results.curve(nodes, _FEW_SHOT)
      ]
      for label, nodes in starts[results.scale].items()
    }
    paper = numbers.FIGURES['figure9']
    drawing.save(
      plots.figure9(curves, paper, overlay=results.comparable),
      pictures / 'figure9',
      plots.figure9_rows(curves, paper),
      mark=results.mark,
    )
    ends = {
      label: results.few_shot(nodes)
      for label, nodes in starts[results.scale].items()
    }
    return _section(
      'figure9',
      title,
      "The paper's finding: the mean over patches (GAP) with a linear head"
      ' works as well as a class token with a hidden layer, but needs a lower'
      ' learning rate.' + ('' if results.comparable else _POOLING_MINI),
      pictures,
      [
        curve_claims.pooling_needs_a_lower_rate(
          ends[token], ends[high], ends[low]
        )
      ],
      ['The paper does not say which model this is; here it is ViT-B/16.'],
    )

  return _item('figure9', title, starts, render)


def _speeds(
  folder: pathlib.Path, scale: str
) -> tuple[store.Settings | None, Mapping[str, float]]:
  """Returns where Figure 12 was measured, and model -> images per second.

  The speed is that of the local device, or else the compiler's estimate for the
  paper's device. If neither exists, there are no numbers.
  """
  for measured in speed_items.read(folder, scale).values():
    found = measured.speeds(networks.PRETRAINING_SIZE[scale])
    if found:
      return measured.settings, found
  return None, {}


def figure13() -> Item:
  """Axial models, by compute and by speed (D.6)."""
  title = 'Few-shot accuracy of axial models'
  starts = {model: _run(model) for model in panels.AXIAL_SERIES}

  def render(results: Results, pictures: pathlib.Path) -> Section:
    settings, found = _speeds(pictures.parent / 'measured', results.scale)
    points = {
      model: (cost.compute_of(results, node), found.get(model), number)
      for model, node in starts.items()
      if (number := results.few_shot([node], scale=1.0)) is not None
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
    accuracies = {
      model: results.few_shot([node]) for model, node in starts.items()
    }
    notes = [
      "The learning rate of axial models is not in the paper's tables: see"
      ' configs/pretrain.py.'
    ]
    missing = []
    unknown = [model for model in starts if model not in found]
    if unknown:
      missing.append(
        f'Not measured yet: the speed of {", ".join(unknown)}. Figure 12'
        ' measures it.'
      )
    return _section(
      'figure13',
      title,
      "The paper's finding: axial ViTs are better than the ViTs that they are"
      ' made of, and cost more; AxialResNet50 is good for its compute, but very'
      f' slow. Speed is the inference speed of Figure 12{where}.',
      pictures,
      [curve_claims.axial_is_ahead(accuracies)],
      notes,
      missing,
    )

  return Item('figure13', title, tuple(starts.values()), render)


def _computes(results: Results, models: Sequence[str]) -> dict[str, float]:
  """Returns the compute of models' runs on all images in Figure 4, if known.

  Runs on parts of the images take the same number of steps.
  """
  found = {model: cost.compute_of(results, _run(model)) for model in models}
  return {model: number for model, number in found.items() if number}


def _run(
  model: str,
  options: Sequence[tuple[str, Value]] = (),
  label: str = '',
  images: int | None = None,
) -> Pretraining:
  return Pretraining(
    model,
    values.JFT,
    _EPOCHS,
    options=tuple(options),
    label=label,
    images=images,
  )


def _item(
  name: str,
  title: str,
  starts: Mapping[str, Mapping[object, Sequence[Pretraining]]],
  render: Callable[[Results, pathlib.Path], Section],
) -> Item:
  """Makes an item that uses metrics during runs: scale -> point -> seeds."""
  nodes = {
    scale: tuple(node for seeds in points.values() for node in seeds)
    for scale, points in starts.items()
  }
  return Item(
    name,
    title,
    nodes['paper'],
    render,
    in_miniature=nodes['mini'],
    curves=True,
  )


def _section(
  name: str,
  title: str,
  caption: str,
  pictures: pathlib.Path,
  answers: Sequence[Claim] = (),
  notes: Sequence[str] = (),
  missing: Sequence[str] = (),
) -> Section:
  picture = Picture(title, f'{pictures.name}/{name}', caption)
  return Section(name, title, (picture, *answers), notes=notes, missing=missing)
