"""Formats a plan's figures: a page for one run, a table for several."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from vit_jax.plan import analysis, compilers, remedies

_WIDTH = 80
_BAR = 30
_LABELS = {
  'average': 'moving average',
  'temporaries': 'activations and working space',
  'batch': 'images and labels',
  'padding': 'padding of the above',
  'program': 'the program itself',
}
_UNKNOWN = '-'


def page(figures: dict[str, Any], note: str = '') -> str:
  """Returns a page on one run: first the verdict, then the details.

  Args:
    figures: see `as_json.figures` and `measure.figures`.
    note: advice to the reader, or ''.
  """
  blocks = [_verdict(figures)]
  fix = figures.get('fix')
  if fix:
    blocks[0] += '\n\n' + _fix_verdict(fix)
  elif figures['search_ended']:
    blocks[0] += '\n\n' + _search_ended(figures)
  if note:
    blocks.append(_wrap(note))
  if figures['lock_difference']:
    blocks.append(_wrap(figures['lock_difference']))
  blocks.append(_run(figures))
  detailed = fix or figures
  if fix:
    blocks.append(f'With {remedies.flags(fix["changes"])}:')
  if detailed['hbm']:
    blocks.append(_memory(detailed))
  if detailed['shares']:
    blocks.append(_time(detailed))
  if detailed['assumptions']:
    blocks.append(
      'assumptions\n'
      + '\n'.join(
        _wrap(text, '  - ', '    ')
        for text in detailed['assumptions']
        if text != analysis.RESTS_ON  # It stands beside the figure.
      )
    )
  return '\n\n'.join(blocks)


def _verdict(figures) -> str:
  title = figures['config']
  if figures['topology']:
    count, device = figures['devices'], figures['device']
    title += f' on {figures["topology"]}: {count} device{"s" * (count > 1)}'
    title += f', each a {device}'
  lines = [title]
  if figures['error']:
    lines.append(_wrap(f'Could not be planned: {figures["error"]}'))
  if figures['fits'] is not None:
    lines.append(_fits(figures))
  if figures['step_ms'] is not None:
    lines.append(_speed(figures))
  return '\n'.join(lines)


def _fits(figures) -> str:
  needed, usable = figures['hbm_gib'], figures['hbm_usable_gib']
  if usable is None and figures['fits']:
    return f'Needs {_gib(needed)} GiB on each device.'
  if figures['fits']:
    return (
      f'Fits: {_gib(needed)} of {_gib(usable)} GiB on each device'
      f' ({_gib(usable - needed)} to spare).'
    )
  if usable is None:
    return f'Does not fit: needs {_gib(needed)} GiB on each device.'
  if needed <= usable and figures['hbm_source'] == 'compiler':
    return (
      f'Does not fit: the memory ran out, though {_gib(needed)} of'
      f' {_gib(usable)} GiB on each device are all that the step needs.'
    )
  at_least = '' if figures['hbm_source'] == 'compiler' else 'at least '
  if needed <= usable:
    return f'Does not fit: needs {at_least}{_gib(needed)} GiB on each device.'
  return (
    f'Does not fit: needs {at_least}{_gib(needed)} GiB on each device, but only'
    f' {_gib(usable)} are usable ({_gib(needed - usable)} too many).'
  )


def _speed(figures) -> str:
  at_least = 'at least ' if _is_bound(figures) else ''
  text = f'A step takes {at_least}'
  text += _time_of(figures['step_ms_corrected'] / 1e3)
  if figures['wall_days'] is not None:
    text += f', the run {_time_of(86400 * figures["wall_days"])}'
  if figures['gpu_compiler']:
    text += f': {_number(figures["device_days"])} GPU-days'
    text += f' ({figures["method"]})'
  if figures['core_days'] is not None:
    kind = _generation(figures)
    text += f': {_number(figures["core_days"])} TPU{kind}-core-days'
    low, high = map(_number, figures['core_days_range'])
    text += f', {low} to {high} at the speed of real runs'
    if paper := figures['paper_core_days']:
      text += f' (the paper: {paper:,}{"" if kind == "v3" else " of TPUv3"})'
    return f'{_wrap(text + ".")}\n{_wrap(analysis.RESTS_ON)}'
  return _wrap(text + '.')


def _is_bound(figures) -> bool:
  """Returns whether times are a roofline that nothing corrects."""
  return bool(figures['gpu_compiler']) and figures.get('correction') == 1


def _generation(figures) -> str:
  """Returns the slice's generation: 'v3' for '2xv3:4x4'; '' without a slice."""
  kind = (figures['topology'] or '').partition(':')[0]
  return re.sub(r'^\d+x', '', kind)


