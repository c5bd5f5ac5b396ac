"""The page of pairs as one self-contained HTML file."""

import html
from collections.abc import Sequence

from vit_jax import pages
from vit_jax.dedup import report, work
from vit_jax.runtime import errors
from vit_jax.workdir import files

FILE = 'pairs.html'
_escape = html.escape

_CSS = """\
h2 { margin: 2.5rem 0 0.25rem; }
p { max-width: 46rem; margin: 0.25rem 0 0.75rem; }
.cards { grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); }
.cards .two { display: grid; grid-template-columns: 1fr 1fr; gap: 0.4rem; }
.cards .two small { text-align: center; }
@media (max-width: 40rem) { .cards { grid-template-columns: 1fr; } }
"""


def write(
  job: work.Work,
  found: report.Found,
  summary: Sequence[str],
  *,
  min_correlation: float,
  shown: int,
) -> None:
  """Writes the page.

  Args:
    job: the work whose pairs these are.
    found: the pairs.
    summary: lines for its top.
    min_correlation: the threshold, to be told.
    shown: the most pairs of each section.
  """
  sections = [
    _section(
      'Near-duplicates',
      'The most doubtful first. They are left out.',
      *(found.duplicates, job, shown),
    ),
    _section(
      f'Just below the threshold of {min_correlation:g}',
      'They are not left out. If they are duplicates, start the command again'
      ' with a lower --min_correlation, which compares nothing again.',
      *(found.near_misses, job, shown),
    ),
    _section(
      'Similar features',
      'By the model, but not by their pixels. They are not left out.',
      *(found.similar, job, shown),
    ),
  ]
  lines = '\n'.join(f'<p>{_escape(line)}</p>' for line in summary)
  text = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Near-duplicates</title>
<style>
{pages.STYLE.read_text()}{_CSS}</style>
</head>
<body>
<h1>Near-duplicates</h1>
{lines}
{chr(10).join(filter(None, sections))}
</body>
</html>
"""
  files.write_shared(job.folder / FILE, text.encode())


def _section(
  title: str, note: str, pairs: Sequence[report.Pair], job, shown: int
) -> str:
  if not pairs:
    return ''
  cards = '\n'.join(_card(pair, job) for pair in pairs[:shown])
  sides = (
    'Left: the test image; right: the image of the data.'
    if job.tests
    else 'Left: the earlier image; right: the later one.'
  )
  more = f' <small>{shown:,} of {len(pairs):,}</small>'
  return f"""<h2>{_escape(title)}{more if len(pairs) > shown else ''}</h2>
<p class="note">{_escape(note)} {sides} The numbers: the correlation of details,
the bits that differ between the hashes, and how the left image shows the right
one.</p>
<ul class="cards">
{cards}
</ul>"""


def _card(pair: report.Pair, job: work.Work) -> str:
  numbers = [f'<b>{pair.correlation:.3f}</b>']
  if pair.distance is not None:
    numbers.append(f'{pair.distance} bits')
  if pair.cosine is not None:
    numbers.append(f'cosine {pair.cosine:.3f}')
  if pair.view:
    numbers.append(_escape(pair.view_name))
  both = _image(job.queries[pair.test], pair.test_index) + _image(
    job.images, pair.index
  )
  return f'<li><div class="two">{both}</div>{", ".join(numbers)}</li>'


def _image(images, index: int) -> str:
  """Returns an image, or a note if it cannot be read, above its name."""
  name = _escape(images.name(index))
  end = _escape('/'.join(images.name(index).split('/')[-2:]))
  try:
    uri = pages.small_picture(images.colour(index))
  except (ValueError, OSError, errors.ReadError):
    picture = '<span class="none">no picture</span>'
  else:
    small = ' class="small"' * uri.startswith('data:image/png')
    picture = f'<img{small} src="{uri}" alt="{name}" loading="lazy">'
  return f'<div>{picture}<small class="path" title="{name}">{end}</small></div>'
