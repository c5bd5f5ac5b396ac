"""Makes a part of a run again, and compares it with what was recorded.

A run is repeatable bit by bit on the same kind and number of devices. So a
difference means that a device has computed wrongly, then or now, that the files
are not those of the run, or that other versions compute otherwise.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
from absl import logging
from etils import epath

from vit_jax import certificate as certificate_lib
from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.checkpoint import fingerprint, folders, record
from vit_jax.runtime import distributed, errors, installed, preemption
from vit_jax.training import recording, teacher, twice
from vit_jax.training.opening import Run, open_workdir
from vit_jax.training.step import TrainState
from vit_jax.workdir import data_record, environment, files, metrics

# What must be as it was. Versions may differ, with a warning.
_PLACE = ('platform', 'device_kind', 'devices', 'processes', 'mesh', 'config')


@dataclasses.dataclass
class Recorded:
  """What a run has recorded, and how much of it a replay found equal.

  Attributes:
    workdir: the directory of the run.
    rows: step -> the repeatable numbers of its rows, by name.
    states: step -> `fingerprint.number` of the state.
    saved: the steps of the checkpoints, in order.
    numbers: how many numbers were equal so far.
    left_out: numbers of evaluations that the config no longer has.
    equal: the steps whose state was equal.
  """

  workdir: epath.Path
  rows: dict[int, dict[str, float]]
  states: dict[int, int]
  saved: list[int]
  numbers: int = 0
  left_out: list[str] = dataclasses.field(default_factory=list)
  equal: list[int] = dataclasses.field(default_factory=list)

  def range(self, first: int | None, steps: int | None) -> tuple[int, int]:
    """Returns the step to begin with, and the last one that can be compared.

    Args:
      first: see `replay`.
      steps: see `replay`.

    Raises:
      ValueError: there is no checkpoint of `first`, or no row within `steps`.
    """
    end = max(self.rows, default=0)
    choices = [0, *(step for step in self.saved if step < end)]
    if first is None:
      first = choices[-1]
    if first not in choices:
      raise ValueError(
        f'--from={first}: {self.workdir} has checkpoints of the steps'
        f' {self.saved}, and rows of metrics up to step {end}. Choose one of'
        f' {choices}; 0 stands for the initial weights.'
      )
    after = [step for step in sorted(self.rows) if step > first]
    within = [step for step in after if steps is None or step <= first + steps]
    if not within:
      raise ValueError(
        f'--steps={steps}: nothing is recorded of the steps {first + 1} to'
        f' {first + (steps or 0)} in {self.workdir}; the next row of metrics is'
        f' that of step {after[0] if after else "(none)"}.'
      )
    return first, within[-1]

  def compare(
    self, step: int, values: Mapping[str, float], state: TrainState
  ) -> None:
    """Compares what was computed again; all processes must call this.

    Args:
      step: a step with a row or a checkpoint.
      values: the numbers of that step that were computed again.
      state: the state after it.

    Raises:
      CorruptionError: something differs.
    """
    made = {name.partition('/')[0] for name in values}
    row, names = self.rows.get(step, {}), []
    for name in row:
      kind, slash, _ = name.partition('/')
      if slash and values:
        (names if kind in made else self.left_out).append(name)
    differ = [name for name in names if row[name] != values.get(name)]
    listed = twice.listed(
      [f'{n} was {row[n]!r}, and is now {values.get(n)!r}' for n in differ]
    )
    found = [f'{len(differ)} metric(s): {listed}'] if differ else []
    if differ and not any(name.startswith('train/') for name in differ):
      found.append('those of an evaluation that was changed later do differ')
    if step in self.states:
      digests = checkpoint_lib.digests(state)
      if fingerprint.number(digests) != self.states[step]:
        found.append(f'the state: {self._arrays(step, digests)}')
    if found:
      # Metrics may be equal after a wrong step, but a state is not.
      before = max(self.equal, default=0)
      raise errors.CorruptionError(
        f'{self.workdir}: step {step} is the first recorded one that differs:'
        f' one of the steps {before + 1} to {step} was computed otherwise, then'
        f' or now. {"; ".join(found)}.'
      )
    self.numbers += len(names)
    if step in self.states:
      self.equal.append(step)

  def _arrays(self, step: int, digests: Mapping[str, str]) -> str:
    """Names the arrays that differ, if a checkpoint of the step is there."""
    try:
      then = record.read(self.workdir / folders.FOLDER / str(step)).digests
    except checkpoint_lib.DamagedError:
      return 'no checkpoint of this step is left to tell which arrays'
    names = [name for name in digests if digests[name] != then.get(name)]
    return f'{len(names)} of {len(digests)} arrays: {twice.listed(names)}'


def replay(
  workdir: epath.PathLike,
  *,
  first: int | None = None,
  steps: int | None = None,
  certificate: epath.PathLike | None = None,
  dataset: str = '',
) -> str:
  """Makes steps of a run again; writes nothing.

  All processes must call this, as many as the run had.

  Args:
    workdir: the directory of the run, finished or not.
    first: the step of the checkpoint to begin with; 0 begins with the initial
      weights. None takes the newest checkpoint before the last row of metrics.
    steps: how many steps to make; None goes on to the last row.
    certificate: a file to check the run against first.
    dataset: where the training data are now; '': where the run has read them.

  Returns:
    A sentence that says what was equal.

  Raises:
    ValueError: the steps cannot be made again here: there is no such
      checkpoint, the data are others, or the devices are.
    CorruptionError: something differs from what was recorded; names the first
      step that is known to differ, and its metrics and arrays.
  """
  workdir = files.absolute(workdir)
  config = _config(workdir, dataset)
  recorded = _recorded(workdir, certificate)
  first, last = recorded.range(first, steps)
  launches = distributed.broadcast(environment.read(workdir))
  _same_place(config, launches, first, last)
  with contextlib.ExitStack() as stack:
    run = stack.enter_context(open_workdir(config, workdir, writes=False))
    run.build(config, data.View(run.source, config.data.train_split))
    data_record.check_same(workdir, run.digests, remedy='name them by --data')
    frozen = teacher.load(run, saved_step=last)
    compiling = run.program.compile()
    if first:
      path = workdir / folders.FOLDER / str(first)
      state = checkpoint_lib.restore(path, run.program.abstract_state)
    else:
      state = run.first_state()
    recorded.compare(first, {}, state)
    logging.info('Making the steps %d to %d again.', first + 1, last)
    train_step = compiling.result()
    double = twice.Twice(run.program)
    run.goodput.start_training()
    interval = recording.Interval(first)
    progress = recording.Progress(last, config.data.batch_size)
    feed = stack.enter_context(run.feed(first, last))
    for step, batch in enumerate(feed, start=first + 1):
      state, values = double.step(step, train_step, state, batch, *frozen)
      interval.add(values)
      if step == first + 1:
        jax.block_until_ready(values)
        progress.start(step, run.goodput.seconds())
        run.mark_started()
      run.watchdog.beat(f'step {step}')
      if run.notice.requested():
        raise _stopped(run, step)
      if step in recorded.rows:
        double.check()
        values = interval.mean()
        recording.log_line(
          step, last, values | progress.measure(step, run.goodput.seconds())
        )
        interval = recording.Interval(step)
        values |= _evaluated(run, recorded, state, step)
        recorded.compare(step, values, state)
  if recorded.left_out:
    logging.warning(
      'Not compared, as the config has no such evaluation: %s',
      twice.listed(recorded.left_out),
    )
  return (
    f'The steps {first + 1} to {last} give the same {recorded.numbers} metrics'
    f' bit by bit, and the same states at the steps {recorded.equal}.'
  )


def _evaluated(
  run: Run, recorded: Recorded, state: TrainState, step: int
) -> dict[str, float]:
  """Repeats the evaluations that the run has made at a step."""
  made = {key.partition('/')[0] for key in recorded.rows[step] if '/' in key}
  values = {}
  for name in filter(made.__contains__, run.evaluations):
    params = run.program.eval_params(state.params, state.ema_params)
    try:
      values |= run.evaluate(name, params, step, write=False)
    except preemption.StopRequested:
      raise _stopped(run, step) from None
  return values


def _stopped(run: Run, step: int) -> errors.PreemptedError:
  return run.notice.stopped(f'ended at step {step}; all before it is equal.')


def _recorded(
  workdir: epath.Path, certificate: epath.PathLike | None
) -> Recorded:
  """Reads what the run has recorded, and checks it against a certificate."""

  def read():  # In one process: a run that goes on writes meanwhile.
    rows, states, found = {}, {}, []
    for row in metrics.read(workdir):
      rows.setdefault(row['step'], {}).update(metrics.repeatable(row))
    saved = []
    for path in folders.complete_steps(workdir / folders.FOLDER):
      saved.append(int(path.name))
      with contextlib.suppress(checkpoint_lib.DamagedError):
        states[saved[-1]] = fingerprint.number(record.read(path).digests)
    # A state that a new best value or a stop has saved has none of these.
    states |= certificate_lib.fingerprints(workdir)
    if certificate is not None:
      content = certificate_lib.read(certificate)
      found = [*certificate_lib.differences(content, workdir)]
    return [*rows.items()], [*states.items()], saved, found

  rows, states, saved, found = distributed.broadcast(
    read() if jax.process_index() == 0 else None
  )
  if found:
    raise errors.CorruptionError(
      f'{workdir} is not the run of {certificate}: {" ".join(found)}'
    )
  return Recorded(workdir, dict(rows), dict(states), saved)


def _config(workdir: epath.Path, dataset: str) -> ml_collections.ConfigDict:
  saved = config_lib.load(workdir)
  if saved is None:
    raise ValueError(
      f'{workdir} has no {config_lib.FILE}, so it is not the directory of a'
      ' run: name one. Runs with stages have a directory for each stage.'
    )
  config = ml_collections.ConfigDict(_with_tuples(saved))
  config.epochs = None  # `total_steps` follows from it.
  if dataset:
    config.data.dataset = dataset
  return config


def _with_tuples(value: Any) -> Any:
  """Turns JSON's lists into the tuples of a config."""
  if isinstance(value, dict):
    return {key: _with_tuples(inner) for key, inner in value.items()}
  if isinstance(value, list):
    return tuple(map(_with_tuples, value))
  return value


