"""What the commands on images share: flags, the model, and the progress."""

import time

from absl import flags, logging

from vit_jax import loaded
from vit_jax.predict import predictor
from vit_jax.runtime import printable

# The flags are those of the command that defines them.
flags.disclaim_key_flags()

_SECONDS = 10.0  # Between two lines that tell the progress.


def define_flags(dtype: str = 'dtype') -> None:
  """Defines the flags of `from_flags`; `dtype` is the name of one."""
  loaded.define_flags()
  flags.DEFINE_integer(
    'batch_size',
    None,
    'Most images of a batch, over all devices; by default 16 a CPU, or 128 a'
    ' GPU or TPU core.',
    lower_bound=1,
  )
  flags.DEFINE_enum(
    dtype,
    'auto',
    predictor.DTYPES,
    'The compute dtype; auto: float32 on CPUs, bfloat16 on TPUs and GPUs.',
  )


def from_flags(dtype: str = 'dtype') -> predictor.Predictor:
  """Loads the model that the flags name, and logs what it is."""
  model = predictor.load(
    flags.FLAGS.checkpoint,
    batch_size=flags.FLAGS.batch_size,
    dtype=flags.FLAGS[dtype].value,
    **loaded.arguments(),
  )
  logging.info('%s', printable.text(str(model)))
  for note in model.notes:
    logging.warning('%s', note)
  return model


class Progress:
  """Logs every few seconds how many of all images are done."""

  def __init__(self, images: int):
    self._images, self._done = images, 0
    self._start = self._told = time.monotonic()

  def add(self, images: int) -> None:
    """Counts images that are done now."""
    self._done += images
    now = time.monotonic()
    if now - self._told < _SECONDS:
      return
    self._told = now
    rate = self._done / (now - self._start)
    logging.info(
      '%s of %s images, %s images/s, %s left',
      *(f'{self._done:,}', f'{self._images:,}', f'{rate:,.0f}'),
      printable.duration((self._images - self._done) / rate),
    )
