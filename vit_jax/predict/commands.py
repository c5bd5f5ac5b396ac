"""What the commands on images share: flags, and the model that they name."""

from absl import flags, logging

from vit_jax import loaded
from vit_jax.predict import predictor
from vit_jax.runtime import printable

# The flags are those of the command that defines them.
flags.disclaim_key_flags()


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
