"""Figure 9: class token and mean over patches, during pre-training (D.3)."""

from vit_jax.paper.claims import FIVE_SHOT, Claim
from vit_jax.paper.item import figure
from vit_jax.paper.runs import FEW_SHOT, Pretraining, structure

# D.3: the mean over patches had a linear head, unlike the class token.
_POOLING = (('model.pooling', 'gap'), ('model.representation_size', 0))
_CURVES = {
  'CLS-Token, lr=8e-4': ((), ''),
  'GAP, lr=8e-4': (_POOLING, 'GAP, lr 8e-4'),
  'GAP, lr=3e-4': ((*_POOLING, ('schedule.peak', 3e-4)), 'GAP, lr 3e-4'),
}
# In miniature, models without a class token learn positions later: with a
# quarter of these epochs they know only colours (LOG.md).
_EPOCHS = {'paper': 7, 'mini': 28}


def _starts(scale: str) -> dict[str, Pretraining]:
  """Returns the first run of each curve."""
  epochs = _EPOCHS[structure(scale)]
  return {
    name: Pretraining('ViT-B/16', epochs=epochs, options=options, label=label)
    for name, (options, label) in _CURVES.items()
  }


def _claims(scale: str) -> list[Claim]:
  token, high, low = map(FIVE_SHOT, _starts(scale).values())
  return [
    Claim(
      'lower_rate',
      'A ViT with global average pooling needs a lower learning rate than a ViT'
      ' with a class token. At the same rate, the ViT with pooling is less'
      ' accurate. At a lower rate, the ViT with pooling makes up more than half'
      ' of this difference (D.3, Figure 9).',
      {
        'lead of the class token over the mean at the same rate': token - high,
        'mean at the lower rate, minus the middle of both': low
        - 0.5 * (token + high),
      },
    )
  ]


ITEM = figure(
  'figure9',
  'Class token and global average pooling',
  lambda results: [
    (name, start.epochs * part, number)
    for name, start in _starts(results.scale).items()
    for part, number in results.curve(results.seeds(start), FEW_SHOT)
  ],
  {
    'x_label': 'Epochs of training',
    'y_label': 'Linear 5-shot ImageNet top-1 (%)',
  },
  caption="The paper's finding: the mean over patches (GAP) with a linear head"
  ' works as well as a class token with a hidden layer, but needs a lower rate.'
  ' In miniature, the class token has a linear head, too.',
  shown=lambda scale: [*_starts(scale).values()],
  claims=_claims,
  notes=[
    'The paper does not say which model it trained for Figure 9. Here it is'
    ' ViT-B/16.'
  ],
  curves=True,
)
