"""Guards: the stand-in refuses the command lines that the programs refuse."""

import subprocess

import pytest

CREATE = (
  'gcloud compute tpus queued-resources create b16 --zone=z --project=p'
  ' --node-id=b16 --accelerator-type=v4-32 --runtime-version=x'
)


@pytest.mark.parametrize(
  'line, problem',
  [
    (CREATE, ''),
    (CREATE + ' --spot', ''),
    (CREATE + ' --spots', 'unrecognized argument --spots'),
    (CREATE + ' --spot=yes', '--spot takes no value'),
    (CREATE + ' --spot --spot', '--spot twice'),
    (CREATE + ' more', '1 words expected'),
    (CREATE + ' --node-count=2', 'exclude each other'),
    (CREATE + ' --network', '--network expects a value'),
    (CREATE.replace('--zone=z', ''), '--zone is required'),
    (CREATE.replace('--project=p', ''), '--project is required'),
    (CREATE.replace('--node-id=b16', ''), '--node-id is required'),
    (CREATE.replace('create', 'make'), 'no command'),
    ('gcloud compute tpus tpu-vm ssh b16 --project=p --worker=all', ''),
    (
      'gcloud compute tpus tpu-vm ssh b16 --project=p --tunnel-through-iap',
      'unrecognized argument --tunnel-through-iap',
    ),
    ('kubectl get pods --output=wide', ''),
    ('kubectl get pods --project=p', 'unrecognized argument --project'),
  ],
)
def test_the_stand_in_refuses_wrong_commands(cloud, line, problem):
  result = subprocess.run(
    line.split(), capture_output=True, text=True, check=False
  )
  assert result.returncode == (2 if problem else 0)
  assert problem in result.stderr


def test_the_stand_in_answers_in_turn_and_records_calls(cloud):
  cloud.answer('kubectl get pods', 'one\n', 'two\n')
  cloud.answer('kubectl get jobset', code=3)
  printed = [
    subprocess.run(
      ['kubectl', 'get', 'pods'], capture_output=True, text=True, check=True
    ).stdout
    for _ in range(3)
  ]
  assert printed == ['one\n', 'two\n', 'two\n']
  result = subprocess.run(['kubectl', 'get', 'jobset', 'b16'], check=False)
  assert result.returncode == 3
  assert cloud.lines == ['kubectl get pods'] * 3 + ['kubectl get jobset b16']
