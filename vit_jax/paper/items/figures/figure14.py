"""Figure 14: Figure 6 for many images (D.8)."""

from vit_jax.paper.inside import Panel
from vit_jax.paper.items.figures.from_weights import IMAGES, LARGE, item

ITEM = item(
  'figure14',
  'What attention attends to, in more images',
  [Panel('rollout', LARGE.model, LARGE, IMAGES)],
  'As Figure 6, for more images. They are taken at equal intervals from the'
  ' held-out images.',
)
