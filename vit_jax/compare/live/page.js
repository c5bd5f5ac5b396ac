// Asks the server for news, and draws them. Names of runs and of metrics come
// from files: they only ever become text, never HTML.
'use strict';

const PAUSE = 3000; // Milliseconds between two questions.
const HEIGHT = 224, LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 24;
const MANY = 10; // With more runs, only those heard of last are drawn at first.
const SVG = 'http://www.w3.org/2000/svg';

const runs = new Map(); // Name -> what the server last told of the run.
const drawn = new Map(); // Name -> whether the user wants its curves.
const figures = new Map(); // Metric -> its figure.
let names = [], only = [], shared = '', look = 0, time = 0;

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

function shape(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  element.append(...children);
  return element;
}

const byId = (id) => document.getElementById(id);

// ---- Numbers ----------------------------------------------------------------

function short(value) {
  if (value === undefined) return '–';
  const size = Math.abs(value);
  if (size >= 1e9) return +(value / 1e9).toPrecision(3) + 'G';
  if (size >= 1e6) return +(value / 1e6).toPrecision(3) + 'M';
  if (size >= 1e4) return +(value / 1e3).toPrecision(3) + 'k';
  if (size && size < 1e-3) return value.toExponential(1);
  return String(+value.toPrecision(4));
}

function duration(seconds) {
  const minutes = Math.round(seconds / 60);
  if (seconds < 90) return Math.max(Math.round(seconds), 0) + ' s';
  if (minutes < 90) return minutes + ' min';
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return hours + ' h ' + (minutes % 60) + ' min';
  return Math.floor(hours / 24) + ' d ' + (hours % 24) + ' h';
}

function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= raw);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++)
    found.push(i * step);
  return found;
}

// ---- Runs -------------------------------------------------------------------

// Each colour differs clearly from those before; later ones are dashed.
const HUES = [215, 25, 145, 330, 265, 185, 50, 0, 95, 300];

function pen(name) {
  const index = names.indexOf(name);
  const hue = HUES[index % HUES.length];
  return {
    color: `hsl(${hue} 75% var(--lightness))`,
    dashes: ['', '7 3', '2 3', '9 3 2 3'][Math.floor(index / HUES.length) % 4],
  };
}

function stroke(element, name) {
  if (name === undefined) {
    element.classList.add('published');
    return element;
  }
  const {color, dashes} = pen(name);
  element.style.stroke = color;
  if (dashes) element.setAttribute('stroke-dasharray', dashes);
  return element;
}

// Without a name, that of a published curve.
function swatch(name) {
  const line = shape('line', {x1: 0, y1: 5, x2: 18, y2: 5, 'stroke-width': 3});
  return shape(
    'svg', {width: 18, height: 10, 'aria-hidden': true}, stroke(line, name));
}

// The published curves beside some runs: each once, and no longer than twice
// the runs so far, so that these stay visible.
function published(metric, curves, across) {
  const found = new Map();
  const [, most] = limits(curves.flatMap((c) => c.rows.map((r) => r.x)));
  for (const {name} of across === 'hours' ? [] : curves) {
    const {expected, epochs_per_step: epochs} = runs.get(name);
    if (expected?.metric !== metric) continue;
    const label = `published ${expected.curve}`;
    const rows = expected.epochs.map((epoch, i) => ({
      x: across === 'step' ? epoch / epochs : epoch, mean: expected.shares[i],
      low: expected.shares[i], high: expected.shares[i]}));
    found.set(`${label} ${rows[1].x}`,
              {label, rows: rows.filter((row) => row.x <= 2 * most)});
  }
  return [...found.values()];
}

// The folder that all runs are in, which need not be in each name.
function sharedFolder() {
  const first = names[0].split('/').slice(0, -1);
  const others = names.map((name) => name.split('/').slice(0, -1));
  const differs = first.findIndex((p, i) => others.some((o) => o[i] !== p));
  const same = differs < 0 ? first : first.slice(0, differs);
  return same.map((part) => part + '/').join('');
}

const brief = (name) => name.slice(shared.length);

function isAccuracy(metric) {
  return metric.endsWith('/accuracy') && !metric.startsWith('train/');
}

function evaluations() {
  const found = new Set();
  for (const run of runs.values())
    for (const metric in run.latest) if (isAccuracy(metric)) found.add(metric);
  return [...found].sort();
}

const COLUMNS = [
  ['loss', (run) => short(run.latest['train/loss'])],
  ['images/s', (run) => short(run.latest.images_per_sec)],
  ['goodput', (run) => percent(run.latest['goodput/steps_share'])],
];

function percent(share) {
  return share === undefined ? '–' : (100 * share).toFixed(1) + '%';
}

function silence(run) {
  return time - (run.heard ?? time);
}

function left(run) {
  const eta = run.latest.eta_sec;
  if (run.state !== 'running' || eta === undefined) return '–';
  return duration(Math.max(eta - silence(run), 0));
}

// The cell of what a published curve says of a run.
function against(expected) {
  const {sentence, curve} = expected ?? {sentence: '–', curve: ''};
  return make('td', {className: 'expected'}, sentence,
              make('small', {}, ...curve ? [swatch(), ' ', curve] : []));
}

