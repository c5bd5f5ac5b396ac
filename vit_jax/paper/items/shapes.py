"""The ViTs of Figure 8, which vary one dimension at a time (D.2)."""

from vit_jax.configs import midi
from vit_jax.paper import claims
from vit_jax.paper.claims import Measure
from vit_jax.paper.runs import Pretraining
from vit_jax.sweep.spec import Value

# The base model, from which all others differ in some dimension. The paper does
# not print the heads; here they are as wide as in Table 1, except for ViT-H.
SHAPE = {'depth': 8, 'width': 1024, 'mlp_dim': 2048, 'heads': 16}
# Scale -> the paper's number of blocks -> ours.
DEPTHS = {
  'paper': {blocks: blocks for blocks in (4, SHAPE['depth'], 16, 32, 64)},
  **{scale: smaller.depths for scale, smaller in midi.SMALLER.items()},
}


def shape(label: str, model: str = 'ViT-L/32', **changes: Value) -> Pretraining:
  """Returns the first run of a point: the base with `changes`."""
  options = {f'model.{key}': v for key, v in (SHAPE | changes).items()}
  return Pretraining(
    model,
    epochs=7,
    options=tuple(options.items()),
    label=label,
    few_shot='several',
  )


def depth(blocks: int) -> Pretraining:
  """Returns the first run with some number of blocks."""
  return shape(f'depth {blocks}', depth=blocks)


BASE = depth(SHAPE['depth'])
NARROW = shape('width 512', width=512, heads=8)
WIDE = shape('width 2048', width=2048, heads=32)
FINE = shape('depth 8', model='ViT-L/16')
# Dimension -> the first run of each point; all have the base.
SERIES = {
  'All': [
    shape('all halved', depth=4, width=512, mlp_dim=1024, heads=8),
    BASE,
    shape('all doubled', depth=16, width=2048, mlp_dim=4096, heads=32),
  ],
  'Depth': [depth(blocks) for blocks in DEPTHS['paper']],
  'Patch size': [BASE, FINE],
  'Width MLP': [
    shape('MLP 1024', mlp_dim=1024),
    BASE,
    shape('MLP 4096', mlp_dim=4096),
    shape('MLP 8192', mlp_dim=8192),
  ],
  'Width': [NARROW, BASE, WIDE],
}


def measure(scale: str) -> Measure:
  """Returns the few-shot accuracy that claims are about."""
  return claims.AVERAGE_FIVE_SHOT if scale == 'mini' else claims.FIVE_SHOT
