"""The figures of a run: one object, which JSON and the text for people show.

They are planned from what the compiler says.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
from etils import epath

from vit_jax import config as config_lib
from vit_jax.plan import analysis, chips, devices
from vit_jax.plan.compilers import GIB, Compiled
from vit_jax.runtime import installed
from vit_jax.sharding import mesh as mesh_lib
from vit_jax.workdir import ledger

ROOFLINE = 'roofline, not measured'
_DAY = 86_400.0
# Figures that may be unknown, and are None then.
_UNKNOWN = (
  *('topology', 'device', 'devices', 'chips', 'cores', 'hbm_gib', 'hbm'),
  *('hbm_usable_gib', 'fits', 'compile_seconds', 'step_ms', 'device_days'),
  *('images_per_sec', 'wall_days', 'mfu', 'shares'),
  *('images_per_sec_per_core', 'core_days', 'core_days_raw', 'fix', 'changes'),
  *('core_days_range', 'search_ended', 'error', 'libtpu'),
  *('gpu_compiler', 'method', 'step_key', 'ledger_runs', 'ledger_ratio'),
)
# The report names operations of unknown time if they write this many bytes.
_UNCOVERED_BYTES = 2**20
# Measured on an H100, one run each; the prototype was not this program.
_ROOFLINE_RESTS_ON = (
  'Times are a roofline, not measured: for every kernel the larger of its bytes'
  " over the memory's bandwidth and its products over the peak. A real step"
  ' takes longer. On an H100, the steps of ViT-B/16 and L/16 with `plain`'
  " attention took 1.45 and 1.41 times as long; a prototype of cuDNN's took 1.6"
  ' times as long.'
)


def of_run(
  name: str,
  config: ml_collections.ConfigDict,
  target: devices.Target | None = None,
  compiled: Compiled | None = None,
  correction: float = 1.0,
) -> dict[str, Any]:
  """Returns the figures of a run.

  Args:
    name: the name of the config.
    config: the complete config.
    target: the devices; None if they are unknown.
    compiled: the compiler's result, if there is one.
    correction: real speed divided by the estimated speed.

  Returns:
    Figures by name, see `analysis.analyse`; unknown ones are None. `hbm_gib` is
    per device. `step_ms`, `images_per_sec_per_core`, `mfu` and `core_days_raw`
    are the compiler's estimates; `wall_days`, `device_days` and `core_days` are
    these divided by `correction`. `core_days_range` is
    `core_days_raw` divided by the speeds that are known, see
    `analysis.RESTS_ON`. `hidden_ms` is the time of collectives that runs beside
    computation. Cores are TensorCores. `fix` has the same figures for the
    settings that fit; `search_ended` says why there are none, or no better
    ones. `error` says why there is no plan. `libtpu` or `gpu_compiler` is the
    compiler's version, if it ran. `method` says where the time comes from.
    `step_key` is what names the step in a ledger, see `ledger.key`.
  """
  found = {
    'config': name,
    **dict.fromkeys(_UNKNOWN),
    'jax': jax.__version__,
    **analysis.analyse(config),
    'assumptions': [],
  }
  if target:
    found |= {
      'topology': str(target),
      'device': target.device,
      'devices': target.devices,
      'chips': target.chips,
      'cores': target.cores,
      'hbm_usable_gib': target.chip.hbm_usable_bytes / GIB,
    }
  if not compiled:
    return found
  if compiled.error:
    return found | {'error': compiled.error}
  parts = dataclasses.asdict(compiled.memory)
  found |= {
    'hbm_gib': compiled.memory.total / GIB,
    'hbm': {name: size / GIB for name, size in parts.items()},
    'hbm_source': 'lower bound',
    'fits': compiled.fits,
    'assumptions': _assumptions(target, compiled, correction),
  }
  if compiled.seconds is not None:
    on_gpus = target.platform == 'gpu'
    found |= {
      'hbm_source': 'compiler',
      'compile_seconds': round(compiled.seconds, 1),
      'gpu_compiler': devices.gpu_compiler() if on_gpus else None,
      'libtpu': None if on_gpus else installed.versions().get('libtpu'),
    }
  if compiled.estimate:
    found |= _of_time(config, target, compiled.estimate, correction)
  return found


def _of_time(config, target, estimate, correction: float) -> dict[str, Any]:
  seconds, batch = estimate.seconds, config.data.batch_size
  cores, count = target.cores, target.devices
  sizes = (config.mesh[axis] for axis in mesh_lib.AXES)
  sizes = mesh_lib.axis_sizes(count, *sizes, target.slices)
  mesh = dict(zip(mesh_lib.AXES, sizes, strict=True))
  device = chips.name_of(target.chip.device_kind)
  flops = analysis.step_flops(config)
  days = seconds * config.total_steps / _DAY
  found = {
    'step_ms': 1e3 * seconds,
    'step_key': ledger.key(config_lib.flatten(config), mesh, device),
    'images_per_sec': batch / seconds,
    'images_per_sec_per_core': batch / seconds / (cores or count),
    'mfu': flops / seconds / (count * target.chip.peak_flops),
    'wall_days': days / correction,
    'device_days': count * days / correction,
    'method': "the compiler's cycles" if cores else ROOFLINE,
    'correction': correction,
    'shares': {k: part / seconds for k, part in estimate.by_class.items()},
    'hidden_ms': 1e3 * estimate.hidden_seconds,
  }
  if cores:
    speeds = analysis.REAL_SPEED[::-1]
    found |= {
      'core_days': cores * days / correction,
      'core_days_raw': cores * days,
      'core_days_range': [cores * days / speed for speed in speeds],
    }
  return found


def _assumptions(target, compiled: Compiled, correction: float) -> list[str]:
  """Returns sentences on the assumptions behind the figures."""
  estimate = compiled.estimate
  if compiled.seconds is None:
    return [
      'Not compiled: the run would not fit even with a small part of the'
      ' activations that JAX keeps for the backward pass.'
    ]
  if not estimate:
    return []
  on_gpus = target.platform == 'gpu'
  what = 'roofline' if on_gpus else 'estimate'
  links = f"{target.chip.link_efficiency:g} of the links'"
  sentences = [_ROOFLINE_RESTS_ON if on_gpus else analysis.RESTS_ON]
  if correction != 1:
    sentences.append(
      f'Days and core-days are the {what} divided by {correction:g}. The step'
      ' time, images a second, MFU and core_days_raw are not.'
    )
  if target.slices > 1:
    bandwidth = target.chip.network_bytes_per_second / 1e9
    sentences.append(
      f'Transfers between slices have {bandwidth:g} GB/s a device.'
    )
  sentences += [
    f'Collectives use {links} bandwidth. Computation that the compiler puts'
    f' beside asynchronous ones hides {1e3 * estimate.hidden_seconds:.1f} ms a'
    ' step.',
    'The time of the run is that of its steps, without evaluation, checkpoints,'
    ' waiting for data or restarts.',
    *estimate.assumptions,
  ]
  listed = ', '.join(
    f'{name} ({size / 2**20:.0f} MiB)'
    for name, size in estimate.uncovered.most_common(4)
    if size >= _UNCOVERED_BYTES
  )
  if listed:
    sentences.append(f'The time of {listed} is unknown and counts as zero.')
  return sentences


def add_ledger(
  found: dict[str, Any], path: epath.Path, lines: Sequence[Mapping[str, Any]]
) -> None:
  """Adds a plan to a ledger, and to the plan how far off others were.

  Args:
    found: the figures of a plan, see `of_run`. If it has a time, this sets
      `ledger_ratio`, the least, median and greatest of measured over predicted
      time on its kind of device (None without runs), and `ledger_runs`, their
      number; in `fix`, too.
    path: see `ledger.checked`.
    lines: what the ledger holds.
  """
  shown = found['fix'] or found
  if not shown['step_ms']:
    return
  step = shown['step_key']
  ratios = ledger.ratios(lines, step['device'])
  text, span = f'{path} has no run on {step["device"]} with a plan.', None
  if ratios:
    span = low, middle, high = ratios[0], statistics.median(ratios), ratios[-1]
    text = (
      f'{path}: on {step["device"]}, a step of {len(ratios)} run(s) took'
      f' {low:.3g} to {high:.3g} times as long as planned, in the median'
      f' {middle:.3g} times; --correction={1 / middle:.2g} reckons with that.'
    )
  shown['assumptions'].insert(1, text)
  for one in (found, shown):
    one |= {'ledger_runs': len(ratios), 'ledger_ratio': span and [*span]}
  ledger.append(
    *(path, step, installed.versions()),
    what='plan',
    config=found['config'],
    predicted_ms=shown['step_ms'],
    measured_ms=None,
  )
