"""Multi-head self-attention (arXiv:2010.11929, Appendix A).

Axes: B batch, L tokens, D width, H heads, K width of one head.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp


def head_width(width: int, heads: int) -> int:
  """Returns K = `width` / `heads`; ValueError if that is not an integer."""
  if width % heads:
    raise ValueError(
      f'width {width} is not a multiple of heads {heads}: each head takes an '
      'equal slice of the width; change one of the two.'
    )
  return width // heads


def dot_product_attention(
  query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
  """Exact softmax attention, without dropout and without a mask.

  Args:
    query: [B, L, H, K], any float dtype.
    key: [B, L, H, K], same dtype.
    value: [B, L, H, K], same dtype.

  Returns:
    [B, L, H, K] in the inputs' dtype. Scores are rounded to that dtype (in
    bfloat16 they are the largest activation); the softmax is fp32 inside.
  """
  scores = jnp.einsum('bqhk,bthk->bhqt', query, key)  # [B, H, L, L]
  # The scale comes after the product because 1/sqrt(80), for ViT-H, is not
  # exact in bfloat16.
  scores = scores.astype(jnp.float32) * query.shape[-1] ** -0.5  # Eq. A6
  weights = jax.nn.softmax(scores).astype(value.dtype)
  return jnp.einsum('bhqt,bthk->bqhk', weights, value)  # [B, L, H, K]


class MultiHeadDotProductAttention(nn.Module):
  """Projections to H heads, attention in each, projection back (Eqs. A5-A8).

  Attributes:
    heads: number of heads H; must divide the width D.
    dtype: compute dtype; parameters are float32.
  """

  heads: int
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, L, D] to [B, L, D]; ValueError if H does not divide D."""
    width = x.shape[-1]

    def project(features, axis, name):
      # DenseGeneral initialises the flattened [D, D] matrix, so both fans of
      # Xavier's rule are D, whatever the number of heads.
      return nn.DenseGeneral(
        features,
        axis=axis,
        kernel_init=nn.initializers.xavier_uniform(),
        dtype=self.dtype,
        name=name,
      )

    shape = (self.heads, head_width(width, self.heads))
    query, key, value = (
      project(shape, -1, name)(x) for name in ('query', 'key', 'value')
    )  # [B, L, H, K] each
    x = dot_product_attention(query, key, value)
    return project(width, (-2, -1), 'out')(x)  # [B, L, D]
