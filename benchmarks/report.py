"""Prints a benchmark's results: a table for people and JSON for programs."""

import datetime
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags
from flax import traverse_util

from vit_jax.plan import chips
from vit_jax.runtime import installed, stopwatch, text_table

# Environment variables that can change the measurements begin with these.
_PREFIXES = ('JAX_', 'LIBTPU_', 'OMP_', 'XLA_')
# Title of a column -> the key of a figure, `outer.inner` for a nested one, and
# its format.
_COLUMNS = {
  'batch': ('batch_size', 'd'),
  'ms': ('step_ms.median', '.1f'),
  'spread': ('step_ms.spread', '.1%'),
  'images/s': ('images_per_sec', '.1f'),
  '/device': ('images_per_sec_per_device', '.1f'),
  'MFU': ('mfu', '.1%'),
  'times': ('ratio', '.3f'),
  'paired': ('paired_ratio', '.3f'),
  'compile s': ('compile_sec', '.1f'),
  'GiB': ('memory_gib', '.2f'),
  'peak GiB': ('peak_gib', '.2f'),
}


def say(text: str) -> None:
  """Prints to stderr, because stdout is for the JSON."""
  print(text, file=sys.stderr, flush=True)


def of_steps(
  seconds: Mapping[str, Sequence[float]], facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
  """Returns the figures of training steps that took turns.

  Args:
    seconds: name -> the seconds of a step, one number a turn.
    facts: name -> at least `batch_size`, `devices`, `device_kind` (JAX's or
      CUDA's name) and `forward_macs`, the multiply-accumulates of one image's
      forward pass.

  Returns:
    Name -> the facts, `step_ms` (see `stopwatch.statistics`), `images_per_sec`,
    `images_per_sec_per_device`, `mfu`, and the `stopwatch.ratios` of the time
    per image. `mfu` is in 0..1, and None if the device's peak is not known. The
    backward pass has twice the multiply-accumulates of the forward pass, and
    each counts as two operations.
  """
  an_image = {
    name: np.divide(values, facts[name]['batch_size'])
    for name, values in seconds.items()
  }
  ratios, results = stopwatch.ratios(an_image), {}
  for name, found in facts.items():
    rate = 1 / float(np.median(an_image[name]))
    per_device = rate / found['devices']
    peak = chips.peak_flops(found['device_kind'])
    results[name] = {
      'step_ms': stopwatch.statistics(np.multiply(seconds[name], 1000)),
      'images_per_sec': rate,
      'images_per_sec_per_device': per_device,
      'mfu': peak and per_device * 3 * 2 * found['forward_macs'] / peak,
      **found,
      **ratios[name],
    }
  return results


def publish(
  benchmark: str,
  results: Mapping[str, Mapping[str, Any]],
  title: str,
  **setting: Any,
) -> None:
  """Prints the table to stderr, and the JSON to stdout.

  Args:
    benchmark: the program's name.
    results: name -> figures, which may be nested.
    title: the line above the table.
    **setting: is written besides the flags, or in place of those.
  """
  say(f'\n{title}\n\n{table(results)}\n')
  own = flags.FLAGS.get_flags_for_module(sys.argv[0])
  given = {flag.name: flag.value for flag in own if flag.name != 'version'}
  written = {
    'benchmark': benchmark,
    'setting': given | setting,
    'environment': {
      'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
      'commit': installed.commit(),
      'versions': installed.versions(),
      'variables': {
        k: v for k, v in os.environ.items() if k.startswith(_PREFIXES)
      },
    },
    'results': results,
  }
  print(json.dumps(written))


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns a table with a row for each result; see `publish`.

  A cell without a figure stays blank; a column without any is left out.
  """
  flat = [traverse_util.flatten_dict(r, sep='.') for r in results.values()]
  rows = [['', *results]]
  for title, (key, form) in _COLUMNS.items():
    cells = [result.get(key) for result in flat]
    if any(cell is not None for cell in cells):
      rows.append(
        [title, *('' if x is None else format(x, form) for x in cells)]
      )
  return text_table.aligned([*zip(*rows, strict=True)])
