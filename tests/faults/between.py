"""Changes to a work directory between a kill and the next launch.

The next launch must refuse the work directory.
"""

import json
import random
import re
import shutil

from tests.faults import launching
from tests.faults.damage import complete_steps, damage_small, listing
from tests.faults.runs import Record, Run


def _expect_refusal(run: Run, record: Record, words: str, extra=()) -> None:
  """Expects the next launch to print `words` and change no checkpoint."""
  before = listing(run.workdir / 'checkpoints')
  with run.copy(extra=extra) as launch:
    launch.wait(launching.FAIL)
    if launch.overdue:
      record.problems.append(f'{record.fault.kind}: it did not end')
    expect_message(launch, record, words)
  if listing(run.workdir / 'checkpoints') != before:
    record.problems.append('a launch that was refused changed checkpoints')


def error_lines(output: str) -> list[str]:
  """Returns the lines of the error that ended a process; [] if none."""
  # Logged errors begin with a time; the final error does not.
  found = re.search(
    r'^error: (?!\d\d:)(.*)\Z', output, re.DOTALL | re.MULTILINE
  )
  return found[1].splitlines() if found else []


def expect_message(launch, record, words) -> None:
  """Expects an error of at most three lines with `words`, and no traceback."""
  codes, output = launch.codes(), launch.output()
  if set(codes) != {1}:
    record.problems.append(f'{record.fault.kind}: it ended with {codes}')
  lines = error_lines(launch.output(0))
  if words not in ''.join(lines) or len(lines) > 3:
    record.problems.append(
      f'{record.fault.kind}: no short error says {words!r}: {output[-300:]!r}'
    )
  if 'Traceback' in output:
    record.problems.append(f'{record.fault.kind}: it printed a traceback')


def _add_empty_step(run: Run, record: Record, rng: random.Random) -> None:
  step = rng.choice([1, 9999])
  (run.workdir / 'checkpoints' / str(step)).mkdir(parents=True, exist_ok=True)
  record.done += f'; an empty folder {step}'


def _damage_small_file(run: Run, record: Record, rng: random.Random) -> None:
  path, before, refused = damage_small(run.workdir, rng)
  record.done += f'; {path.name} is {path.read_bytes()[-20:]!r}'
  if refused and complete_steps(run.workdir):
    _expect_refusal(run, record, str(path))
    path.write_bytes(before)


def _remove_checkpoints(run: Run, record: Record, rng: random.Random) -> None:
  del rng
  folder = run.workdir / 'checkpoints'
  away = folder.with_name('away')
  folder.rename(away)
  record.done += '; checkpoints/ taken away'
  with run.copy() as launch:
    launch.wait(launching.FAIL)
    expect_message(launch, record, f'{run.workdir} has no checkpoint')
  if folder.exists():
    shutil.rmtree(folder)
  away.rename(folder)


def _change_config(run: Run, record: Record, rng: random.Random) -> None:
  values = {'seed': 7, 'data.batch_size': 16, 'model.dropout_rate': 0.3}
  key, value = rng.choice(list(values.items()))
  record.done += f'; a launch with another {key}'
  _expect_refusal(run, record, f'  {key}: ', [f'--config.{key}={value}'])


def _change_data(run: Run, record: Record, rng: random.Random) -> None:
  if not complete_steps(run.workdir):
    record.done += '; no data was recorded yet'
    return
  path = run.workdir / 'data.json'
  text = path.read_text()
  record.done += '; other data than before'
  # The changed record describes other data than the run has read.
  content = json.loads(text)
  digests = content['training data']['contents']
  digests[rng.choice(list(digests))] = 'another'
  path.write_text(json.dumps(content))
  _expect_refusal(run, record, 'The data is not what')
  path.write_text(text)


DONE = {
  'empty-step': _add_empty_step,
  'small-file': _damage_small_file,
  'gone': _remove_checkpoints,
  'other-config': _change_config,
  'other-data': _change_data,
}
