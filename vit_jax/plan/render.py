"""Shows figures as text: a page for one run, a table for several."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.plan import analysis, compilers, search
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


def page(figures: Mapping[str, Any], note: str = '') -> str:
  """Returns a page on one run: first the verdict, then the details.

  Args:
    figures: see `figures.of_run`.
    note: advice to the reader, or ''.
  """
  fix, ended = figures['fix'], figures['search_ended']
  verdict = [_title(figures), *_verdict(figures)]
  if fix:
    with_fix = f'With {search.flags(fix["changes"])}'
    verdict += ['', f'{with_fix} the run fits.', *_verdict(fix)]
  elif ended and figures['fits']:
    verdict += ['', _wrap(f'A smaller slice may suffice: {ended}.')]
  elif ended:
    text = f'No settings were found with which the run fits: {ended}.'
    verdict += ['', _wrap(text)]
  blocks = ['\n'.join(verdict), _wrap(note)]
  blocks.append(_run(figures))
  if fix:
    blocks.append(f'{with_fix}:')
  detailed = fix or figures
  if detailed['hbm']:
    blocks.append(_memory(detailed))
  if detailed['shares']:
    blocks.append(_time(detailed))
  # One of them stands beside the figure.
  rest = [s for s in detailed['assumptions'] if s != analysis.RESTS_ON]
  if rest:
    lines = [_wrap(text, '  - ', '    ') for text in rest]
    blocks.append('\n'.join(['assumptions', *lines]))
  return '\n\n'.join(filter(None, blocks))


def _title(figures) -> str:
  if not figures['topology']:
    return figures['config']
  count = figures['devices']
  return (
    f'{figures["config"]} on {figures["topology"]}: {count}'
    f' device{"s" * (count > 1)}, each a {figures["device"]}'
  )


def _verdict(figures) -> Iterator[str]:
  """Yields whether the run fits, how long it takes, and what it costs."""
  if figures['error']:
    yield _wrap(f'Could not be planned: {figures["error"]}')
  if figures['fits'] is not None:
    yield _fits(figures)
  if figures['step_ms'] is None:
    return
  on_gpus = figures['gpu_compiler']
  bound = 'at least ' if on_gpus and figures['correction'] == 1 else ''
  text = (
    f'A step takes {bound}{_duration(figures["step_ms_corrected"] / 1e3)}, the'
    f' run {_duration(86400 * figures["wall_days"])}'
  )
  if on_gpus:
    text += f': {_number(figures["device_days"])} GPU-days'
    text += f' ({figures["method"]})'
  if figures['core_days'] is None:
    yield _wrap(f'{text}.')
    return
  kind = figures['topology'].partition(':')[0].lstrip('0123456789x')
  low, high = map(_number, figures['core_days_range'])
  text += (
    f': {_number(figures["core_days"])} TPU{kind}-core-days, {low} to {high} at'
    ' the speed of real runs'
  )
  if paper := figures['paper_core_days']:
    text += f' (the paper: {paper:,}{"" if kind == "v3" else " of TPUv3"})'
  yield _wrap(f'{text}.')
  yield _wrap(analysis.RESTS_ON)


def _fits(figures) -> str:
  needed, usable = figures['hbm_gib'], figures['hbm_usable_gib']
  if figures['fits']:
    return (
      f'Fits: {_gib(needed)} of {_gib(usable)} GiB on each device'
      f' ({_gib(usable - needed)} to spare).'
    )
  if needed <= usable:
    return (
      f'Does not fit: the memory ran out, though {_gib(needed)} of'
      f' {_gib(usable)} GiB on each device are all that the step needs.'
    )
  at_least = '' if figures['hbm_source'] == 'compiler' else 'at least '
  return (
    f'Does not fit: needs {at_least}{_gib(needed)} GiB on each device, but only'
    f' {_gib(usable)} are usable ({_gib(needed - usable)} too many).'
  )


def _run(figures) -> str:
  rows, columns = figures['image_size']
  tokens = f', {figures["tokens"]} tokens' if figures['tokens'] else ''
  epochs = f' ({figures["epochs"]:.3g} epochs)' if figures['epochs'] else ''
  paper = figures['paper_core_days']
  spent = f'; the paper spent {paper:,} TPUv3-core-days' if paper else ''
  settings = figures['settings'].items()
  backward = figures['backward_gmacs'] / figures['forward_gmacs']
  lines = {
    'model': (
      f'{figures["model"]}: {figures["params"]:,} parameters;'
      f' {columns}x{rows} px{tokens}, {figures["forward_gmacs"]:.2f} GMACs an'
      ' image'
    ),
    'trained': (
      f'{figures["trained_params"]:,} parameters; the backward pass costs'
      f' {backward:.2f} forward passes instead of 2'
    )
    if figures['trained_params'] != figures['params']
    else '',
    'run': (
      f'{figures["total_steps"]:,} steps of {figures["batch_size"]:,}'
      f' images{epochs}, {figures["total_exaflops"]:.4g} exaFLOPs{spent}'
    ),
    'settings': ', '.join(f'{k}={v}' for k, v in settings if v is not None),
    'compiler': compilers.named(figures),
  }
  return '\n'.join(
    _wrap(text, f'{name:10}', ' ' * 10) for name, text in lines.items() if text
  )


def _memory(figures) -> str:
  total, usable = figures['hbm_gib'], figures['hbm_usable_gib']
  return '\n'.join(
    [
      'memory of a device, GiB',
      *_bars(figures['hbm'], max(usable, total)),
      f'  {"total":30}{total:10.3f}',
      f'  {"usable":30}{usable:10.3f}',
    ]
  )


def _bars(parts: Mapping[str, float], whole: float) -> Iterator[str]:
  for name, size in parts.items():
    if size >= 0.0005 * whole:
      bar = '#' * round(_BAR * size / whole)
      yield f'  {_LABELS.get(name, name):30}{size:10.3f}  {bar}'.rstrip()


def _time(figures) -> str:
  raw, on_gpus = figures['step_ms'], figures['gpu_compiler']
  how = f'{figures["method"]}; ' if on_gpus else ''
  shares = sorted(figures['shares'].items(), key=lambda item: -item[1])
  lines = [
    f'estimated time of a step, ms ({how}{raw:.1f} in total)',
    *_bars({name: share * raw for name, share in shares}, raw),
    f'  {figures["images_per_sec_per_core"]:.1f}'
    f' images/s/{"GPU" if on_gpus else "core"},'
    f' {figures["images_per_sec"]:,.0f} images/s, MFU {figures["mfu"]:.3f}',
    '  heaviest:',
  ]
  for one in figures['heaviest']:
    backward = 'backward ' if 'transpose(jvp' in one['op'] else ''
    end = one['op'][len(backward) - 52 :]
    lines.append(f'  {one["ms"]:9.2f}  {one["class"]:12} {backward}{end}')
  return '\n'.join(lines)


# Header, figure, and how a table shows it.
_COLUMNS = (
  ('config', 'config', str),
  ('topology', 'topology', str),
  ('fits', 'fits', lambda fits: 'yes' if fits else 'no'),
  ('GiB', 'hbm_gib', lambda gib: _gib(gib)),
  ('usable GiB', 'hbm_usable_gib', lambda gib: _gib(gib)),
  ('step ms', 'step_ms', lambda ms: f'{ms:,.0f}' if ms >= 100 else f'{ms:.1f}'),
  ('img/s/core', 'images_per_sec_per_core', '{:.1f}'.format),
  ('MFU', 'mfu', '{:.3f}'.format),
  ('days', 'wall_days', '{:.3g}'.format),
  ('core-days', 'core_days', lambda days: _number(days)),
  ('paper (v3)', 'paper_core_days', '{:,}'.format),
  ('params', 'params', '{:,}'.format),
  ('GMACs', 'forward_gmacs', '{:.2f}'.format),
  ('tokens', 'tokens', str),
  ('exaFLOPs', 'total_exaflops', '{:.4g}'.format),
)


def table(reports: Sequence[Mapping[str, Any]], note: str = '') -> str:
  """Returns one line a run, and a second one for settings that fit."""
  lines = []
  for report in reports:
    lines.append(report)
    if fix := report['fix']:
      changes = ' '.join(f'{k}={v}' for k, v in fix['changes'].items())
      lines.append({**fix, 'config': f'  {changes}'})
  columns = [
    [header, *('-' if line[key] is None else form(line[key]) for line in lines)]
    for header, key, form in _COLUMNS
  ]
  known = [column for column in columns if {*column[1:]} != {'-'}]
  left = sum(column[0] in ('config', 'topology') for column in known)
  text = text_table.aligned([*zip(*known, strict=True)], left)
  sentences = {}
  for report in reports:
    name = f'{report["config"]} on {report["topology"]}'
    ended = report['search_ended']
    said = [
      report['error'] and f'{name} could not be planned: {report["error"]}',
      ended and f'{name}: {ended}.',
      *report['assumptions'],
      *(report['fix'] or {}).get('assumptions', ()),
    ]
    by = compilers.named(report)
    sentences |= dict.fromkeys([*said, by and f'Compiled by {by}.'])
  listed = '\n'.join(_wrap(s, '- ', '  ') for s in sentences if s)
  return '\n\n'.join(filter(None, [text, _wrap(note), listed]))


def _gib(size: float) -> str:
  return f'{size:.1f}' if size >= 1 else f'{size:.2f}'


def _number(value: float) -> str:
  return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


def _duration(seconds: float) -> str:
  for unit, size in (('days', 86400), ('hours', 3600), ('minutes', 60)):
    if seconds >= 2 * size:
      return f'{seconds / size:.3g} {unit}'
  return f'{seconds:.3g} s' if seconds >= 1 else f'{1e3 * seconds:.3g} ms'


def _wrap(text: str, first: str = '', rest: str = '') -> str:
  return textwrap.fill(
    text,
    _WIDTH,
    initial_indent=first,
    subsequent_indent=rest,
    break_long_words=False,
    break_on_hyphens=False,
  )