function drawTable() {
  const accuracies = evaluations();
  const compared = [...runs.values()].some((run) => run.expected);
  shared = names.length > 1 ? sharedFolder() : '';
  document.querySelector('h1').textContent =
    shared ? 'Runs in ' + shared : 'Runs';
  byId('heads').replaceChildren(
    ...['run', ...compared ? ['published'] : [], 'state', 'step', 'left', ...accuracies,
        ...COLUMNS.map(([head]) => head)]
      .map((text) => make('th', {textContent: text, scope: 'col',
        className: text === 'published' ? 'expected' : ''})));
  byId('runs').replaceChildren(...names.filter((n) => runs.has(n)).map((name) => {
    const run = runs.get(name);
    const box = make('input', {type: 'checkbox', checked: drawn.get(name)});
    box.addEventListener('change', () => {
      drawn.set(name, box.checked);
      drawCharts();
    });
    const heard = run.heard === null
      ? 'no metrics yet' : duration(silence(run)) + ' ago';
    const step = run.latest.step, total = run.total;
    return make('tr', {},
      make('th', {scope: 'row'}, make('label', {}, box, swatch(name),
        make('span', {title: name}, brief(name)))),
      ...compared ? [against(run.expected)] : [],
      make('td', {}, make('span', {className: run.state}, run.state),
           make('small', {}, heard)),
      make('td', {}, step === undefined ? '–' : step.toLocaleString('en'),
           make('small', {}, total ? 'of ' + total.toLocaleString('en') : '')),
      make('td', {}, left(run)),
      ...accuracies.map((m) => make('td', {}, percent(run.latest[m]))),
      ...COLUMNS.map(([, text]) => make('td', {}, text(run))));
  }));
}

// ---- Charts -----------------------------------------------------------------

// The curves that a user wants first have the lowest numbers.
function rank(metric) {
  if (only.length) return only.indexOf(metric);
  if (metric === 'train/loss') return 0;
  if (isAccuracy(metric)) return 1;
  if (metric === 'train/accuracy') return 2;
  if (metric.endsWith('/loss')) return 3;
  const others = ['train/learning_rate', 'images_per_sec',
                  'goodput/steps_share', 'input_wait'].indexOf(metric);
  return others < 0 ? 99 : 4 + others;
}

