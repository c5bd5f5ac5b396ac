"""Times attention, and compares it with a float64 reference."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import timing
from vit_jax.models import attention, lanes

Implementation = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

PASSES = ('forward', 'forward_backward')


def implementations() -> dict[str, Implementation]:
  """Returns name -> function of query, key and value [B, L, H, K]."""
  return {
    'plain': attention.plain,
    'lanes': lambda *heads: lanes.lane_blocks(*([x] for x in heads))[0],
    'cudnn': attention.cudnn,
    'flax': nn.dot_product_attention,
    'jax.xla': functools.partial(
      jax.nn.dot_product_attention, implementation='xla'
    ),
    'jax.cudnn': functools.partial(
      jax.nn.dot_product_attention, implementation='cudnn'
    ),
  }


def inputs(
  shape: tuple[int, int, int, int], dtype: str, logit_scale: float
) -> tuple[np.ndarray, ...]:
  """Returns query, key, value and the output's gradient.

  All have `shape` and `dtype`. The logits q k / sqrt(K) have the standard
  deviation `logit_scale`.
  """
  generator = np.random.default_rng(0)
  query, key, value, gradient = (
    generator.standard_normal(shape, np.float32) for _ in range(4)
  )
  scale = np.sqrt(logit_scale)
  return tuple(
    np.asarray(x, jnp.dtype(dtype))
    for x in (scale * query, scale * key, value, gradient)
  )


def reference(
  query: np.ndarray, key: np.ndarray, value: np.ndarray, gradient: np.ndarray
) -> list[np.ndarray]:
  """Computes attention and its gradients in float64.

  Returns:
    The output, and the gradients for query, key and value, each [B, L, H, K].
  """
  outputs = [np.empty(query.shape) for _ in range(4)]
  scale = query.shape[-1] ** -0.5
  # One head of one image at a time needs less memory.
  for b in range(query.shape[0]):
    for h in range(query.shape[2]):
      q, k, v, g = (
        np.asarray(x[b, :, h], np.float64)
        for x in (query, key, value, gradient)
      )
      scores = q @ k.T * scale  # [L, L]
      weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
      weights /= weights.sum(axis=-1, keepdims=True)
      by_weights = g @ v.T
      mean = (by_weights * weights).sum(axis=-1, keepdims=True)
      by_scores = weights * (by_weights - mean)
      found = (
        weights @ v,
        by_scores @ k * scale,
        by_scores.T @ q * scale,
        weights.T @ g,
      )
      for output, x in zip(outputs, found, strict=True):
        output[b, :, h] = x
  return outputs


def passes(implementation: Implementation) -> dict[str, Callable]:
  """Returns the timed functions of (query, key, value, gradient), jitted."""

  def forward(query, key, value, gradient):
    del gradient
    return implementation(query, key, value)

  def forward_backward(query, key, value, gradient):
    output, backward = jax.vjp(implementation, query, key, value)
    return output, *backward(gradient)

  return {
    'forward': jax.jit(forward),
    'forward_backward': jax.jit(forward_backward),
  }


def error(found: Sequence[Any], expected: Sequence[np.ndarray]) -> float:
  """Returns the largest difference relative to an array's largest value."""
  return max(
    float(np.abs(np.asarray(x, np.float64) - y).max() / np.abs(y).max())
    for x, y in zip(found, expected, strict=True)
  )


def measure(
  shape: tuple[int, int, int, int],
  dtype: str,
  names: Sequence[str] = (),
  *,
  rounds: int,
  repeats: int,
  large_logits: float,
) -> tuple[dict[str, dict], dict[str, str]]:
  """Compares implementations at one shape.

  Args:
    shape: (B, L, H, K).
    dtype: of the inputs.
    names: keys of `implementations`; if empty, all that work here.
    rounds: turns of each implementation.
    repeats: calls in a turn.
    large_logits: see the flags.

  Returns:
    Name -> figures, and name -> why it was left out.

  Raises:
    ValueError: a name is unknown, or no implementation works here.
  """
  known = implementations()
  if unknown := set(names) - set(known):
    raise ValueError(
      f'--implementations: {", ".join(sorted(unknown))} unknown; choose from'
      f' {", ".join(known)}.'
    )
  # Errors are measured on one image: the reference is slow.
  small = {
    scale: inputs((1, *shape[1:]), dtype, scale)
    for scale in (1.0, large_logits)
  }
  expected = {scale: reference(*arrays) for scale, arrays in small.items()}
  arrays = jax.block_until_ready(jax.device_put(inputs(shape, dtype, 1.0)))
  compiled, results, left_out = {}, {}, {}
  for name in names or known:
    try:
      both = passes(known[name])
      errors = [
        error(both['forward_backward'](*small[scale]), expected[scale])
        for scale in small
      ]
      compiled[name] = {k: f.lower(*arrays).compile() for k, f in both.items()}
    # Implementations raise different exceptions for a platform, dtype or shape
    # that they do not support.
    except Exception as problem:
      text = ' '.join(str(problem).split())[:200]
      left_out[name] = f'{type(problem).__name__}: {text}'
      continue
    results[name] = {'error': errors[0], 'error_large_logits': errors[1]}
  if not results:
    raise ValueError(f'no implementation works on this platform: {left_out}')
  _time(compiled, arrays, shape, results, rounds=rounds, repeats=repeats)
  return results, left_out


def _time(
  compiled: Mapping[str, Mapping[str, Callable]],
  arrays: Sequence[jax.Array],
  shape: tuple[int, int, int, int],
  results: dict[str, dict],
  *,
  rounds: int,
  repeats: int,
) -> None:
  """Adds times, their ratios and `tflops` to the results."""

  def turn(function):
    jax.block_until_ready(function(*arrays))
    seconds = timing.seconds_of(
      lambda: [function(*arrays) for _ in range(repeats)]
    )
    return seconds / repeats

  samples = timing.interleave(
    {
      (name, kind): functools.partial(turn, functions[kind])
      for name, functions in compiled.items()
      for kind in PASSES
    },
    rounds,
  )
  batch, length, heads, width = shape
  # Two products forward, of L x K x L each, and four backward.
  operations = 6 * 2 * batch * heads * length**2 * width
  for kind in PASSES:
    of_kind = {name: samples[name, kind] for name in results}
    for name, compared in timing.compare(of_kind).items():
      results[name] |= {
        f'{kind}_ms': timing.statistics([1000 * s for s in of_kind[name]]),
        f'{kind}_ratio': compared['ratio'],
        f'{kind}_paired_ratio': compared['paired_ratio'],
      }
  for result in results.values():
    seconds = result['forward_backward_ms']['median'] / 1000
    result['tflops'] = operations / seconds / 1e12
