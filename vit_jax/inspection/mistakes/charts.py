"""The confusion matrix as a table, and the calibration curve as SVG."""

import html

import numpy as np

from vit_jax.evaluators import calibration
from vit_jax.inspection.mistakes import tally

# With more classes, a matrix shows only those with the most mistakes.
MATRIX = 30

# Sizes of the calibration curve, in the units of its viewBox.
_WIDTH, _HEIGHT, _BELOW = 480, 300, 60
_LEFT, _TOP = 44, 10


def matrix(numbers: tally.Numbers) -> str:
  """Returns the confusion matrix as a table that is shaded by shares."""
  chosen, counts = tally.matrix(numbers, MATRIX)
  names = [html.escape(numbers.classes['name'][c]) for c in chosen]
  totals = np.maximum(counts.sum(axis=1), 1)
  left_out = len(chosen) < len(numbers.classes)
  heads = ''.join(
    f'<th scope="col" title="{name}"><span>{name}</span></th>' for name in names
  )
  if left_out:
    heads += '<th scope="col"><span>other classes</span></th>'
  rows = []
  for i, name in enumerate(names):
    cells = ''.join(
      _cell(counts[i, j], totals[i], right=i == j, title=f'{name} → {other}')
      for j, other in enumerate(names)
    )
    if left_out:
      cells += f'<td class="rest">{counts[i, -1] or ""}</td>'
    rows.append(f'<tr><th scope="row" title="{name}">{name}</th>{cells}</tr>')
  body = '\n'.join(rows)
  return f"""<div class="scroll whole" tabindex="0" role="region" \
aria-label="Confusion matrix">
<table class="matrix">
<thead><tr><td></td>{heads}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>"""


def _cell(count: int, total: int, *, right: bool, title: str) -> str:
  share = count / total
  # The square root tells small shares apart.
  shade = share if right else share**0.5
  kind = ' class="right"' if right else ''
  return (
    f'<td{kind} style="--shade:{shade:.3f}"'
    f' title="{title}: {count:,} ({100 * share:.1f}%)">{count or ""}</td>'
  )


def calibration_curve(bins: np.ndarray) -> str:
  """Returns accuracy by confidence, above the number of images, as SVG.

  Args:
    bins: see `calibration.sums`.
  """
  images, correct, confidence = bins
  width = _WIDTH / calibration.BINS
  parts = []
  for i in np.flatnonzero(images):
    accuracy, sure = correct[i] / images[i], confidence[i] / images[i]
    x = _LEFT + i * width
    low, high = sorted((accuracy, sure))
    gap = 'over' if sure > accuracy else 'under'
    tall = images[i] / images.max() * (_BELOW - 8)
    parts += [
      f'<g><title>confidence {100 * sure:.1f}%, accuracy'
      f' {100 * accuracy:.1f}%, {images[i]:,.0f} images</title>',
      _bar('accuracy', x, _y(low), width, low * _HEIGHT),
      _bar(gap, x, _y(high), width, (high - low) * _HEIGHT),
      _bar('images', x, _TOP + _HEIGHT + 30 + _BELOW - tall, width, tall),
      '</g>',
    ]
  for tick in (0, 0.25, 0.5, 0.75, 1):
    y, x = _y(tick), _LEFT + tick * _WIDTH
    parts += [
      f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}"'
      f' y2="{y:.1f}"/>',
      f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.0%}'
      '</text>',
      f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">'
      f'{tick:.0%}</text>',
    ]
  parts.append(
    f'<line class="ideal" x1="{_LEFT}" y1="{_y(0)}" x2="{_LEFT + _WIDTH}"'
    f' y2="{_y(1)}"/>'
  )
  size = f'0 0 {_LEFT + _WIDTH + 20} {_TOP + _HEIGHT + 30 + _BELOW + 4}'
  return (
    f'<svg viewBox="{size}" role="img" aria-label="Accuracy by confidence">'
    f'{"".join(parts)}</svg>'
  )


def _y(share: float) -> float:
  return _TOP + (1 - share) * _HEIGHT


def _bar(kind: str, x: float, y: float, width: float, height: float) -> str:
  return (
    f'<rect class="{kind}" x="{x + 1:.1f}" y="{y:.1f}"'
    f' width="{width - 2:.1f}" height="{height:.1f}"/>'
  )
