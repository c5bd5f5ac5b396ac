"""The last layer: a linear classifier, or a prediction for each patch."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp


def classify(
  representation: jax.Array, *, num_classes: int, head_bias: float
) -> jax.Array:
  """Maps [B, D] to logits [B, num_classes] in float32.

  Call it within an `nn.compact` method, whose module gets the layer `head`.

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


def predict_patches(
  encoded: jax.Array, *, outputs: int, dtype: jax.typing.DTypeLike
) -> jax.Array:
  """Maps patch tokens [B, L, D] to [B, L, outputs] (B.1.2).

  Call it within an `nn.compact` method, whose module gets the layer
  `patch_head`. The layer multiplies in the model's dtype, because it runs on
  every patch, but sums and returns float32.

  Args:
    encoded: [B, L, D], any float dtype.
    outputs: how many numbers to predict for each patch.
    dtype: dtype of the factors.
  """
  return nn.Dense(
    outputs,
    kernel_init=nn.initializers.zeros,
    dtype=dtype,
    dot_general=functools.partial(
      jax.lax.dot_general, preferred_element_type=jnp.float32
    ),
    name='patch_head',
  )(encoded)