function shownMetrics() {
  const found = new Set();
  for (const name of names)
    if (drawn.get(name) && runs.has(name))
      for (const metric in runs.get(name).curves) found.add(metric);
  return [...found].filter((m) => rank(m) >= 0)
    .sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

function drawCharts() {
  const metrics = shownMetrics();
  for (const metric of metrics) {
    if (figures.has(metric)) continue;
    const figure = make('figure', {}, make('figcaption', {}, metric));
    figures.set(metric, figure);
  }
  for (const [place, wanted] of [
    [byId('charts'), metrics.filter((m) => rank(m) < 99)],
    [byId('others').lastElementChild, metrics.filter((m) => rank(m) === 99)],
  ]) {
    const now = wanted.map((m) => figures.get(m));
    // A figure that stays in place keeps its reading under the pointer.
    if (now.some((f, i) => place.children[i] !== f)
        || now.length !== place.children.length) place.replaceChildren(...now);
  }
  byId('others').hidden = !metrics.some((m) => rank(m) === 99);
  for (const metric of metrics) drawChart(figures.get(metric), metric);
}

function limits(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function drawChart(figure, metric) {
  const width = figure.clientWidth - 16;
  if (width < 50) return; // Inside a closed <details>.
  const across = document.querySelector('input[name=x]:checked').value;
  const logarithmic = byId('logarithmic').checked && metric.endsWith('loss');
  const up = logarithmic ? (v) => Math.log10(v) : (v) => v;
  const own = names.filter((n) => drawn.get(n) && runs.get(n)?.curves[metric]
      && (across !== 'epoch' || runs.get(n).epochs_per_step))
    .map((name) => {
      const {epochs_per_step: epochs, curves: {[metric]: curve}} = runs.get(name);
      const rows = curve.mean.map((mean, i) => ({
        x: across === 'epoch' ? curve.step[i] * epochs : curve[across][i], mean,
        low: curve.low?.[i] ?? mean, high: curve.high?.[i] ?? mean}));
      return {name, label: brief(name),
              rows: rows.filter((r) => !logarithmic || r.low > 0)};
    });
  const curves = [...own, ...published(metric, own, across)];
  const all = curves.flatMap((c) => c.rows);
  let [x0, x1] = limits(all.map((r) => r.x));
  // Spikes would flatten a curve: the means set the scale, not the extremes.
  let [y0, y1] = limits(all.map((r) => up(r.mean)));
  if (!all.length) [x0, x1, y0, y1] = [0, 1, 0, 1];
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  const margin = (y1 - y0 || Math.abs(y1) || 1) * 0.05;
  [y0, y1] = [y0 - margin, y1 + margin];
  const atX = (x) => LEFT + (x - x0) / (x1 - x0) * (width - LEFT - RIGHT);
  const atY = (y) => TOP + (y1 - up(y)) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
  const inside = (y) => Math.min(Math.max(y, TOP), HEIGHT - BOTTOM);

  const picture = shape('svg', {
    viewBox: `0 0 ${width} ${HEIGHT}`, role: 'img',
    'aria-label': `${metric} of ${own.length} runs by ${across}`});
  for (const tick of ticks(y0, y1, 5)) {
    const value = logarithmic ? 10 ** tick : tick, y = atY(value);
    picture.append(
      shape('line', {class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y, y2: y}),
      shape('text', {x: LEFT - 6, y: y + 4, 'text-anchor': 'end'},
            short(value)));
  }
  for (const tick of ticks(x0, x1, width > 400 ? 6 : 4))
    picture.append(shape('text',
      {x: atX(tick), y: HEIGHT - 6, 'text-anchor': 'middle'}, short(tick)));
  for (const {name, rows} of curves) {
    const points = (key, list) => list.map(
      (r) => `${atX(r.x).toFixed(1)},${inside(atY(r[key])).toFixed(1)}`);
    if (rows.some((r) => r.low !== r.high)) {
      const band = shape('polygon', {class: 'band', points: [
        ...points('high', rows), ...points('low', rows).reverse()].join(' ')});
      band.style.fill = pen(name).color;
      picture.append(band);
    }
    const line = shape('polyline',
      {class: 'curve', points: points('mean', rows).join(' ')});
    picture.append(stroke(line, name));
    if (name === undefined) continue;
    // A curve of few points, such as that of an evaluation, shows each.
    if (rows.length <= 20) for (const r of rows) {
      const dot = shape('circle', {cx: atX(r.x), cy: atY(r.mean), r: 2.5});
      dot.style.fill = pen(name).color;
      picture.append(dot);
    }
  }
  const reading = figure.querySelector('.reading');
  figure.replaceChildren(figure.firstElementChild, picture);
  if (reading) figure.append(reading);
  picture.onpointermove = (event) => {
    const box = picture.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * width;
    read(figure, picture, curves, atX, x, width);
  };
  picture.onpointerleave = () => {
    figure.querySelector('.reading')?.remove();
    picture.querySelector('.cursor')?.remove();
  };
}

// Shows the values nearest to the pointer.
function read(figure, picture, curves, atX, x, width) {
  picture.querySelector('.cursor')?.remove();
  figure.querySelector('.reading')?.remove();
  const nearest = (rows) => rows.reduce((best, row) =>
    Math.abs(atX(row.x) - x) < Math.abs(atX(best.x) - x) ? row : best);
  const found = curves.filter((c) => c.rows.length)
    .map(({name, label, rows}) => ({name, label, row: nearest(rows)}));
  if (!found.length) return;
  picture.append(shape('line',
    {class: 'cursor', x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM}));
  const box = make('div', {className: 'reading'}, ...found.map(({name, label, row}) =>
    make('div', {}, swatch(name), `${label} at ${short(row.x)}`,
         make('b', {}, short(row.mean)))));
  if (x < width / 2) box.style.right = '0.5rem';
  else box.style.left = '0.5rem';
  figure.append(box);
}

// ---- News -------------------------------------------------------------------

function take(news) {
  // Their order gives the runs their colours.
  const same = String(names) === String(news.names);
  ({look, time, names, only} = news);
  for (const name in news.runs) runs.set(name, news.runs[name]);
  for (const name of [...runs.keys()]) if (!names.includes(name)) runs.delete(name);
  const order = [...runs.keys()].sort(
    (a, b) => (runs.get(b).heard ?? 0) - (runs.get(a).heard ?? 0));
  for (const [i, name] of order.entries())
    if (!drawn.has(name)) drawn.set(name, i < MANY);
  const count = (state) =>
    [...runs.values()].filter((run) => run.state === state).length;
  const states = ['running', 'finished', 'stopped']
    .map((state) => [count(state), state]).filter(([n]) => n);
  const text = states.map(([n, state]) => `${n} ${state}`).join(', ');
  document.title = text ? `${text} · runs` : 'Runs';
  byId('status').textContent = text || 'Reading …';
  drawTable();
  if (!same || Object.keys(news.runs).length) drawCharts();
}

async function ask() {
  const status = byId('status');
  try {
    const answer = await fetch(`data.json?since=${look}`);
    if (!answer.ok) throw new Error(answer.statusText);
    take(await answer.json());
    status.className = '';
  } catch (error) {
    const at = time ? new Date(time * 1000).toLocaleTimeString() : 'never';
    status.textContent = `The server does not answer; last news: ${at}.`;
    status.className = 'bad';
    look = 0; // A new server counts from the start.
  }
  setTimeout(ask, PAUSE);
}

for (const [id, wanted] of [['all', true], ['none', false]])
  byId(id).addEventListener('click', () => {
    for (const name of names) drawn.set(name, wanted);
    drawTable();
    drawCharts();
  });
byId('settings').addEventListener('change', drawCharts);
byId('others').addEventListener('toggle', drawCharts);
addEventListener('resize', drawCharts);
ask();
