"""ViTs overfit more than ResNets on little data (Section 4.3)."""

from vit_jax.paper.claims import (
  PLATEAU,
  Claim,
  Contrast,
  Mean,
  Measure,
  not_in_miniature,
  of_run,
  total,
)
from vit_jax.paper.item import of_means
from vit_jax.paper.items.figures import figure4
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Results, structure

_TRAIN = of_run('accuracy on training images in percent', 'train/accuracy')
_HELD_OUT = of_run(
  'accuracy on held-out images in percent', 'validation/accuracy'
)
_VIT = 'ViT-B/32'
_FEW, *_, _ALL = figure4.IMAGES
_IMAGES = {'9M images': _FEW, 'all images': _ALL}


def _gap(results: Results, starts) -> Number | None:
  train, held_out = (m.number(results, starts) for m in (_TRAIN, _HELD_OUT))
  if train is None or held_out is None:
    return None
  pairs = zip(train.values, held_out.values, strict=True)
  return Number(tuple(a - b for a, b in pairs), train.runs)


_GAP = Measure(
  'accuracy on training images minus that on held-out ones, in points',
  lambda start: (start,),
  _gap,
)


def _cells(scale: str) -> dict[tuple[str, str], Mean]:
  columns = {'training': _TRAIN, 'held out': _HELD_OUT, 'gap': _GAP}
  return {
    (f'{model}, {name}', column): Mean(measure, figure4.start(model, images))
    for model in (_VIT, figure4.RESNET[structure(scale)])
    for name, images in _IMAGES.items()
    for column, measure in columns.items()
  }


def _claims(scale: str) -> list[Claim]:
  resnet = figure4.RESNET[structure(scale)]

  def gap(model: str, images: int | None):
    return total(_GAP, figure4.start(model, images))

  claims = [
    Claim(
      'vits_overfit_more',
      'On 9M images, ViTs overfit more than ResNets of comparable compute: the'
      f' gap of accuracy between training and held-out images is larger for'
      f' {_VIT} than for {resnet} (4.3).',
      (
        Contrast(
          f'gap of {_VIT} minus that of {resnet}',
          gap(_VIT, _FEW) - gap(resnet, _FEW),
        ),
      ),
    ),
    Claim(
      'data_cure_it',
      f'On all images, the gap of {_VIT} is smaller than on 9M images (4.3).',
      (
        Contrast(
          'gap on 9M images minus that on all',
          gap(_VIT, _FEW) - gap(_VIT, _ALL),
        ),
      ),
    ),
  ]
  return not_in_miniature(PLATEAU, claims)


def _notes(results: Results) -> list[str]:
  del results
  return [
    'Both accuracies are of the last step, without early stopping. That on'
    ' training images is a mean over the batches since the last line of the log'
    ' but one. It counts each batch before its own step.'
  ]


ITEM = of_means(
  'overfitting',
  'Accuracy on training and on held-out images, by number of images',
  _cells,
  heading='Accuracy of pre-training, in percent',
  claims=_claims,
  notes=_notes,
)
