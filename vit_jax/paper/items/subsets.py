"""The pre-trainings of Figure 4, on subsets of JFT-300M (4.3)."""

from vit_jax.paper import cost
from vit_jax.paper.items.tables import table6
from vit_jax.paper.runs import Pretraining, structure

EPOCHS = 7
# Numbers of images; None is the whole set.
IMAGES = (9_000_000, 30_000_000, 90_000_000, None)
FEW, _, MANY, ALL = IMAGES
NAMES = {FEW: '9M images', MANY: '90M images', ALL: 'all images'}
MODELS = (
  *('ViT-L/16', 'ViT-L/32', 'ViT-B/32', 'ViT-b/32'),
  *('BiT-R50x1', 'BiT-R152x2'),
)
# The ResNet to compare with ViT-B/32. By Table 6, BiT-R50x1 has 50 exaFLOPs and
# ViT-B/32 has 55; in miniature, BiT-R50x1 has only a fifth of the operations of
# ViT-B/32, and BiT-R50x2 two thirds.
RESNET = {'paper': 'BiT-R50x1', 'mini': 'BiT-R50x2'}


def start(model: str, images: int | None = None) -> Pretraining:
  """Returns the first run of a point."""
  return Pretraining(model, epochs=EPOCHS, images=images)


def computes(scale: str, *models: str) -> str:
  """Returns a sentence on the compute of models on all images."""
  parts = [
    f'{model} {table6.compute(start(model), scale):.3g} {cost.UNITS[scale]}'
    for model in models
  ]
  return f'Compute: {", ".join(parts)}.'


def rivals(scale: str) -> tuple[str, str]:
  """Returns ViT-B/32 and the ResNet to compare with it."""
  return 'ViT-B/32', RESNET[structure(scale)]


def few_and_all(scale: str) -> dict[str, Pretraining]:
  """Returns the rivals' first runs on 9M images and on all, by their names."""
  return {
    f'{model}, {NAMES[images]}': start(model, images)
    for model in rivals(scale)
    for images in (FEW, ALL)
  }
