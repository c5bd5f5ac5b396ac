"""Counts what models cost: `python -m vit_jax.accounting MODEL... [flags]`.

  ViT-B/16                                 a table of the model's parts
  ViT-B/16 ViT-L/16 BiT-R152x2             one line a model, to compare
  ViT-B/16 ViT-B/16:remat=full             the same with an option changed
  ViT-L/16 --image_size=384x512            another size, height x width
  ViT-L/16:representation_size=1024 --num_classes=18291    other classes

MODEL is a name with optional settings, NAME[:KEY=VALUE,...]. A GMAC is 1e9
multiply-accumulates (two operations each) of one image's forward pass. The MiB
of the whole model count what one image keeps in memory between the forward and
the backward pass of training, before the compiler decides to recompute some.
"""

import json

import jax.numpy as jnp
from absl import flags

from vit_jax import accounting, models
from vit_jax.runtime import command_line, text_table

_IMAGE_SIZE = flags.DEFINE_string(
  'image_size', '224', 'In pixels: a side, or HEIGHTxWIDTH.'
)
_NUM_CLASSES = flags.DEFINE_integer(
  'num_classes', 1000, 'Logits of the head.', lower_bound=1
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Print one line of JSON: an object, or a list of objects.'
)


# Figure -> its column and the format of its cells; cells of zero are blank.
_COLUMNS = {
  'params': ('parameters', ',d'),
  'forward_gmacs': ('GMACs', '.3f'),
  'activation_mib': ('MiB an image', '.1f'),
  'dtype': ('dtype', ''),
}


def main(specs: list[str]) -> None:
  size = command_line.parse_size('image_size', _IMAGE_SIZE.value)
  reports = [_report(spec, size) for spec in specs]
  if _JSON.value:
    print(json.dumps(reports if len(reports) > 1 else reports[0]))
    return
  setting = f'{size[0]}x{size[1]} px, {_NUM_CLASSES.value} classes'
  if len(reports) > 1:
    print(f'{setting}\n\n{_table(reports, "model")}')
    return
  (report,) = reports
  total_of = ('params', 'forward_gmacs', 'activation_mib')
  total = {'name': 'total', **{key: report[key] for key in total_of}}
  print(f'{report["model"]}: {setting}, {report["dtype"]}\n')
  print(_table([*report['parts'], total], 'name'))


def _table(rows: list[dict], first: str) -> str:
  shown = [key for key in _COLUMNS if any(key in row for row in rows)]
  lines = [['', *(_COLUMNS[key][0] for key in shown)]]
  for row in rows:
    cells = (
      format(row[k], _COLUMNS[k][1]) if row.get(k) else '' for k in shown
    )
    lines.append([row[first], *cells])
  return text_table.aligned(lines)


def _report(spec: str, size: tuple[int, int]) -> dict:
  """Returns the account of one model as numbers for JSON."""
  model = models.parse(spec, num_classes=_NUM_CLASSES.value)
  account = accounting.account(model, size)
  return {
    'model': spec,
    'image_size': list(size),
    'num_classes': _NUM_CLASSES.value,
    'dtype': jnp.dtype(model.dtype).name,
    'params': account.params,
    'forward_gmacs': account.macs / 1e9,
    'activation_mib': account.activation_bytes / 2**20,
    'parts': [
      {
        'name': part.name,
        'params': part.params,
        'forward_gmacs': part.macs / 1e9,
      }
      for part in account.parts
    ],
  }


if __name__ == '__main__':
  command_line.run(
    main,
    arguments='models, such as ViT-B/16. There are '
    + ', '.join(models.names()),
  )
