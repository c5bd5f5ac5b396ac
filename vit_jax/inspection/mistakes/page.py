"""The page on mistakes as one self-contained HTML file."""

import html
import math
from collections.abc import Mapping, Sequence

from vit_jax.inspection.mistakes import charts
from vit_jax.inspection.mistakes.style import CSS, SCRIPT
from vit_jax.inspection.mistakes.tally import Numbers

# The most rows of the lists of pairs and of classes, and the most names of
# unreadable images. Files beside the page have all rows.
_PAIRS, _GROUPS, _CLASSES, _NAMES = 50, 20, 1000, 500

_escape = html.escape


def render(
  numbers: Numbers,
  shown: Sequence[int],
  pictures: Mapping[int, str],
  note: str,
) -> str:
  """Returns the page.

  Args:
    numbers: see `numbers.compute`.
    shown: indices of the mistakes to show, most confident first.
    pictures: index -> `data:` URI; an image may be missing.
    note: a sentence on missing pictures, or ''.
  """
  facts = numbers.facts
  title = f'Mistakes on {facts["evaluation"]}'
  sections = [
    _confusions(numbers),
    _classes(numbers),
    _calibration(numbers),
    _cards(numbers, shown, pictures, note),
    _unreadable(numbers),
  ]
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_escape(title)}</title>
<style>
{CSS}</style>
</head>
<body>
<h1>{_escape(title)}</h1>
<p class="about">{_escape(facts['dataset'])}, split {_escape(facts['split'])},
after step {facts['step']:,}</p>
{_headline(numbers)}
{chr(10).join(filter(None, sections))}
<script>
{SCRIPT}</script>
</body>
</html>
"""


def _headline(numbers: Numbers) -> str:
  counts, metrics = numbers.counts, numbers.metrics
  counted, accuracy = counts['counted'], metrics['accuracy']
  error = math.sqrt(accuracy * (1 - accuracy) / counted)
  items = [('accuracy', _percent(accuracy), f'± {100 * error:.2f} std. error')]
  if 'top5_accuracy' in metrics:
    items.append(('top-5 accuracy', _percent(metrics['top5_accuracy']), ''))
  items += [
    ('mistakes', f'{len(numbers.wrong):,}', f'of {counted:,} images'),
    ('loss', f'{metrics["loss"]:.4f}', ''),
    (
      *('ECE (calibration)', f'{metrics["ece"]:.4f}'),
      f'mean confidence {_percent(metrics["confidence"])}',
    ),
  ]
  for key in ('unreadable', 'unlabelled'):
    if counts[key]:
      items.append((key, f'{counts[key]:,}', 'do not count'))
  return '<dl class="facts">\n{}</dl>'.format(
    ''.join(
      f'<div><dt>{name}</dt><dd>{value}'
      f'{f"<small>{more}</small>" if more else ""}</dd></div>\n'
      for name, value, more in items
    )
  )


def _confusions(numbers: Numbers) -> str:
  if numbers.pairs.empty:
    return '<h2>Confusions</h2>\n<p>There are no mistakes.</p>'
  name = numbers.classes['name']
  text = 'A row is a class, a column what was predicted. Shades show shares of'
  text += ' the row.'
  if len(name) > charts.MATRIX:
    text += (
      f' These are {charts.MATRIX} of {len(name):,} classes: those that are'
      ' confused with each other most, side by side.'
    )
  if numbers.several_labels:
    text += (
      ' An image with several labels counts for its prediction if that is one'
      ' of them, and otherwise for its first label.'
    )
  pairs = [
    (
      _text(name[actual]),
      _text(name[predicted]),
      _number(count),
      _share(share),
    )
    for actual, predicted, count, share in numbers.pairs[:_PAIRS].itertuples(
      index=False
    )
  ]
  blocks = [
    '<h2>Confusions</h2>',
    f'<p class="note">{text}</p>',
    f'<div class="beside"><div><h3>Matrix</h3>\n{charts.matrix(numbers)}</div>',
    f'<div><h3>The most frequent{_of(_PAIRS, len(numbers.pairs))}</h3>',
    _table(('class', 'predicted as', 'images', 'of the class'), pairs),
    '</div></div>',
  ]
  if len(name) > charts.MATRIX and len(numbers.groups):
    rows = [
      (
        _text(', '.join(name[c] for c in members)),
        _number(count),
        _share(count / len(numbers.wrong)),
      )
      for members, count in numbers.groups[:_GROUPS].itertuples(index=False)
    ]
    blocks += [
      '<h3>Classes that are confused with each other'
      f'{_of(_GROUPS, len(numbers.groups))}</h3>',
      _table(('classes', 'mistakes among them', 'of all mistakes'), rows),
    ]
  return '\n'.join(blocks)


def _classes(numbers: Numbers) -> str:
  table = numbers.classes
  seen = table[(table['images'] > 0) | (table['predicted'] > 0)]
  seen = seen.sort_values(['recall', 'images'], ascending=[True, False])
  rows = [
    (
      _text(row.name),
      _number(row.images),
      _share(row.recall, bar=True),
      _share(row.precision, bar=True),
      _number(row.predicted),
      _text(table['name'][row.confused_with] if row.confused_with >= 0 else ''),
    )
    for row in seen[:_CLASSES].itertuples(index=False)
  ]
  heads = (
    *('class', 'images', 'recall', 'precision', 'predicted'),
    'most often taken for',
  )
  return '\n'.join(
    (
      f'<h2>Classes{_of(_CLASSES, len(seen))}</h2>',
      '<p class="note">Recall is the share of a class’s images that are'  # noqa: RUF001
      ' right; precision the share of its predictions that are right. Press a'
      ' heading to sort.</p>',
      _table(heads, rows),
    )
  )


def _cards(
  numbers: Numbers,
  shown: Sequence[int],
  pictures: Mapping[int, str],
  note: str,
) -> str:
  if not shown:
    return ''
  wrong = numbers.wrong.set_index('index')
  name = numbers.classes['name']
  cards = []
  for index in shown:
    row = wrong.loc[index]
    uri = pictures.get(index)
    exact = ' class="small"' if uri and uri.startswith('data:image/png') else ''
    picture = (
      f'<img{exact} src="{_escape(uri)}" alt="" loading="lazy">'
      if uri
      else '<span class="none">no picture</span>' * bool(pictures)
    )
    labels = row['labels'] if numbers.several_labels else [row['label']]
    actual = ', '.join(name[c] for c in labels)
    path = _escape(row['name'])
    end = '/'.join(row['name'].split('/')[-2:])
    cards.append(
      f'<li>{picture}{_escape(actual)} <b>→ {_escape(name[row["prediction"]])}'
      f'</b> {100 * row["confidence"]:.1f}%'
      f'<small class="path" title="{path}">{_escape(end)}</small></li>'
    )
  remark = f'<p class="note">{_escape(note)}</p>\n' if note else ''
  listed = '\n'.join(cards)
  return f"""<h2>The most confident mistakes{_of(len(shown), len(wrong))}</h2>
