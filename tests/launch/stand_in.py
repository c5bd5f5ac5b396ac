"""Stands in for gcloud and kubectl: checks the command line and records it.

Run it as `python stand_in.py PROGRAM ARGUMENT...`. Like the programs, it ends
with exit code 2 if it does not know the command or flag (reference.py). In
$STAND_IN, `calls` gets one JSON object per call. `answers` maps the beginning
of a command line to a list of outputs and exit codes, one per call; the last
one repeats.
"""

import json
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import reference


def check(program: str, words: list[str], *, environment: bool = False) -> str:
  """Returns what is wrong with a command line; '' if nothing is wrong.

  Args:
    program: gcloud, kubectl, xpk, sbatch or scancel.
    words: the words after the program.
    environment: whether environment variables give the project and the zone.
  """
  table = getattr(reference, program.upper())
  wide = reference.GCLOUD_WIDE if program == 'gcloud' else ''
  for count in range(len(words), -1, -1):
    command = ' '.join(words[:count])
    if command in table:
      break
  else:
    return f'{program} has no command {" ".join(words)!r}'
  positionals, listed = table[command]
  known = {}
  for text in f'{listed} {wide}'.split():
    name, value, group, required = re.fullmatch(
      r'([\w-]+)(=?)(?:\((\d)\))?(!?)', text
    ).groups()
    known[name] = (bool(value), group, bool(required))

  given, others = [], []
  for word in words[count:]:
    if others and positionals is None and not command:
      break  # The rest are the flags of a job's script.
    if not word.startswith('--'):
      others.append(word)
      continue
    name, equals, value = word[2:].partition('=')
    if name not in known:
      return f'{command}: unrecognized argument --{name}'
    if known[name][0] and not value:
      return f'{command}: --{name} expects a value'
    if equals and not known[name][0]:
      return f'{command}: --{name} takes no value'
    if name in given:
      return f'{command}: --{name} twice'
    given.append(name)
  if len(others) != positionals and not (positionals is None and others):
    return f'{command}: {positionals} words expected, not {others}'
  if wide and command.startswith(reference.PROJECT_COMMANDS):
    known['project'] = (True, None, True)
  for name, (_, group, required) in known.items():
    same = [n for n, (_, g, _) in known.items() if group and g == group]
    together = [n for n in given if n in same]
    if len(together) > 1:
      return f'{command}: {together} exclude each other'
    if environment and name in reference.IN_ENVIRONMENT:
      continue
    if required and name not in given and not together:
      return f'{command}: --{name} is required'
  return ''


def main(program: str, words: list[str]) -> int:
  folder = pathlib.Path(os.environ['STAND_IN'])
  problem = check(program, words)
  line = ' '.join([program, *words])
  calls = folder / 'calls'
  earlier = calls.read_text().splitlines() if calls.exists() else []
  stdin = sys.stdin.read() if '--filename=-' in words else ''
  with calls.open('a') as file:
    entry = dict(argv=[program, *words], stdin=stdin, problem=problem)
    file.write(json.dumps(entry) + '\n')
  if problem:
    print(f'ERROR: {problem}', file=sys.stderr)
    return 2
  answers = json.loads((folder / 'answers').read_text())
  for beginning, given in answers.items():
    if line.startswith(beginning):
      before = sum(
        ' '.join(json.loads(old)['argv']).startswith(beginning)
        for old in earlier
      )
      output, code = given[min(before, len(given) - 1)]
      print(output, end='')
      return code
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1], sys.argv[2:]))
