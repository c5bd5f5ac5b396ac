"""Figure 11: attention distance of a ViT and a hybrid (D.7)."""

from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS, Panel
from vit_jax.paper.items.figures.from_weights import (
  HYBRID,
  IMAGES,
  LARGE,
  item,
)

_CLAIM = Claim(
  'hybrid_looks_farther',
  'Early blocks of a hybrid attend less locally than those of a ViT (4.5,'
  ' D.7, Figure 11).',
  {
    'mean distance in the first quarter of the blocks: hybrid minus ViT': (
      NUMBERS['early_distance'](HYBRID) - NUMBERS['early_distance'](LARGE)
    )
  },
)

ITEM = item(
  'figure11',
  'Attention distance of a ViT and a hybrid',
  lambda results: [
    Panel('attention_distance', start.model, start, IMAGES)
    for start in (LARGE, HYBRID)
  ],
  lambda structure: [LARGE, HYBRID],
  "The paper's finding: the early blocks of a hybrid attend less locally than"
  ' those of a ViT. The ResNet before these blocks may already do what local'
  ' attention does in a ViT. Attention distances are means over'
  f' {IMAGES} images.',
  lambda scale: [_CLAIM],
)
