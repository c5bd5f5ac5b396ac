"""Counts what models cost: `python -m vit_jax.accounting MODEL... [flags]`.

  ViT-B/16                                 a table of the model's parts
  ViT-B/16 ViT-L/16 BiT-R152x2             one line a model, to compare
  ViT-B/16 ViT-B/16:remat=full             the same with an option changed
  ViT-L/16 --image_size=384x512            another size, height x width
  ViT-L/16:representation_size=1024 --num_classes=18291 \\
      --examples=303e6 --epochs=14         with the exaFLOPs of a training run

MODEL is a name with optional settings, NAME[:KEY=VALUE,...]. A GMAC is 1e9
multiply-accumulates (two operations each) of one image's forward pass. The MiB
count what one image keeps in memory between the forward and the backward pass
of training, before the compiler decides to recompute some of it.
"""

import json

import jax.numpy as jnp
from absl import flags

from vit_jax import accounting, models
from vit_jax.runtime import command_line

_IMAGE_SIZE = flags.DEFINE_string(
  'image_size', '224', 'In pixels: a side, or HEIGHTxWIDTH.'
)
_NUM_CLASSES = flags.DEFINE_integer(
  'num_classes', 1000, 'Logits of the head.', lower_bound=1
)
_EPOCHS = flags.DEFINE_float(
  'epochs', None, 'Epochs of a run, to add its exaFLOPs.', lower_bound=0
)
_EXAMPLES = flags.DEFINE_float(
  'examples', None, 'Examples in an epoch: JFT 303e6, ImageNet 1281167.', 0
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Print one line of JSON: an object, or a list of objects.'
)


def main(specs: list[str]) -> None:
  if (_EPOCHS.value is None) != (_EXAMPLES.value is None):
    missing = 'examples' if _EXAMPLES.value is None else 'epochs'
    raise ValueError(
      f'--{missing} is missing: exaFLOPs need both --epochs and --examples.'
    )
  size = command_line.parse_size('image_size', _IMAGE_SIZE.value)
  reports = [_report(spec, size) for spec in specs]
  if _JSON.value:
    print(json.dumps(reports if len(reports) > 1 else reports[0]))
  elif len(reports) > 1:
    print(_comparison(reports))
  else:
    print(_table(reports[0]))


def _report(spec: str, size: tuple[int, int]) -> dict:
  """Returns the account of one model as numbers for JSON."""
  model = models.parse(spec, num_classes=_NUM_CLASSES.value)
  account = accounting.account(model, size)
  report = {
    'model': spec,
    'image_size': list(size),
    'num_classes': _NUM_CLASSES.value,
    'dtype': jnp.dtype(model.dtype).name,
    **_figures(account),
  }
  if _EPOCHS.value is not None:
    report['exaflops'] = accounting.exaflops(
      account.macs, _EXAMPLES.value, _EPOCHS.value
    )
  report['parts'] = [
    {'name': part.name, 'repeats': part.repeats, **_figures(part)}
    for part in account.parts
  ]
  return report


def _figures(counted: accounting.Account | accounting.Part) -> dict:
  return {
    'params': counted.params,
    'forward_gmacs': counted.macs / 1e9,
    'activation_mib': counted.activation_bytes / 2**20,
  }


def _setting(report: dict) -> str:
  height, width = report['image_size']
  return f'{height}x{width} px, {report["num_classes"]} classes'


def _table(report: dict) -> str:
  """Renders a model's parts; cells of zero are blank."""
  rows = [['part', 'number', 'parameters', 'GMACs', '%', 'MiB an image', '%']]
  total = {'name': 'total', 'repeats': 1, **report}
  for part in [*report['parts'], total]:
    row = [part['name'], str(part['repeats']) if part['repeats'] > 1 else '']
    row.append(f'{part["params"]:,}' if part['params'] else '')
    for key, digits in (('forward_gmacs', 3), ('activation_mib', 1)):
      share = part[key] / report[key]
      row.append(f'{part[key]:.{digits}f}' if part[key] else '')
      row.append(f'{share:.1%}'[:-1] if part[key] else '')
    rows.append(row)
  text = (
    f'{report["model"]}: {_setting(report)}, {report["dtype"]}\n\n'
    + _align(rows)
  )
  if 'exaflops' in report:
    text += (
      f'\n\n{report["exaflops"]:.4g} exaFLOPs to train:'
      f' {_EPOCHS.value:g} epochs of {_EXAMPLES.value:,.0f} images'
    )
  return text


def _comparison(reports: list[dict]) -> str:
  """Renders one line for each model."""
  rows = [['model', 'parameters', 'GMACs', 'MiB an image', 'dtype']]
  rows[0] += ['exaFLOPs'] * ('exaflops' in reports[0])
  for report in reports:
    row = [report['model'], f'{report["params"]:,}']
    row.append(f'{report["forward_gmacs"]:.3f}')
    row += [f'{report["activation_mib"]:.1f}', report['dtype']]
    row += [f'{report["exaflops"]:.4g}'] * ('exaflops' in report)
    rows.append(row)
  return f'{_setting(reports[0])}\n\n{_align(rows)}'


def _align(rows: list[list[str]]) -> str:
  """Aligns the first column left, the others right."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return '\n'.join(
    '  '.join(
      cell.rjust(width) if i else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  )


if __name__ == '__main__':
  command_line.run(
    main,
    arguments='models, such as ViT-B/16. There are '
    + ', '.join(models.names()),
  )