def _fix_verdict(fix) -> str:
  changes = remedies.flags(fix['changes'])
  return f'With {changes} the run fits.\n{_fits(fix)}\n{_speed(fix)}'


def _search_ended(figures) -> str:
  reason = f'{figures["search_ended"]}.'
  if figures['fits']:
    return _wrap(f'A smaller slice may suffice: {reason}')
  lines = [_wrap(f'No settings were found with which the run fits: {reason}')]
  if figures['tried']:
    lines.append('Tried:')
  for one in figures['tried']:
    changes = remedies.flags(one['changes']) or 'as given'
    size = 'error' if one['error'] else f'{_gib(one["hbm_gib"])} GiB'
    lines.append(f'  {size:>10}  {changes}')
  return '\n'.join(lines)


def _run(figures) -> str:
  rows, columns = figures['image_size']
  tokens = f', {figures["tokens"]} tokens' if figures['tokens'] else ''
  model = (
    f'{figures["model"]}: {figures["params"]:,} parameters;'
    f' {columns}x{rows} px{tokens}, {figures["forward_gmacs"]:.2f} GMACs an'
    ' image'
  )
  epochs = f' ({figures["epochs"]:.3g} epochs)' if figures['epochs'] else ''
  run = (
    f'{figures["total_steps"]:,} steps of {figures["batch_size"]:,}'
    f' images{epochs}, {figures["total_exaflops"]:.4g} exaFLOPs'
  )
  if figures['paper_core_days']:
    run += f'; the paper spent {figures["paper_core_days"]:,} TPUv3-core-days'
  shown = ', '.join(
    f'{key}={value}'
    for key, value in figures['settings'].items()
    if value is not None
  )
  lines = [('model', model), ('run', run), ('settings', shown)]
  if figures['optimizer_gib'] is not None:
    lines.insert(1, ('trained', _trained(figures)))
  if compiler := compilers.named(figures):
    lines.append(('compiler', compiler))
  return '\n'.join(_wrap(text, f'{name:10}', ' ' * 10) for name, text in lines)


def _trained(figures) -> str:
  """Says what a run saves that trains less than its whole model."""
  held, of_all = figures['optimizer_gib'], figures['optimizer_gib_of_all']
  trained, ratio = figures['trained_params'], figures['backward_gmacs']
  ratio /= figures['forward_gmacs']
  return (
    f'{trained:,} parameters ({100 * trained / figures["params"]:.3g}% of the'
    f" model's); the optimizer's state has {_size(held)} instead of"
    f' {_size(of_all)}; the backward pass costs {ratio:.2f} forward passes'
    ' instead of 2'
  )


def _size(gib: float) -> str:
  """Returns a size in words, such as '1.2 GiB' or '27.0 MiB'."""
  return f'{gib:.1f} GiB' if gib >= 1 else f'{1024 * gib:.1f} MiB'


def _memory(figures) -> str:
  usable = figures['hbm_usable_gib'] or figures['hbm_gib']
  largest = max(usable, figures['hbm_gib'])
  lines = ['memory of a device, GiB']
  for name, size in figures['hbm'].items():
    if size >= 0.0005:
      bar = '#' * round(_BAR * size / largest)
      lines.append(f'  {_LABELS.get(name, name):30}{size:8.3f}  {bar}')
  lines.append(f'  {"total":30}{figures["hbm_gib"]:8.3f}')
  if figures['hbm_usable_gib']:
    lines.append(f'  {"usable":30}{figures["hbm_usable_gib"]:8.3f}')
  return '\n'.join(line.rstrip() for line in lines)


