"""Shows figures as text: a page for one run, a table for several."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vit_jax.plan import compilers, search
from vit_jax.runtime import text_table

_WIDTH = 80
_BAR = 30
_LABELS = {
  'average': 'moving average',
  'temporaries': 'activations and working space',
  'batch': 'images and labels',
  'padding': 'padding of the above',
  'program': 'the program itself',
}


def _short(value: float) -> str:
  return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


# Header, figure, and its text. A page shows those that a table shows, and more.
_COLUMNS = (
  ('config', 'config', str),
  ('topology', 'topology', str),
  ('fits', 'fits', lambda fits: 'yes' if fits else 'no'),
  ('GiB', 'hbm_gib', '{:.2f}'.format),
  ('usable GiB', 'hbm_usable_gib', '{:.2f}'.format),
  ('step ms', 'step_ms', lambda ms: f'{ms:,.0f}' if ms >= 100 else f'{ms:.1f}'),
  ('img/s/core', 'images_per_sec_per_core', '{:.1f}'.format),
  ('MFU', 'mfu', '{:.3f}'.format),
  ('days', 'wall_days', '{:.3g}'.format),
  ('core-days', 'core_days', _short),
  ('paper (v3)', 'paper_core_days', '{:,}'.format),
  ('params', 'params', '{:,}'.format),
  ('GMACs', 'forward_gmacs', '{:.2f}'.format),
  ('tokens', 'tokens', str),
  ('exaFLOPs', 'total_exaflops', '{:.4g}'.format),
)
_MORE = (
  ('model', 'model', str),
  (
    'core-days at the speed of real runs',
    'core_days_range',
    lambda days: ' to '.join(map(_short, days)),
  ),
  ('device-days', 'device_days', _short),
  ('times are', 'method', str),
  ('images/s', 'images_per_sec', '{:,.0f}'.format),
  ('trained', 'trained_params', '{:,}'.format),
  ('GMACs of the backward pass', 'backward_gmacs', '{:.2f}'.format),
  ('GMACs of the teacher', 'teacher_gmacs', '{:.2f}'.format),
  ('image', 'image_size', lambda size: '{}x{}'.format(*size)),
  ('batch', 'batch_size', '{:,}'.format),
  ('steps', 'total_steps', '{:,}'.format),
  ('epochs', 'epochs', '{:.3g}'.format),
)


def _cell(figures, key: str, form: Callable[[Any], str]) -> str:
  """Returns a figure's text; `-` if it is unknown."""
  value = figures.get(key)
  return '-' if value is None else form(value)


def page(figures: Mapping[str, Any], note: str = '') -> str:
  """Returns a page on one run: first the verdict, then the details.

  Args:
    figures: see `figures.of_run`.
    note: advice to the reader, or ''.
  """
  fix, ended = figures['fix'], figures['search_ended']
  detailed = fix or figures
  blocks = [
    _wrap(figures['error'] and f'Could not be planned: {figures["error"]}')
  ]
  if figures['fits'] is False:
    at_least = '' if figures['hbm_source'] == 'compiler' else 'at least '
    blocks.append(
      f'Does not fit: needs {at_least}{figures["hbm_gib"]:.2f} GiB on each'
      f' device; {figures["hbm_usable_gib"]:.2f} are usable.'
    )
  if fix:
    with_fix = f'With {search.flags(fix["changes"])} the run fits'
    blocks.append(f'{with_fix}. The figures below are those with it.')
  elif ended:
    what = 'No settings were found with which the run fits'
    if figures['fits']:
      what = 'A smaller slice may suffice'
    blocks.append(_wrap(f'{what}: {ended}.'))
  blocks += [_wrap(note), '\n'.join(_lines(detailed))]
  if detailed['hbm']:
    whole = max(detailed['hbm_gib'], detailed['hbm_usable_gib'])
    blocks.append(_bars('memory of a device, GiB', detailed['hbm'], whole))
  if shares := detailed['shares']:
    raw = detailed['step_ms']
    longest = sorted(shares, key=shares.get, reverse=True)
    parts = {name: shares[name] * raw for name in longest}
    blocks.append(_bars('estimated time of a step, ms', parts, raw))
  if said := detailed['assumptions']:
    lines = [_wrap(text, '  - ', '    ') for text in said]
    blocks.append('\n'.join(['assumptions', *lines]))
  return '\n\n'.join(filter(None, blocks))


def _lines(figures) -> Iterator[str]:
  """Yields a line for each known figure, the settings and the compiler."""
  for header, key, form in (*_COLUMNS, *_MORE):
    if figures.get(key) is not None:
      yield f'{header:36}{_cell(figures, key, form)}'
  if count := figures['devices']:
    yield f'{"devices":36}{count}, each a {figures["device"]}'
  settings = figures['settings'].items()
  named = ', '.join(f'{k}={v}' for k, v in settings if v is not None)
  yield _wrap(named, f'{"settings":10}', ' ' * 10)
  if by := compilers.named(figures):
    yield f'{"compiler":36}{by}'


def _bars(title: str, parts: Mapping[str, float], whole: float) -> str:
  """Returns a line for each part that can be seen, with a bar."""
  lines = [title]
  for name, size in parts.items():
    if size >= 0.0005 * whole:
      bar = '#' * round(_BAR * size / whole)
      lines.append(
        f'  {_LABELS.get(name, name):30}{size:10.3f}  {bar}'.rstrip()
      )
  return '\n'.join(lines)


def table(reports: Sequence[Mapping[str, Any]], note: str = '') -> str:
  """Returns one line a run, and a second one for settings that fit."""
  lines, sentences = [], {}
  for report in reports:
    lines.append(report)
    name, fix = f'{report["config"]} on {report["topology"]}', report['fix']
    if fix:
      lines.append(fix | {'config': f'  {search.flags(fix["changes"])}'})
    ended, error = report['search_ended'], report['error']
    by = compilers.named(report)
    said = [
      error and f'{name} could not be planned: {error}',
      ended and f'{name}: {ended}.',
      *report['assumptions'],
      *(fix or {}).get('assumptions', ()),
      by and f'Compiled by {by}.',
    ]
    sentences |= dict.fromkeys(filter(None, said))
  columns = [
    [header, *(_cell(line, key, form) for line in lines)]
    for header, key, form in _COLUMNS
  ]
  known = [column for column in columns if {*column[1:]} != {'-'}]
  left = sum(column[0] in ('config', 'topology') for column in known)
  text = text_table.aligned([*zip(*known, strict=True)], left)
  listed = '\n'.join(_wrap(s, '- ', '  ') for s in sentences)
  return '\n\n'.join(filter(None, [text, _wrap(note), listed]))


def _wrap(text: str | None, first: str = '', rest: str = '') -> str:
  return textwrap.fill(
    text or '',
    _WIDTH,
    initial_indent=first,
    subsequent_indent=rest,
    break_long_words=False,
    break_on_hyphens=False,
  )
