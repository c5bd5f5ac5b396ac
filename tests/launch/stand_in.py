"""Stands in for gcloud and kubectl: checks the command line and records it.

Run it as `python stand_in.py PROGRAM ARGUMENT...`. Like the programs, it ends
with exit code 2 if it does not know the command or flag (reference.py). In
$STAND_IN, `calls` gets one JSON object per call. `answers` maps the beginning
of a command line to a list of outputs and exit codes, one per call; the last
one repeats. `things` holds what gcloud has made and not deleted; a line with an
answer leaves it as it is. `fails` names a call that fails, by its number, and
whether the cloud has done what it asked for.
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


# The kinds of things that are made, and their places in the errors of an API.
_KINDS = {
  'container clusters': 'clusters',
  'container node-pools': 'clusters/vit/nodePools',
  'compute resource-policies': 'resourcePolicies',
  'compute tpus queued-resources': 'queuedResources',
  'compute tpus tpu-vm': 'nodes',
  'jobset': 'jobsets',
}
_READY = {
  'compute tpus queued-resources': {'state': {'state': 'ACTIVE'}},
  'compute tpus tpu-vm': {'state': 'READY', 'health': 'HEALTHY'},
}


def act(file: pathlib.Path, words: list[str], stdin: str) -> tuple[str, str]:
  """Makes, changes, shows or deletes a thing; returns the output and error.

  Args:
    file: the things: kind -> name -> what gcloud says of it.
    words: the words after the program.
    stdin: the manifest for `kubectl apply`.
  """
  plain = [w for w in words if not w.startswith('--') and w != 'alpha']
  if stdin:
    plain = ['jobset', 'create', re.search('name: (.+)', stdin)[1]]
  elif plain[1:2] == ['jobset']:
    plain = ['jobset', plain[0].replace('get', 'describe'), plain[2]]
  verbs = ('create', 'update', 'describe', 'delete', 'list')
  verb = next((w for w in plain if w in verbs), '')
  kind = ' '.join(plain[: plain.index(verb)]) if verb else ''
  if kind not in _KINDS:
    return '', ''
  things = json.loads(file.read_text())
  rows, name = things.setdefault(kind, {}), plain[-1]
  if verb == 'list':
    return json.dumps([{'name': name} | rows[name] for name in rows]), ''
  # A queued resource and its TPU VM come and go together.
  both = [kind, 'compute tpus tpu-vm'] if 'queued' in kind else [kind]
  if verb == 'create':
    if name in rows:
      return '', f'ALREADY_EXISTS: {name}'
    for one in both:
      ready = _READY.get(one, {'status': 'RUNNING'})
      things.setdefault(one, {})[name] = ready
  elif name not in rows:
    if '--ignore-not-found' in words:
      return '', ''
    place = f'projects/my-project/zones/z/{_KINDS[kind]}/{name}'
    if not kind.startswith('container'):
      return '', f"NOT_FOUND: Resource '{place}' was not found."
    if not things.get('container clusters'):
      place = place.partition('/nodePools')[0]
    return '', f'ResponseError: code=404, message=Not found: {place}.'
  elif verb == 'update':
    if 'maintenancePolicy' in rows[name]:
      return '', 'A maintenance exclusion named runs already exists.'
    exclusions = {'maintenanceExclusions': {'runs': {}}}
    rows[name]['maintenancePolicy'] = {'window': exclusions}
  elif verb == 'delete':
    for one in both:
      things[one].pop(name, None)
    if kind == 'container clusters':
      things['container node-pools'] = {}
  file.write_text(json.dumps(things))
  return json.dumps(rows[name]) if verb == 'describe' else '', ''


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
  fails = json.loads((folder / 'fails').read_text())
  if fails and fails['call'] == len(earlier):
    if fails['done'] == 'interrupted':
      raise KeyboardInterrupt
    if fails['done']:
      act(folder / 'things', words, stdin)
    print('ERROR: the connection was lost.', file=sys.stderr)
    return 1
  answers = json.loads((folder / 'answers').read_text())
  for beginning, given in answers.items():
    if line.startswith(beginning):
      before = sum(
        ' '.join(json.loads(old)['argv']).startswith(beginning)
        for old in earlier
      )
      output, code = given[min(before, len(given) - 1)]
      print(output, end='', file=sys.stderr if code else sys.stdout)
      return code
  output, error = act(folder / 'things', words, stdin)
  if error:
    print(f'ERROR: {error}', file=sys.stderr)
  print(output, end='')
  return 1 if error else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1], sys.argv[2:]))
