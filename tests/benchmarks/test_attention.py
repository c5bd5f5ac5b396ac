"""Guards: the attention benchmark's reference, errors and figures are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.measure import attention
from vit_jax.models import attention as attention_lib


def test_reference():
  """The reference equals JAX's derivative of the definition, in float64."""
  arrays = attention.inputs((2, 5, 3, 4), 'float32', 4.0)

  def definition(query, key, value):
    scores = jnp.einsum('bqhk,bthk->bhqt', query, key) / 2  # sqrt(4).
    weights = jnp.exp(scores) / jnp.exp(scores).sum(-1, keepdims=True)
    return jnp.einsum('bhqt,bthk->bqhk', weights, value)

  with jax.enable_x64(True):
    wide = [jnp.asarray(x, jnp.float64) for x in arrays]
    output, backward = jax.vjp(definition, *wide[:3])
    expected = [np.asarray(x) for x in (output, *backward(wide[3]))]
  found = attention.reference(*arrays)
  for x, y in zip(found, expected, strict=True):
    assert x.dtype == np.float64
    np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_measure(monkeypatch):
  """A wrong implementation has a large error; one that fails is left out."""

  def unscaled(query, key, value):
    return attention_lib.plain(query * query.shape[-1] ** 0.5, key, value)

  def broken(query, key, value):
    raise NotImplementedError('not\nhere')

  known = attention.implementations()
  added = known | {'unscaled': unscaled, 'broken': broken}
  monkeypatch.setattr(attention, 'implementations', lambda: added)
  names = [next(iter(known)), 'jax.xla', 'unscaled', 'broken']
  results, left_out = attention.measure(
    (2, 9, 2, 4), 'float32', names, rounds=2, repeats=2, large_logits=30.0
  )
  assert list(results) == names[:3]
  assert left_out == {'broken': 'NotImplementedError: not here'}
  first = results[names[0]]
  for name, result in results.items():
    if name != 'unscaled':
      assert result['error'] < 1e-6
      assert result['error_large_logits'] < 1e-4
    for kind in attention.PASSES:
      assert result[f'{kind}_ratio'] == pytest.approx(
        result[f'{kind}_ms']['median'] / first[f'{kind}_ms']['median']
      )
    # Both passes need 12 operations for each of B * H * L^2 * K.
    assert result['tflops'] == pytest.approx(
      12 * 2 * 2 * 81 * 4 / result['forward_backward_ms']['median'] / 1e9
    )
  assert results['unscaled']['error'] > 0.1


def test_unknown_implementation():
  with pytest.raises(ValueError, match='fastest unknown; choose from'):
    attention.measure(
      (1, 2, 1, 4), 'float32', ['fastest'], rounds=1, repeats=1, large_logits=3
    )
