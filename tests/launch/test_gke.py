"""Guards: launch/gke.py builds the image and starts the run with XPK."""

import shlex
import subprocess

import pytest

from tests.launch.conftest import RUN, call
from vit_jax import topology
from vit_jax.launch import gke

START = 'run --name=b16 --cluster=vit --image=r/i:1 --no_preflight'
START += ' --zone=us-east5-a --accelerator={} -- {}'
PLACE = '--cluster=vit --project=my-project --zone=us-east5-a'
# What XPK 1.16 runs in the container (its docker_container.py).
CONTAINER = """
_sigterm() (kill -SIGTERM $! 2>/dev/null;);
trap _sigterm SIGTERM;
({}) & PID=$!;
while kill -0 $PID 2>/dev/null; do sleep 0.1; done;
wait $PID;
exit $?
"""


def words(cloud):
  [line] = cloud.acts
  return shlex.split(line)


def test_build(cloud):
  assert call('build --image=r/i:1 --lock=cpu', gke) == ''
  pack, submit = cloud.lines
  folder = pack.removeprefix('bash launch/pack.sh ')
  assert submit == (
    f'gcloud builds submit {folder}/code.tar.gz'
    ' --config=launch/image/cloudbuild.yaml'
    ' --substitutions=_IMAGE=r/i:1,_LOCK=cpu --project=my-project'
    ' --timeout=3600'
  )


def test_run(cloud):
  flags = f"{RUN} '--config.a=$(B) $'"
  assert call(START.format('v6e-16', flags), gke) == ''
  *found, command = words(cloud)
  assert shlex.join(found) == (
    f'xpk workload create --workload=b16 {PLACE} --tpu-type=v6e-4x4'
    ' --num-slices=1 --docker-image=r/i:1 --max-restarts=100'
    ' --restart-on-exit-codes=75,76,77'
    ' --termination-grace-period-seconds=300'
  )
  # Kubernetes turns $$ into $.
  assert command.replace('$$', '$') == (
    '--command=exec env WORKDIR=gs://bucket/runs/b16 TPU_SKIP_MDS_QUERY=true'
    f' bash launch/worker/pod.sh {flags}'
  )


def test_the_environment_and_several_slices(cloud):
  more = "--env='A=b c' --num_slices=2 --max-restarts=9 --cluster"
  line = START.replace('--cluster', more)
  call(line.format('v5e-16', RUN), gke)
  *_, own, command = words(cloud)
  assert own == '--max-restarts=9'  # The last of two equal flags counts.
  assert " 'A=b c' bash launch/worker/pod.sh " in command
  assert command.endswith(' --start_timeout=3600')
  call(line.format('v5e-16', f'{RUN} --start_timeout=9'), gke)
  assert shlex.split(cloud.acts[1])[-1].endswith(' --start_timeout=9')


@pytest.mark.parametrize(
  'slice_, kind',
  [('v5p:2x2x4', 'v5p-2x2x4'), ('v5e-16', 'v5litepod-4x4')]
  + [('v4-32', 'v4-2x2x4'), ('tpu7x:2x2x2', 'tpu7x-2x2x2')],
)
def test_slices_have_the_names_of_xpk(cloud, slice_, kind):
  assert topology.parse(slice_)
  call(START.format(slice_, RUN), gke)
  assert f'--tpu-type={kind}' in words(cloud)


@pytest.mark.parametrize(
  'line, message',
  [
    (START.format('v6e-17', RUN), 'not a known TPU slice'),
    (START.format('v6e-16', RUN.replace('gs:/', '')), 'needs no mount'),
    (START.format('v6e-16', ''), '--config is missing'),
    (START.format('v6e-4 --num_slices=2', RUN), 'several machines'),
    ('build --image=i --lock=x', 'there is no launch/locks/x.txt'),
  ],
)
def test_wrong_flags_are_refused_before_anything_runs(cloud, line, message):
  assert message in call(line, gke)
  assert cloud.lines == []


def test_the_program_saves_when_a_pod_is_deleted(cloud, tmp_path):
  """XPK's shell passes SIGTERM only to the process that it has started."""
  call(START.format('v6e-16', RUN), gke)
  command = words(cloud)[-1].removeprefix('--command=').replace('$$', '$')
  saver = tmp_path / 'saver'
  saver.write_text(
    "trap 'sleep 0.3; touch saved; exit 75' TERM\ntouch ready\n"
    'while true; do sleep 0.05; done'
  )
  line = command.replace('bash launch/worker/pod.sh', f'bash {saver}')
  process = subprocess.Popen(
    ['bash', '-c', CONTAINER.format(line)], cwd=tmp_path
  )
  while not (tmp_path / 'ready').exists():
    assert process.poll() is None
  process.terminate()
  assert process.wait(20) == 75
  assert (tmp_path / 'saved').exists()
