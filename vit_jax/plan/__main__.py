"""Plans runs: `python -m vit_jax.plan --config=FILE[:ARG] --topology=SLICE`.

  --config=configs/pretrain.py:ViT-L/16,jft300m --topology=v3:16x16
  --topology=v3:4x4,v5e:8x8         several slices: a table
  --topology=2xv5e:16x16            two slices, joined
  --topology=auto:v3                the smallest v3 slice that the run fits
  --topology=h100x8                 eight GPUs of a machine: a roofline estimate
  --also=configs/finetune.py:ViT-L/16,imagenet2012   further configs
  --table6 --topology=v3:16x16      the 18 runs of the paper's Table 6
  --topology=local                  measures steps on this machine (cpu, gpu)
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

import sys

from absl import flags, logging
from ml_collections import config_flags

from vit_jax.plan import as_json, many_runs
from vit_jax.runtime import command_line

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
_TABLE6 = flags.DEFINE_bool(
  'table6', False, "Also plan the pre-training runs of the paper's Table 6."
)
_TOPOLOGY = flags.DEFINE_list(
  'topology',
  [],
  'Slices: v3:16x16 or v3-512, 2xv5e:16x16 (two slices), auto:GENERATION,'
  ' auto (v3); GPUs: h100x8, auto:h100; or local, cpu, gpu: this machine.',
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Print one line of JSON: an object, or a list of objects.'
)
_CORRECTION = flags.DEFINE_float(
  'correction',
  as_json.CORRECTION,
  "Real speed divided by the compiler's estimate, if you know it. Divides the"
  ' days, core_days and the step time of a page.',
  lower_bound=0.01,
)
_SEARCH = flags.DEFINE_bool(
  'search', True, 'If a run does not fit, search for settings that do.'
)
_MAX_TRIES = flags.DEFINE_integer(
  'max_tries', 6, 'Most compilations in such a search.', lower_bound=1
)
_MAX_MINUTES = flags.DEFINE_float(
  'max_minutes',
  60.0,
  'Minutes after which a search starts no further compilation.',
  lower_bound=0,
)
_STEPS = flags.DEFINE_integer(
  'steps', 10, 'Steps to measure on this machine.', lower_bound=1
)


def main() -> None:
  named = {}
  if _CONFIG.value is not None:
    name = config_flags.get_config_filename(flags.FLAGS['config'])
    named[name] = _CONFIG.value
  overrides = (
    config_flags.get_override_values(flags.FLAGS['config']) if named else {}
  )
  names = [*_ALSO.value, *(many_runs.table6() if _TABLE6.value else ())]
  runs = many_runs.expand(named, names, overrides)
  options = many_runs.Options(
    correction=_CORRECTION.value,
    search=_SEARCH.value,
    max_tries=_MAX_TRIES.value,
    max_seconds=60 * _MAX_MINUTES.value,
    steps=_STEPS.value,
  )
  reports, note = many_runs.plan_all(
    runs, _TOPOLOGY.value, options, lambda text: logging.info('%s', text)
  )
  if _JSON.value:
    print(many_runs.to_json(reports))
  else:
    print(many_runs.render_all(reports, note))
  many_runs.check(reports)


if __name__ == '__main__':
  try:
    sys.argv[1:] = many_runs.with_config(sys.argv[1:])
  except ValueError as error:
    sys.exit(f'error: {error}')
  command_line.run(main)
