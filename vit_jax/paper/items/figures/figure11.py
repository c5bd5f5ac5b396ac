"""Figure 11: attention distance of a ViT and a hybrid (D.7)."""

from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS, Panel
from vit_jax.paper.items.figures.from_weights import IMAGES, LARGE, item
from vit_jax.paper.runs import Pretraining

_HYBRID = Pretraining('R50+ViT-L/16', epochs=14)
_EARLY = NUMBERS['early_distance']
_CLAIM = Claim(
  'hybrid_looks_farther',
  'Early blocks of a hybrid attend less locally than those of a ViT (4.5,'
  ' D.7, Figure 11).',
  {
    'mean distance in the first quarter of the blocks: hybrid minus ViT': (
      _EARLY(_HYBRID) - _EARLY(LARGE)
    )
  },
)

ITEM = item(
  'figure11',
  'Attention distance of a ViT and a hybrid',
  [
    Panel('attention_distance', start.model, start, IMAGES)
    for start in (LARGE, _HYBRID)
  ],
  f'Attention distances are means over {IMAGES} images.',
  claims=[_CLAIM],
)
