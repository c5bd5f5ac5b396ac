"""What a pre-training run of the paper costs, before it is started."""

from vit_jax import accounting, models
from vit_jax.paper import values
from vit_jax.paper.runs import Pretraining

# Images and epochs of a set: as configs/pretrain.py has them.
IMAGES = {
  values.IMAGENET: 1_281_167,
  values.IMAGENET21K: 12_400_000,
  values.JFT: 303_000_000,
}
EPOCHS = {values.IMAGENET: 300, values.IMAGENET21K: 90, values.JFT: 7}


def exaflops(run: Pretraining) -> float:
  """10^18 operations of forward and backward passes, as Table 6 counts them."""
  options = {
    key.removeprefix('model.'): value
    for key, value in run.options
    if key.startswith('model.')
  }
  model = models.build(run.model, num_classes=1000, **options)
  epochs = run.epochs if run.epochs is not None else EPOCHS[run.data]
  return accounting.exaflops(
    accounting.forward_macs(model, 224), IMAGES[run.data], epochs
  )
