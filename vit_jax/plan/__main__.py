"""Plans runs: `python -m vit_jax.plan --config=FILE[:ARG] --topology=SLICE`.

  --config=configs/pretrain.py:ViT-L/16,jft300m --topology=v3:16x16
  --topology=v3:4x4,v5e:8x8         several slices: a table
  --topology=2xv5e:16x16            two slices, joined
  --topology=auto:v3                the smallest v3 slice that the run fits
  --topology=h100x8                 eight GPUs of a machine: a roofline estimate
  --also=configs/finetune.py:ViT-L/16,imagenet2012   further configs
  --config.KEY=VALUE                overrides any key, in all configs

Compiles the same step that training runs, with the TPU's own compiler, on any
x86-64 machine without a TPU (pip install "vit-paper-jax[plan]"). The plan says
whether the run fits the memory, which settings make it fit if it does not, how
long a step and the run take, and the TensorCore-days. Without the compiler or
without --topology, the plan has only parameters, operations and steps.

GPUs are a100, h100 and h200, x1 to x8. The GPU compiler needs no GPU (pip
install "vit-paper-jax[cuda]"). It states no times, so those are a roofline:
what the bytes and products of every kernel take at least.
"""

import json
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags
from ml_collections import config_flags

from vit_jax.plan import (
  analysis,
  compilers,
  devices,
  figures,
  render,
  search,
)
from vit_jax.runtime import command_line
from vit_jax.workdir import ledger

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string=(
    'Config file, with its argument: configs/NAME.py[:ARGUMENT]. NAME alone'
    ' means a config that comes with vit_jax; it works in any folder.'
  ),
  lock_config=True,
)
_ALSO = flags.DEFINE_multi_string(
  'also', [], 'Another config, written as for --config; may be repeated.'
)
_TOPOLOGY = flags.DEFINE_list(
  'topology',
  [],
  'Slices: v3:16x16 or v3-512, 2xv5e:16x16 (two slices), auto:GENERATION,'
  ' auto (v3); GPUs: h100x8, auto:h100.',
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Print one line of JSON: an object, or a list of objects.'
)
_CORRECTION = flags.DEFINE_float(
  'correction',
  1.0,
  "Real speed divided by the compiler's estimate, if you know it. Divides the"
  ' days and core_days.',
  lower_bound=0.01,
  upper_bound=100,
)
_LEDGER = flags.DEFINE_string(
  'ledger',
  None,
  'A file that you keep: adds the plan, and says how far off plans were from'
  ' runs with vit_jax.main --ledger=FILE.',
)
_SEARCH = flags.DEFINE_bool(
  'search', True, 'If a run does not fit, search for settings that do.'
)
_MAX_TRIES = flags.DEFINE_integer(
  'max_tries', 6, 'Most compilations of a search.', lower_bound=1
)


# The generation of `auto`.
_AUTO = 'v3'


def main() -> None:
  runs = _runs()
  path = _LEDGER.value and ledger.checked(_LEDGER.value)
  known = ledger.read(path) if path else []
  devices.leave_hardware_alone()
  # A slice has two names; plan it once even if both are given.
  targets = list(dict.fromkeys(map(_targets, _TOPOLOGY.value)))
  # Check all configs first: the user sees an error before minutes of compiling.
  jobs = [(run, search.suiting(run, t)) for run in runs for t in targets]
  note, compiler = '', devices.have_compiler()
  if any(t[0].platform == 'tpu' for t in targets) and not compiler:
    note = devices.INSTALL
  if not targets:
    jobs = [(run, ()) for run in runs]
    note = 'Add --topology=SLICE, such as v3:16x16, to see memory and time.'
  options = {
    'correction': _CORRECTION.value,
    'fix': _SEARCH.value,
    'max_tries': _MAX_TRIES.value,
  }
  reports = []
  for run, suiting in jobs:
    try:
      if suiting and (suiting[0].platform == 'gpu' or compiler):
        reports.append(search.plan(run, suiting, **options))
      else:
        reports.append(_uncompiled(run, suiting))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
      if len(jobs) == 1:
        raise
      # Keep the other plans, which took minutes.
      failed = _uncompiled(run, suiting)
      reports.append(failed | {'error': compilers.one_line(error)})
  for report in reports if path else ():
    figures.add_ledger(report, path, known)
  if _JSON.value:
    print(json.dumps(reports if len(reports) > 1 else reports[0]))
  elif len(reports) > 1:
    print(render.table(reports, note))
  else:
    print(render.page(reports[0], note))
  failed = [one for one in reports if one['error']]
  if failed:
    raise ValueError(
      f'{len(failed)} of {len(reports)} could not be planned. The first was'
      f' {failed[0]["config"]}: {failed[0]["error"]}'
    )


def _runs() -> list[search.Run]:
  """Returns the runs to plan; a config with stages gives one run a stage."""
  loaded, overrides = {}, {}
  if _CONFIG.value is not None:
    flag = flags.FLAGS['config']
    loaded[config_flags.get_config_filename(flag)] = _CONFIG.value
    overrides = config_flags.get_override_values(flag)
  for name in _ALSO.value:
    config = command_line.load_config(name)
    try:
      config.update_from_flattened_dict(overrides)
    except (KeyError, AttributeError, TypeError) as error:
      raise ValueError(
        f'The overrides {overrides} do not suit {name}: {error}'
      ) from error
    loaded.setdefault(name, config)
  if not loaded:
    raise ValueError(
      '--config is missing: a config file, with its argument, such as'
      ' configs/pretrain.py:ViT-B/16,imagenet2012.'
    )
  runs = []
  for name, config in loaded.items():
    if 'stages' in config:
      stages = ((f'{name} {s}', config.stages[s]) for s in config.order)
      runs += [search.Run(*stage) for stage in stages]
    else:
      runs.append(search.Run(name, config))
  return runs


def _targets(text: str) -> tuple[devices.Target, ...]:
  """Returns the devices of `v3:16x16`, or those that `auto:v3` chooses from."""
  kind, _, generation = text.partition(':')
  if kind == 'auto':
    return tuple(devices.of_generation(generation or _AUTO))
  return (devices.parse(text),)


def _uncompiled(
  run: search.Run, targets: Sequence[devices.Target]
) -> dict[str, Any]:
  """Returns the figures that need no compiler."""
  target = targets[0] if len(targets) == 1 else None
  platform = targets[0].platform if targets else 'tpu'
  config = analysis.resolve(run.config, platform)
  return figures.of_run(run.name, config, target)


if __name__ == '__main__':
  command_line.run(main)
