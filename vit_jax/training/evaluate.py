"""Evaluates trained weights without training: `main --eval_only`."""

import contextlib
from typing import Any

import jax
import ml_collections
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import interop, results
from vit_jax.interop import hub
from vit_jax.runtime import distributed, preemption
from vit_jax.training import warm_start
from vit_jax.training.opening import Run, open_workdir


def evaluate_only(
  config: ml_collections.ConfigDict,
  workdir: epath.PathLike,
  *,
  allow_config_change: bool = False,
) -> dict[str, float]:
  """Runs a config's evaluations on the weights of its `init.checkpoint`.

  Any resolution is possible: position embeddings are resized. The results are
  written to `workdir` as those of step 0. Training images are not needed, only
  the names of the classes.

  Args:
    config: see `config.default`; `init.checkpoint` names the weights, with
      their head.
    workdir: where the results go; not the directory of a training run.
    allow_config_change: whether `workdir` may hold results of another config or
      of other weights.

  Returns:
    The metrics, by names such as `test/accuracy`.

  Raises:
    ValueError: the config, data set or checkpoint is wrong, or `workdir` holds
      another run.
    PreemptedError: the run was asked to stop.
  """
  if 'stages' in config:
    raise ValueError(
      '--eval_only takes a config of a single run, but this one has the stages'
      f' {list(config.order)}.'
    )
  config = config.copy_and_resolve_references()
  for section in ('distill', 'flexi'):  # Nothing trains.
    config[section] = config_lib.default()[section]
  config_lib.validate(config)
  if not config.init.checkpoint:
    raise ValueError(
      '--eval_only needs weights: pass --config.init.checkpoint=PATH of a run,'
      ' a released file or a Hugging Face folder.'
    )
  if not config.evals:
    raise ValueError('--eval_only needs evals, but this config has none.')
  with open_workdir(config, workdir) as run:
    run.build(_complete(run), view=None)
    config, workdir = run.config, run.workdir
    if not allow_config_change:
      _check_same(config, workdir)
    _evaluate(run)
    distributed.barrier()  # The results are written.
    return results.final_metrics(workdir)


def _complete(run: Run) -> ml_collections.ConfigDict:
  """Completes a config; raises ValueError if the weights do not suit it."""
  config, source, workdir = run.config, run.source, run.workdir
  train_split = config.data.train_split
  config = config_lib.choose_evaluation(config, source)
  if config.data.train_split != train_split:
    raise ValueError(
      f'{config.data.dataset} has no split called test, validation or val: name'
      ' the split to evaluate on with eval=SPLIT. A run on these data holds out'
      f' eval={config.evals.held_out.split}, for which pass also'
      f' --config.data.train_split={config.data.train_split!r}.'
    )
  config = _complete_for_no_step(
    warm_start.with_model(config, workdir), source.info.num_classes
  )
  # Only one process looks: another run may save a checkpoint at this moment.
  if distributed.broadcast(
    jax.process_index() == 0 and checkpoint_lib.latest_step(workdir) is not None
  ):
    raise ValueError(
      f'{workdir} belongs to a training run, but --eval_only needs a directory'
      ' of its own: use another --workdir. To evaluate a finished run in its'
      ' own directory, start its training command again with other evals.'
    )
  _check_loss(config)
  _prepare_as_weights_say(config, workdir)
  return config


def _prepare_as_weights_say(
  config: ml_collections.ConfigDict, workdir: epath.Path
) -> None:
  """Lets the default preprocessing give way to that of foreign weights."""
  path = warm_start.resolve_path(config.init.checkpoint, workdir)
  if checkpoint_lib.workdir_of(path):
    return  # A run's own config was the user's choice.
  weights = interop.read(path)
  # Else `warm_start.load` logs how they prepare theirs.
  size = weights.prepared_size or weights.image_size
  if weights.preprocessing and size == tuple(config.image_size):
    warm_start.prepare_as(config, weights.preprocessing, weights.decoding)


def _evaluate(run: Run) -> None:
  """Runs the evaluations; writes the results of each as soon as it is done."""
  params = _load(run)
  if jax.process_index() == 0:
    # What is there may be of other weights.
    (run.workdir / results.DONE).unlink(missing_ok=True)
    config_lib.save(run.config, run.workdir)
  with contextlib.closing(run.metric_writer(0)) as writer:
    for name in run.evaluations:
      try:
        values = run.evaluate(name, params, 0)
      except preemption.StopRequested:
        raise run.notice.stopped('start the same command again.') from None
      writer.write(0, values)
      writer.flush()
  if jax.process_index() == 0:
    (run.workdir / results.DONE).write_text('0\n')


def _check_same(config: ml_collections.ConfigDict, workdir: epath.Path) -> None:
  """Raises ValueError if `workdir` has results of another config or data."""
  config_lib.check_same_run(config, workdir)
  saved = config_lib.load(workdir)
  if saved and saved['data']['dataset'] != config.data.dataset:
    # The same data set at another path is refused, too: no training image is
    # read, so there is no digest that could show that the data is the same.
    raise ValueError(
      f'{workdir} has results on {saved["data"]["dataset"]!r}, not on'
      f' {config.data.dataset!r}: use another --workdir, or pass'
      ' --allow_config_change.'
    )


def _check_loss(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError if the weights are of a run with another loss."""
  checkpoint, own = config.init.checkpoint, config.loss.name
  if hub.is_address(checkpoint):
    return
  saved = config_lib.load(checkpoint_lib.workdir_of(checkpoint)) or {}
  trained = saved.get('loss', {}).get('name', own)
  if trained != own and not _only_features(config):
    raise ValueError(
      f'{checkpoint} was trained with loss.name={trained}, but the evaluations'
      f' are for loss.name={own}: use a config with the loss of the weights.'
      f' Evaluations of the kinds {list(config_lib.FEATURES)} work with any.'
    )


def _only_features(config: ml_collections.ConfigDict) -> bool:
  """Whether no evaluation uses the head or the loss."""
  return all(
    section.kind in config_lib.FEATURES for section in config.evals.values()
  )


def _complete_for_no_step(
  config: ml_collections.ConfigDict, num_classes: int
) -> ml_collections.ConfigDict:
  """Completes a config for zero steps, whatever its length."""
  config = config.copy_and_resolve_references()
  config.epochs, config.total_steps = None, 1
  config.data.batch_size = config.data.batch_size or 512
  config = config_lib.resolve(
    config,
    num_examples=config.data.num_examples or config.data.batch_size,
    num_classes=num_classes,
  )
  config.total_steps = 0
  config.schedule.warmup_steps = 0
  # Nothing trains, and saved weights contain their low-rank additions.
  everything = config_lib.default()
  config.tuning, config.lora = everything.tuning, everything.lora
  return config


def _load(run: Run) -> Any:
  """Returns the parameters to evaluate."""
  try:
    path = warm_start.resolve_path(run.config.init.checkpoint, run.workdir)
    params = warm_start.load(
      path, run.program, new_head=_only_features(run.config)
    )
  except ValueError as error:
    raise ValueError(
      f'{error} (--eval_only trains no head: evaluate on the classes that the'
      ' weights were trained on.)'
    ) from error
  return run.program.eval_params(params, {})
