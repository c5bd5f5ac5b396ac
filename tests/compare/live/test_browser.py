"""Guards: in a real browser, the page draws what runs write, as plain text."""

import re
import shutil
import threading

import pytest

from tests import commands
from tests.compare import made
from tests.compare.live import runs
from vit_jax.compare import expected
from vit_jax.compare.live import reading, server

pytestmark = [
  pytest.mark.browser,
  pytest.mark.skipif(not shutil.which('chromium'), reason='needs chromium'),
]
BAD = '<img src=x onerror=document.title=1>'


def _browse(one, profile, width):
  """Returns the page of a server, which it ends."""
  threading.Thread(target=one.serve_forever, daemon=True).start()
  address = f'http://127.0.0.1:{one.server_port}/'
  done = commands.run_new(
    *('chromium', '--headless', '--no-sandbox', '--disable-gpu'),
    *('--disable-quic', '--no-first-run', '--disable-background-networking'),
    *('--disable-component-update', '--disable-sync', '--hide-scrollbars'),
    *(f'--user-data-dir={profile}', '--virtual-time-budget=9000'),
    *(f'--window-size={width},900', '--dump-dom', address),
    limit=120,
  )
  one.shutdown()
  return done.stdout


@pytest.mark.parametrize('width', [480, 1400])
def test_the_page(tmp_path, width, monkeypatch):
  monkeypatch.setattr(reading, 'PAUSE', 0)  # The browser's time runs faster.
  runs.make(tmp_path / f'runs/{BAD}', range(1, 2000), total=2000)
  done = runs.make(tmp_path / 'runs/b', range(1, 50))
  runs.log(done, [50], **{'test/accuracy': 0.625, f'{BAD}/loss': 1.0})
  (done / 'DONE').write_text('50\n')
  with server.Server([tmp_path / 'runs'], [], '127.0.0.1', '0') as one:
    one.watcher.news(0)
    # A row that comes while the page is open.
    runs.log(tmp_path / f'runs/{BAD}', [2000], **{'train/accuracy': 0.25})
    html = _browse(one, tmp_path / 'profile', width)
  assert '<title>1 finished, 1 stopped · runs</title>' in html
  assert '<img' not in html
  escaped = BAD.replace('<', '&lt;').replace('>', '&gt;')
  captions = re.findall('<figcaption>(.*?)</figcaption>', html)
  assert captions == [
    *('train/loss', 'test/accuracy', 'train/accuracy', f'{escaped}/loss'),
  ]
  assert f'>{escaped}</span>' in html
  assert re.search(r'2,000<small>of 2,000</small>', html)
  assert '<td>62.5%</td>' in html
  loss = re.search('train/loss</figcaption>(.*?)</figure>', html)[1]
  assert loss.count('class="curve"') == 2
  # Of merged values, the band shows the lowest and highest.
  assert loss.count('class="band"') == 1
  for line in re.findall('class="curve" points="(.*?)"', loss):
    across = [float(point.split(',')[0]) for point in line.split()]
    assert across == sorted(across)
    assert across[0] >= 0
    assert across[-1] <= width


def test_published_curves(tmp_path):
  for name in ('a', 'b'):
    made.run(tmp_path / f'runs/{name}', {5: 2.5, 20: 25.6, 40: 50.8})
  curves = expected.choose('auto')
  folders = [tmp_path / 'runs']
  with server.Server(folders, [], '127.0.0.1', '0', curves) as one:
    html = _browse(one, tmp_path / 'profile', 480)
  assert html.count('epoch 40: 50.8, published 50.8: on track') == 2
  # One curve for both runs, up to twice their length.
  [line] = re.findall('class="curve published" points="(.*?)"', html)
  assert len(line.split()) == 17