def _same_place(
  config: ml_collections.ConfigDict,
  launches: Sequence[Mapping[str, Any]],
  first: int,
  last: int,
) -> None:
  """Takes over the mesh of the launch that made the steps.

  Raises:
    ValueError: the devices are others, or changed within the steps, or do not
      repeat a step bit by bit.
  """
  device = jax.devices()[0]
  twice.check_repeatable(device.platform)
  starts = {
    first,
    *(at['step'] for at in launches if first < at['step'] < last),
  }
  # Step -> the launch that made what follows: the newest of those that started
  # at the step or before it.
  makers = {}
  for step in sorted(starts):
    if before := [one for one in launches if one['step'] <= step]:
      makers[step] = before[-1]
  if not makers:
    logging.warning('The run has no record of its devices and versions.')
    return
  places = [{key: one.get(key) for key in _PLACE} for one in makers.values()]
  for step, place in zip(makers, places, strict=True):
    if found := distributed.differences(place, places[0], 'then', 'before'):
      raise ValueError(
        f'The run went on otherwise at step {step}:\n{found}.\nChoose --from'
        ' and --steps on one side of it.'
      )
  if places[0]['config'] != launches[-1].get('config'):
    raise ValueError(
      f'The run has later gone on with another config, the only one that'
      f' {config_lib.FILE} has: choose a later --from than {first}.'
    )
  config.mesh.update(places[0]['mesh'])
  here = {
    'platform': device.platform,
    'device_kind': device.device_kind,
    'devices': min(jax.device_count(), places[0]['devices']),
    'processes': jax.process_count(),
  }
  if found := distributed.differences(
    here, {key: places[0][key] for key in here}, 'here', 'in the run'
  ):
    raise ValueError(
      'The run was made by other devices, so it cannot be repeated bit by bit'
      f' here:\n{found}.'
    )
  now = {'commit': installed.commit(), **installed.versions()}
  newest = makers[max(makers)]
  then = {key: newest.get(key) for key in now}
  if found := distributed.differences(now, then, 'now', 'in the run'):
    logging.warning('Other code may compute otherwise:\n%s', found)
