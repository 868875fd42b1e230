// The live page of nvcd: follows /state, a line of JSON for each change, and shows it. Whatever comes from there is put
// in as text. The mark in the bar of what a slice received is what it is entitled to; in that of its memory, its peak.
const SPAN = 120000, IDLE = 60000, SILENT = 6000, AGAIN = 1000; // milliseconds
const COLUMNS = ['name', 'state', 'share', 'waited', 'mem', 'peak', 'refused', 'asked']; // classes of cells
const TITLES = ['slice', 'state', 'received of entitled', 'waited', 'memory of limit', 'peak', 'refused', 'asked'];
const LOOKS = { denied: 'bad', failed: 'bad', '?': 'bad', waiting: 'warn', capped: 'warn', paused: 'warn', busy: '' };
const $ = (id) => document.getElementById(id);
const gpus = new Map(), slices = new Map(), opened = new Set();
let node = {}, at = 0, heard = 0, processes = {}, stop = new AbortController();

const put = (made, text) => { if (made.textContent !== text) made.textContent = text; };
const make = (tag, kind, ...inside) => {
  const made = Object.assign(document.createElement(tag), { className: kind });
  made.append(...inside);
  return made;
};
const percent = (part) => (part == null ? '-' : `${(Math.min(part, 9.99) * 100).toFixed(1)}%`);
const size = (bytes) => (bytes == null ? '-' : bytes < 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(0)} M` : `${(bytes / 2 ** 30).toFixed(1)} G`);
const age = (seconds) => {
  const [unit, length] = [['d', 86400], ['h', 3600], ['m', 60], ['s', 1]].find(([, length]) => seconds >= length) || ['s', 1];
  return `${Math.floor(seconds / length)}${unit}`;
};
const color = (number) => `hsl(${(number * 137.5 + 212) % 360} 62% 52%)`;
const of = (uuid) => [...slices.values()].filter((one) => one.row.gpu === uuid);

const meter = () => make('div', 'meter', make('i', ''), make('span', ''));
function measure({ firstChild: bar, lastChild: label }, text, part, mark) {
  put(label, text);
  bar.style.setProperty('--part', Math.max(0, Math.min(part || 0, 1)).toFixed(3));
  bar.style.setProperty('--mark-at', mark == null ? -1 : Math.min(mark, 1).toFixed(3));
}

function gpuView(uuid) {
  const view = { title: make('div', 'clip'), memory: meter(), busy: meter(), sub: make('div', 'sub'),
    chart: make('canvas', ''), strangers: make('p', 'warn'), body: make('tbody', '') };
  view.table = make('table', 'rows', make('thead', '', make('tr', '', ...COLUMNS.map((kind, n) => make('th', kind, TITLES[n])))), view.body);
  view.all = make('details', 'gpu', make('summary', '', view.title, view.memory, view.busy, view.sub), view.chart, view.strangers, view.table);
  view.all.open = true;
  return view;
}
function showGpu({ uuid, row, view }) {
  const own = of(uuid), promised = own.reduce((sum, one) => sum + (one.row.limit || 0), 0);
  const who = row.strangers.map(([pid, name, used]) => `${name} (${pid}, ${size(used)})`).join(', ');
  put(view.title, `GPU ${row.index} ${row.name || uuid}`);
  measure(view.memory, `${size(row.used)} / ${size(row.memory)}`, row.used / row.memory, promised / row.memory || null);
  view.memory.title = `memory in use; at the mark, the limits of slices together: ${size(promised)}`;
  measure(view.busy, `busy ${row.busy ?? '-'}%`, row.busy / 100);
  put(view.sub, [`${own.length} slices`, row.policy, row.time && `time ${row.time}`, uuid].filter(Boolean).join(' · '));
  put(view.strangers, who && `in no slice: ${who}, received ${percent(row.strangersHad)}`);
  view.table.hidden = view.chart.hidden = !own.length;
}

function add(id, row) {
  const gpu = gpus.get(row.gpu), one = { id, row, now: [], number: gpu.made++, idle: 0, share: meter(), mem: meter() };
  const cells = COLUMNS.map((kind, n) => one[kind] = make('td', kind, one[kind] || ''));
  ['waited', 'peak', 'refused'].forEach((kind) => { one[kind].dataset.label = kind; });
  one.line = Object.assign(make('tr', 'row', ...cells), { tabIndex: 0, onclick: () => toggle(one) });
  one.line.onkeydown = ({ key }) => key === 'Enter' && toggle(one);
  one.about = make('div', '');
  one.list = make('table', '');
  one.more = make('tr', 'more', Object.assign(make('td', '', one.about, one.list), { colSpan: COLUMNS.length }));
  one.more.hidden = true;
  one.name.style.setProperty('--color', color(one.number));
  slices.set(id, one);
  const after = of(row.gpu).filter((other) => other.row.created > row.created).sort((a, b) => a.row.created - b.row.created)[0];
  gpu.view.body.insertBefore(one.line, after ? after.line : null);
  one.line.after(one.more);
}
function toggle(one) {
  one.more.hidden = !one.more.hidden;
  opened[one.more.hidden ? 'delete' : 'add'](one.row.key);
  stop.abort('opened');
}
function showSlice(one) {
  const { row, now: [state, share, waited, used, peak, refused] } = one, gpu = gpus.get(row.gpu).row;
  const most = row.limit || gpu.memory, idle = state === 'idle' && used > 0;
  one.idle = idle ? one.idle || at : 0;
  one.held = idle && at - one.idle >= IDLE ? used : 0;
  put(one.name, row.name);
  put(one.state, one.held ? `idle ${age((at - one.idle) / 1000)}` : state);
  one.state.className = `state ${one.held ? 'warn' : LOOKS[state] ?? 'dim'}`;
  measure(one.share.firstChild, `${percent(share)} of ${percent(row.entitled)}`, share, row.entitled);
  put(one.waited, percent(waited));
  measure(one.mem.firstChild, `${size(used)} / ${row.limit ? size(row.limit) : 'all'}`, used / most, peak / most || null);
  put(one.peak, size(peak));
  put(one.refused, `${refused ?? '-'}`);
  one.refused.classList.toggle('bad', refused > 0);
  put(one.asked, row.asked);
  one.line.hidden = !row.name.toLowerCase().includes($('filter').value.trim().toLowerCase());
  if (one.more.hidden ||= one.line.hidden) return;
  put(one.about, [row.origin, row.policy, row.limitedBy.length && `memory limited by ${row.limitedBy.join(', ')}`,
    row.reserved && `${size(row.reserved)} reserved`, row.problem, row.key].filter(Boolean).join(' · '));
  const lines = (processes[row.key] || []).map((each) => [each.name, each.pid ?? '?', each.inside, size(each.used[row.gpu]),
    percent(each.had[row.gpu]), each.switches, each.shim ? '' : 'without the shim']);
  one.list.replaceChildren(...[['process', 'pid', 'inside', 'memory', 'received', 'switches', ''], ...lines]
    .map((line, n) => make('tr', '', ...line.map((text) => make(n ? 'td' : 'th', '', `${text}`)))));
}

// Who had the GPU: by the driver's log of switches where nvcd keeps time, else as the shims say.
function draw(gpu) {
  const parts = of(gpu.uuid).filter((one) => one.now[1]).map((one) => [one.now[1], color(one.number)]);
  if (gpu.row.strangersHad) parts.push([gpu.row.strangersHad, '#8a8f98']);
  const most = Math.max(1, parts.reduce((sum, [part]) => sum + part, 0));
  gpu.samples = gpu.samples.filter(([when]) => at - when < SPAN + 5000);
  gpu.samples.push([at, parts.map(([part, ink]) => [part / most, ink])]);
  const { chart } = gpu.view, scale = devicePixelRatio || 1, [wide, high] = [chart.clientWidth * scale, chart.clientHeight * scale];
  Object.assign(chart, { width: wide, height: high }); // which clears it
  const pen = chart.getContext('2d'), place = (when) => wide - ((at - when) / SPAN) * wide;
  gpu.samples.slice(1).forEach(([when, each], n) => {
    let top = high;
    for (const [part, ink] of each) {
      pen.fillStyle = ink;
      pen.fillRect(place(gpu.samples[n][0]), top -= part * high, place(when) - place(gpu.samples[n][0]) + 0.5, part * high);
    }
  });
}

function take(found) {
  ({ at, processes } = found);
  heard = performance.now();
  node = found.node || node;
  const gone = found.whole ? [...slices.keys(), ...gpus.keys()].filter((id) => !(id in found.gpus || id in found.slices)) : found.gone;
  for (const id of gone) {
    for (const made of [slices.get(id)?.line, slices.get(id)?.more, gpus.get(id)?.view.all]) made?.remove();
    slices.delete(id) || gpus.delete(id);
  }
  for (const [uuid, row] of Object.entries(found.gpus)) {
    if (!gpus.has(uuid)) gpus.set(uuid, { uuid, samples: [], made: 0, view: gpuView(uuid) });
    Object.assign(gpus.get(uuid), { row }).view.all.style.order = row.order;
    $('gpus').append(...(gpus.get(uuid).view.all.parentElement ? [] : [gpus.get(uuid).view.all]));
  }
  for (const [id, row] of Object.entries(found.slices)) slices.has(id) ? slices.get(id).row = row : add(id, row);
  for (const [id, now] of Object.entries(found.now)) slices.get(id).now = now;
  for (const one of slices.values()) if (one.id in found.slices || one.id in found.now || one.idle || !one.more.hidden) showSlice(one);
  for (const gpu of gpus.values()) { showGpu(gpu); draw(gpu); }
  const all = [...slices.values()], count = (state) => all.filter((one) => one.now[0] === state).length;
  put($('host'), node.host || 'nvcd');
  put($('sums'), `${gpus.size} GPUs · ${all.length} slices · ${count('busy')} busy · ${all.filter((one) => one.now[2] > 0).length} wait · `
    + `${count('suspended')} suspended · ${size(all.reduce((sum, one) => sum + one.held, 0))} idle but allocated`);
  const alarms = [node.problem, ...(node.broken || []), ...(node.violations || []).map((one) => [one.kind,
    all.find(({ row }) => row.key === one.key)?.row.name, one.pid && `process ${one.pid}`, one.text, one.action].filter(Boolean).join(' · '))];
  put($('alarms'), alarms.filter(Boolean).join('\n'));
}

function tell(text, off) {
  put($('link'), text);
  $('link').classList.toggle('bad', off);
}
async function follow() {
  const headers = { Authorization: `Bearer ${sessionStorage.token}` };
  const answer = await fetch(`state?open=${[...opened].slice(-16)}`, { headers, signal: stop.signal });
  if (!answer.ok) throw answer.status === 401 ? 'wants its token' : `says ${answer.status}`;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = '', got = await reader.read(); !got.done; got = await reader.read()) {
    const lines = (rest + got.value).split('\n');
    rest = lines.pop();
    lines.forEach((line) => take(JSON.parse(line)));
    tell('live', false);
  }
  throw 'has ended';
}
async function run() {
  for (;; stop = new AbortController()) {
    await (document.hidden ? Promise.reject() : follow()).catch((why) => stop.signal.aborted || tell(typeof why === 'string' ? why : 'no answer', true));
    if (stop.signal.reason !== 'opened') await new Promise((wake) => { setTimeout(wake, AGAIN); });
  }
}
if (location.hash.length > 1) {
  sessionStorage.token = location.hash.slice(1);
  history.replaceState(null, '', location.pathname);
}
$('filter').oninput = () => slices.forEach(showSlice);
document.onvisibilitychange = () => document.hidden && stop.abort('hidden');
setInterval(() => heard && performance.now() - heard > SILENT && !document.hidden && tell('no news', true), AGAIN);
run();
