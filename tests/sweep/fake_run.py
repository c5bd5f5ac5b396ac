"""Stands in for a training run: writes the files of a finished run.

  fake_run.py WORKDIR ACCURACY SECONDS [EXIT_CODE]

It records each start in WORKDIR.starts and "trains" for some seconds. If
EXIT_CODE is not 0, it ends with this code and without results. SIGTERM ends it
with 75.
"""

import json
import os
import pathlib
import signal
import sys
import time

workdir, accuracy, seconds = pathlib.Path(sys.argv[1]), *sys.argv[2:4]
code = int(sys.argv[4]) if len(sys.argv) > 4 else 0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
workdir.mkdir(parents=True, exist_ok=True)
with open(f'{workdir}.starts', 'a') as file:
  file.write(f'{os.getpid()} {sorted(os.sched_getaffinity(0))}\n')
time.sleep(float(seconds))
if code:
  sys.exit(code)
(workdir / 'config.json').write_text('{"total_steps": 7}')
rows = [
  {'step': 3, 'validation/accuracy': 0.125, 'train/loss': 2.5},
  {'step': 7, 'train/loss': 0.5, 'images_per_second': time.time()},
]
name = 'test' if 'seed' in workdir.name else 'validation'
rows.append({'step': 7, f'{name}/accuracy': float(accuracy)})
text = ''.join(json.dumps(row) + '\n' for row in rows)
(workdir / 'metrics.jsonl').write_text(text)
(workdir / 'DONE').write_text('7\n')
