"""Figure 6: images beside the patches that attention takes them from (4.5)."""

from vit_jax.paper.inside import Panel
from vit_jax.paper.items.figures.from_weights import LARGE, item

ITEM = item(
  'figure6',
  'What attention attends to',
  # The number of images follows from the figure's page in the paper.
  [Panel('rollout', LARGE.model, LARGE, 6)],
  "The paper's finding: the model attends to the parts of an image that matter"
  ' for its class. The maps show attention rollout (D.8): in each block,'
  ' attention weights are averaged over the heads; then the averages of all'
  ' blocks are multiplied.',
)