<p class="note">The label, → the prediction, and its confidence. Some labels may
be wrong themselves.</p>
{remark}<ul class="cards">
{listed}
</ul>"""


def _calibration(numbers: Numbers) -> str:
  metrics = numbers.metrics
  gap = metrics['confidence'] - metrics['accuracy']
  verdict = 'more' if gap > 0 else 'less'
  return f"""<h2>Calibration</h2>
<p class="note">The accuracy of images with similar confidence. A calibrated
model follows the dashed line. Red is the accuracy that is lacking from it,
green the accuracy above it: their mean, weighted by the number of images
(below), is the ECE,
{metrics['ece']:.4f}. The mean confidence is {100 * abs(gap):.2f} points
{verdict} than the accuracy.</p>
{charts.calibration_curve(numbers.bins)}"""


def _unreadable(numbers: Numbers) -> str:
  names = numbers.unreadable
  if not names:
    return ''
  items = ''.join(f'<li>{_escape(name)}</li>\n' for name in names[:_NAMES])
  return (
    f'<h2>Unreadable images{_of(_NAMES, len(names))}</h2>\n'
    f'<ul class="list">\n{items}</ul>'
  )


# Cells of tables; `data-value` is what they are sorted by. --------------------


_NAME = '<td class="name"'


def _text(text: str) -> str:
  value = _escape(text)
  return f'{_NAME} data-value="{value}">{value}</td>'


def _number(value: int) -> str:
  return f'<td data-value="{value}">{value:,}</td>'


def _share(share: float, bar: bool = False) -> str:
  if math.isnan(share):
    return '<td data-value="">–</td>'  # noqa: RUF001
  drawn = f'<span class="bar" style="--share:{share:.3f}"></span>' * bar
  return f'<td data-value="{share:.6f}">{100 * share:.1f}%{drawn}</td>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Returns a table of cells that can be sorted by each column."""
  columns = ''.join(
    f'<th scope="col" class="{"name" * cell.startswith(_NAME)}">'
    f'<button>{head}</button></th>'
    for head, cell in zip(heads, rows[0], strict=True)
  )
  body = '\n'.join(f'<tr>{"".join(cells)}</tr>' for cells in rows)
  return f"""<div class="scroll" tabindex="0" role="region" \
aria-label="{heads[0]} table">
<table>
<thead><tr>{columns}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>"""


def _of(shown: int, total: int) -> str:
  """Returns how many of a list are shown, if not all are."""
  return f' <small>{shown:,} of {total:,}</small>' if total > shown else ''


def _percent(share: float) -> str:
  return f'{100 * share:.2f}%'
