"""The linear classifier, the last layer of every model."""

import flax.linen as nn
import jax
import jax.numpy as jnp


def classify(
  representation: jax.Array, *, num_classes: int, head_bias: float
) -> jax.Array:
  """Maps [B, D] to logits [B, num_classes] in float32.

  To be called within an `nn.compact` method: the module gets the layer `head`.

  Args:
    representation: [B, D], any float dtype.
    num_classes: number of logits.
    head_bias: initial value of the bias; the kernel starts at 0 (B.1.1).
  """
  return nn.Dense(
    num_classes,
    kernel_init=nn.initializers.zeros,
    bias_init=nn.initializers.constant(head_bias),
    dtype=jnp.float32,
    # By default a TPU multiplies float32 in bfloat16.
    precision=jax.lax.Precision.HIGHEST,
    name='head',
  )(representation)