def _time(figures) -> str:
  raw = figures['step_ms']
  how = f'{figures["method"]}; ' if figures['gpu_compiler'] else ''
  lines = [
    f'estimated time of a step, ms ({how}{raw:.1f} in total)',
  ]
  unit = 'GPU' if figures['gpu_compiler'] else 'core'
  for name, share in sorted(figures['shares'].items(), key=lambda kv: -kv[1]):
    if share >= 0.0005:
      bar = '#' * round(_BAR * share)
      lines.append(f'  {name:20}{share * raw:10.1f}{share:7.1%}  {bar}')
  lines.append(
    f'  {figures["images_per_sec_per_core"]:.1f} images/s/{unit},'
    f' {figures["images_per_sec"]:,.0f} images/s, MFU {figures["mfu"]:.3f}'
  )
  if figures['heaviest']:
    lines.append('  heaviest:')
  for one in figures['heaviest']:
    name = one['op']
    backward = 'backward ' if 'transpose(jvp' in name else ''
    room = 52 - len(backward)
    if len(name) > room:
      name = '...' + name[3 - room :]
    lines.append(f'  {one["ms"]:9.2f}  {one["class"]:12} {backward}{name}')
  return '\n'.join(line.rstrip() for line in lines)


def table(reports: Sequence[dict[str, Any]], note: str = '') -> str:
  """Returns one line a run, and a second one for settings that fit."""
  header = [
    *('config', 'topology', 'fits', 'GiB', 'usable GiB', 'step ms'),
    *('img/s/core', 'MFU', 'days', 'core-days', 'paper', 'params', 'GMACs'),
    *('tokens', 'exaFLOPs'),
  ]
  # The table shows these counts only if nothing else is known.
  hidden = {'params', 'GMACs', 'tokens'}
  if all(report['hbm_gib'] is None for report in reports):
    hidden = set()
  rows = [header]
  names = [report['config'] for report in reports]
  # Runs of a single config file are named by their arguments alone.
  files = {name.partition(':')[0] for name in names}
  for report in reports:
    name = report['config']
    _, _, argument = name.partition(':')
    rows.append(
      _row(report, argument if len(files) == 1 and argument else name)
    )
    fix = report.get('fix')
    if fix:
      changes = ' '.join(f'{k}={v}' for k, v in fix['changes'].items())
      rows.append(_row(fix, f'  {changes}'))
  used = [
    i
    for i in range(len(header))
    if i < 2
    or (header[i] not in hidden and {row[i] for row in rows[1:]} != {_UNKNOWN})
  ]
  rows = [[row[i] for i in used] for row in rows]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  text = '\n'.join(
    '  '.join(
      cell.rjust(width) if i > 1 else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  )
  sentences = dict.fromkeys(_failures(reports)) | dict.fromkeys(
    sentence
    for report in reports
    for one in (report, report.get('fix') or {})
    for sentence in one.get('assumptions', ())
  )
  by = dict.fromkeys(filter(None, map(compilers.named, reports)))
  sentences |= dict.fromkeys(f'Compiled by {one}.' for one in by)
  parts = [text, _wrap(note)] if note else [text]
  parts += [_wrap(sentence, '- ', '  ') for sentence in sentences]
  return '\n\n'.join(parts[:2]) + ''.join(f'\n{p}' for p in parts[2:])


def _failures(reports) -> Iterator[str]:
  """Yields sentences on what failed or was not done."""
  for report in reports:
    if report['lock_difference']:
      yield report['lock_difference']
    name = f'{report["config"]} on {report["topology"]}'
    if report['error']:
      yield f'{name} could not be planned: {report["error"]}'
    if report['search_ended']:
      yield f'{name}: {report["search_ended"]}.'


def _row(report, name: str) -> list[str]:
  def cell(key, form):
    value = report[key]
    return _UNKNOWN if value is None else form(value)

  return [
    name,
    cell('topology', str),
    'error'
    if report['error']
    else cell('fits', lambda x: 'yes' if x else 'no'),
    cell('hbm_gib', _gib),
    cell('hbm_usable_gib', _gib),
    cell('step_ms', lambda ms: f'{ms:,.0f}' if ms >= 100 else f'{ms:.1f}'),
    cell('images_per_sec_per_core', lambda x: f'{x:.1f}'),
    cell('mfu', lambda x: f'{x:.3f}'),
    cell('wall_days', lambda days: f'{days:.3g}'),
    cell('core_days', _number),
    cell('paper_core_days', lambda days: f'{days:,}')
    if _generation(report) == 'v3'
    else _UNKNOWN,
    cell('params', lambda x: f'{x:,}'),
    cell('forward_gmacs', lambda x: f'{x:.2f}'),
    cell('tokens', str),
    cell('total_exaflops', lambda x: f'{x:.4g}'),
  ]


def _gib(size: float) -> str:
  return f'{size:.1f}' if size >= 1 else f'{size:.2f}'


def _number(value: float) -> str:
  return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


def _time_of(seconds: float) -> str:
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
