"""Times attention: `python -m benchmarks.attention --tokens=197,1370`.

All implementations of `vit_jax.models.attention`, Flax and JAX take turns.
The program times the forward pass, and both passes together. It compares each
result with a float64 reference, for small and for large logits.

  python -m benchmarks.attention                        ViT-B/16 at 224 px
  python -m benchmarks.attention --heads=16 --head_width=80 --tokens=257,1370
  python -m benchmarks.attention --implementations=plain,jax.cudnn

`error` is the largest difference from the reference, divided by the reference's
largest value; it is the maximum over the output and the three gradients. For
`error, large` the logits' standard deviation is --large_logits. The reference
gets inputs that are rounded to the dtype, too. Implementations that do not work
on this platform are listed below the table.
"""

import jax
from absl import flags

from benchmarks import report
from benchmarks.measure import attention, timing
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(report)
_TOKENS = flags.DEFINE_list(
  'tokens', ['197'], 'Numbers of tokens L; each gets its own comparison.'
)
_BATCH = flags.DEFINE_integer('batch', 32, 'Images B, on one device.', 1)
_HEADS = flags.DEFINE_integer('heads', 12, 'Heads H.', 1)
_HEAD_WIDTH = flags.DEFINE_integer('head_width', 64, 'Width K of a head.', 1)
_DTYPE = flags.DEFINE_enum(
  'dtype', 'bfloat16', ['float32', 'bfloat16', 'float16'], "Inputs' dtype."
)
_IMPLEMENTATIONS = flags.DEFINE_list(
  'implementations', [], 'Names; ratios are to the first. By default all.'
)
_LARGE_LOGITS = flags.DEFINE_float(
  'large_logits', 30.0, 'Standard deviation of large logits.', 0
)
_ROUNDS = flags.DEFINE_integer('rounds', 10, 'Turns of each implementation.', 1)
_REPEATS = flags.DEFINE_integer('repeats', 10, 'Timed calls in a turn.', 1)

_COLUMNS = {
  'forward ms': ('forward_ms.median', '.3f'),
  'spread': ('forward_ms.spread', '.0%'),
  'times': ('forward_ratio', '.3f'),
  'and backward ms': ('forward_backward_ms.median', '.3f'),
  'spread ': ('forward_backward_ms.spread', '.0%'),
  'times ': ('forward_backward_ratio', '.3f'),
  'TFLOP/s': ('tflops', '.2f'),
  'error': ('error', '.1e'),
  'error, large': ('error_large_logits', '.1e'),
}


def main():
  try:
    lengths = [int(text) for text in _TOKENS.value]
  except ValueError:
    lengths = []
  if not lengths or min(lengths) < 1:
    raise ValueError(
      f'--tokens={",".join(_TOKENS.value)}: expected positive numbers, such as'
      ' 197,1370.'
    )
  results, left_out = {}, {}
  for length in lengths:
    shape = (_BATCH.value, length, _HEADS.value, _HEAD_WIDTH.value)
    found, missing = attention.measure(
      shape,
      _DTYPE.value,
      _IMPLEMENTATIONS.value,
      rounds=_ROUNDS.value,
      repeats=_REPEATS.value,
      large_logits=_LARGE_LOGITS.value,
    )
    results |= {f'{name}, {length} tokens': r for name, r in found.items()}
    left_out |= {f'{name}, {length} tokens': r for name, r in missing.items()}
  report.publish(
    'attention',
    results,
    _COLUMNS,
    setting={
      'batch': _BATCH.value,
      'tokens': lengths,
      'heads': _HEADS.value,
      'head_width': _HEAD_WIDTH.value,
      'dtype': _DTYPE.value,
      'large_logits': _LARGE_LOGITS.value,
      'rounds': _ROUNDS.value,
      'repeats': _REPEATS.value,
      'left_out': left_out,
    },
    title=(
      f'Attention of {_BATCH.value} x {_HEADS.value} heads of'
      f' {_HEAD_WIDTH.value}, {_DTYPE.value}, on {jax.devices()[0].device_kind}'
    ),
  )
  for name, reason in left_out.items():
    timing.say(f'left out: {name}: {reason}')


if __name__ == '__main__':
  command_line.run(main)
