// The page is drawn from what the server tells once a second; all text goes in as text, never as HTML.
"use strict";

const PHASES = ["stepping", "starting", "waiting", "redone", "idle"];
const EVERY_MS = 1000, JOBS_PATIENCE_MS = 500;
const SVG = "http://www.w3.org/2000/svg";
const main = document.getElementById("main");
const pulse = document.getElementById("pulse");
const tip = document.getElementById("tip");
let allowKill = false;
let timer = 0;
let shown = {};          // what of a run stays as it is while the rest is drawn anew: stacks, the chosen log

// -- small things ---------------------------------------------------------------------------------------------------

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function length(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 59.95) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  if (whole >= 86400) return `${Math.floor(whole / 86400)} d ${two(Math.floor((whole % 86400) / 3600))} h`;
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (bytes >= unit) return `${(bytes / unit).toPrecision(3)} ${name}`;
  return `${bytes} B`;
}

const percent = (share) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(1)} %`);
const clock = (time) => new Date(time * 1000).toLocaleTimeString();
const three = (number) => (number === null || number === undefined ? "–" : Number(number).toPrecision(3));

function ago(time) {
  const seconds = Date.now() / 1000 - time;
  for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= unit) return `${Math.floor(seconds / unit)} ${name} ago`;
  return `${Math.max(Math.floor(seconds), 0)} s ago`;
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", ...options });
  const data = answer.headers.get("content-type")?.includes("json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(data.error || `${answer.status}`);
  return data;
}

const api = (what, run, more = "") => `/api/run${what}?run=${encodeURIComponent(run)}${more}`;
const post = (path) => ask(path, { method: "POST", headers: { "x-holdfast-page": "1" } });

function tipped(element, text) {
  element.addEventListener("pointermove", (event) => {
    tip.textContent = text;
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
  });
  element.addEventListener("pointerleave", () => { tip.hidden = true; });
  return element;
}

function pill(outcome) { return el("span", { class: `pill ${outcome}` }, outcome); }

function table(heads, rows) {
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map(([name, kind]) => el("th", { class: kind || null, scope: "col" }, name)))),
    el("tbody", {}, ...rows)));
}

function cells(heads, values) {
  return values.map((value, place) => el("td", { class: heads[place][1] || null }, value));
}

// -- all runs ---------------------------------------------------------------------------------------------------------

const RUN_HEADS = [["Run"], ["Outcome"], ["Started"], ["Lasted", "number"], ["Goodput", "number"], ["Workers", "number"],
  ["Restarts", "number"], ["Most lost to", "wide"]];
const JOB_HEADS = [["Job"], ["State"], ["Submitted"]];

async function drawRuns() {
  const [told, jobs] = await Promise.all([ask("/api/runs"), Promise.race([askJobs(), pause(JOBS_PATIENCE_MS).then(() => knownJobs)])]);
  allowKill = told.allow_kill;
  document.title = "Holdfast";
  document.getElementById("where").textContent = "";
  const rows = told.runs.map((run) => {
    const open = () => { location.hash = `#/run/${encodeURIComponent(run.run)}`; };
    return el("tr", { class: "link", onclick: open, "data-run": run.run }, ...cells(RUN_HEADS, [
      el("a", { href: `#/run/${encodeURIComponent(run.run)}` }, run.run), pill(run.outcome), ago(run.begin),
      length(run.end - run.begin), percent(run.goodput), String(run.workers), String(run.restarts), run.most_lost_to]));
  });
  const runs = new Set(told.runs.map((run) => run.run));
  const jobRows = (jobs || []).map((job) => el("tr", {}, ...cells(JOB_HEADS, [
    runs.has(job.id) ? el("a", { href: `#/run/${encodeURIComponent(job.id)}` }, job.handle) : job.handle, job.state.toLowerCase(), job.submitted === null ? "" : ago(job.submitted)])));
  main.replaceChildren(
    el("h1", {}, "Runs"),
    el("section", { class: "card" }, rows.length ? table(RUN_HEADS, rows)
      : el("p", { class: "quiet" }, "No run has left a journal on this host yet: ", el("code", {}, "holdfast launch train.py"))),
    el("h1", {}, "Jobs"),
    el("section", { class: "card" }, jobRows.length ? table(JOB_HEADS, jobRows)
      : jobs === null ? el("p", { class: "quiet" }, "Asking the schedulers…")
      : el("p", { class: "quiet" }, "No scheduler knows a job: ", el("code", {}, "holdfast run -j 2 train.py"))));
}

// A cluster may take its time to say which jobs it has; runs are drawn meanwhile.
let knownJobs = null, asked = null;

function askJobs() {
  asked ??= ask("/api/jobs").then((jobs) => { knownJobs = jobs; return jobs; }).finally(() => { asked = null; });
  return asked;
}

const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

// -- one run -----------------------------------------------------------------------------------------------------------

async function drawRun(name) {
  const run = await ask(api("", name));
  const key = document.activeElement?.dataset?.key;
  const scrolls = new Map([...main.querySelectorAll("[data-keep]")].map((each) => [each.dataset.keep, scrolled(each)]));
  document.title = `${run.run}: ${run.outcome}`;
  document.getElementById("where").textContent = run.logs;
  main.replaceChildren(
    el("a", { href: "#/" }, "← all runs"),
    el("h1", {}, `${run.run} `, pill(run.outcome)),
    figures(run),
    ...verdict(run),
    goodput(run),
    timeline(run),
    el("div", { class: "columns" }, ranks(run), curves(run)),
    events(run),
    stacks(run),
    logs(run));
  for (const kept of main.querySelectorAll("[data-keep]")) {
    const top = scrolls.get(kept.dataset.keep) ?? (kept.dataset.keep.startsWith("log ") ? Infinity : 0);
    kept.scrollTop = Math.min(top, kept.scrollHeight);
  }
  if (key) main.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

// Where a person has scrolled to; one who reads the end of a log goes on reading its end.
const scrolled = (each) => (each.dataset.keep.startsWith("log ") && each.scrollTop + each.clientHeight >= each.scrollHeight - 4 ? Infinity : each.scrollTop);

// Drawing anew would take away what a person is doing: a selection of text, a list that is open.
const isBusy = () => document.activeElement?.tagName === "SELECT" || !getSelection().isCollapsed;

function figures(run) {
  const live = run.outcome === "running";
  const left = run.restarts_left === null || run.restarts_left === undefined ? "" : `, ${run.restarts_left} left`;
  const last = Math.min(...run.ranks.map((rank) => rank.silent_s ?? Infinity));
  const figure = (value, name) => el("div", { class: "figure" }, el("b", {}, value), el("span", {}, name));
  return el("section", { class: "card figures", "aria-label": "figures" },
    figure(length(run.end - run.begin), live ? "running" : "lasted"),
    figure(percent(run.goodput), "goodput"),
    figure(length(run.lost_s), "lost"),
    figure(run.steps === null ? "–" : String(run.steps), run.steps_redone ? `steps, ${run.steps_redone} made again` : "steps"),
    figure(String(run.round), "rounds"),
    figure(String(run.restarts), `restarts${left}`),
    figure(String(run.workers), `workers on ${run.nodes} node${run.nodes === 1 ? "" : "s"}`),
    ...(live ? [figure(last === Infinity ? "–" : length(last), run.waiting || "since the last step")] : []));
}

function verdict(run) {
  if (run.outcome === "gone") return [el("section", { class: "card verdict" }, el("h2", {}, "Why it ended"),
    el("p", {}, "Its agent died without a word: it was killed, or its machine went down."))];
  if (run.outcome !== "failed") return [];
  const cause = run.failure;
  const parts = [el("h2", {}, "Why it failed"), el("p", {}, run.reason)];
  if (cause) {
    parts.push(el("p", { class: "quiet" },
      [`rank ${cause.rank} on ${cause.host}`, `pid ${cause.pid}`, `exit code ${cause.exit_code}`, `round ${cause.round}`].join(", ")));
    if (cause.traceback) parts.push(el("pre", { "data-keep": "traceback" }, cause.traceback));
    else if (cause.log_lines?.length) parts.push(el("pre", { "data-keep": "traceback" }, cause.log_lines.join("\n")));
  }
  return [el("section", { class: "card verdict" }, ...parts)];
}

// Without heartbeats it is not known whether workers that run make steps.
const named = (run, phase) => (phase === "stepping" && run.goodput === null ? "running" : phase);

function goodput(run) {
  const total = PHASES.reduce((sum, phase) => sum + run.seconds[phase], 0) || 1;
  const bar = el("div", { class: "bar", role: "img", "aria-label": `goodput ${percent(run.goodput)}` });
  for (const phase of PHASES) {
    if (run.seconds[phase] <= 0) continue;
    const part = tipped(el("i", { class: phase }), `${named(run, phase)}: ${length(run.seconds[phase])}, ${percent(run.seconds[phase] / total)}`);
    part.style.width = `${(run.seconds[phase] / total) * 100}%`;
    bar.append(part);
  }
  const heads = [["Seconds", "number"], ["Phase"], ["Lost to", "wide"]];
  const losses = run.losses.filter((loss) => loss.seconds >= 0.05).slice(0, 12);
  return el("section", { class: "card" },
    el("h2", {}, run.goodput === null ? "Time (no worker calls holdfast.heartbeat(step), so goodput is not known)" : "Goodput"),
    bar,
    el("div", { class: "legend" }, ...PHASES.map((phase) => el("span", {}, el("i", { class: phase }), `${named(run, phase)} ${length(run.seconds[phase])}`))),
    losses.length ? table(heads, losses.map((loss) => el("tr", {}, ...cells(heads, [loss.seconds.toFixed(1), loss.phase, loss.short])))) : null);
}

function timeline(run) {
  const begin = 0, end = Math.max(run.end - run.begin, 0.1);
  const rankNumbers = [...new Set(run.spans.map((span) => span[0]))].sort((a, b) => a - b);
  const narrow = innerWidth < 700, width = narrow ? 360 : 1000, left = 52, rowHeight = rankNumbers.length > 32 ? 8 : 18, gap = rankNumbers.length > 32 ? 1 : 4;
  const height = rankNumbers.length * (rowHeight + gap) + 26;
  const x = (seconds) => left + ((seconds - begin) / (end - begin)) * (width - left - 12);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "phases of every rank over time" });
  const step = niceStep(end / (narrow ? 4 : 8));
  for (let tick = 0; tick <= end; tick += step) {
    drawing.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - 22 }),
      svg("text", { x: x(tick), y: height - 8, "text-anchor": tick ? "middle" : "start" }, axis(tick, step)));
  }
  rankNumbers.forEach((rank, row) => {
    const y = row * (rowHeight + gap);
    if (rowHeight > 10 || row % 8 === 0) drawing.append(svg("text", { x: left - 8, y: y + rowHeight / 2 + 4, "text-anchor": "end" }, `rank ${rank}`));
    for (const [, phase, round, from, to, cause] of run.spans.filter((span) => span[0] === rank)) {
      const part = svg("rect", { class: phase, x: x(from), y, width: Math.max(x(to) - x(from), 0.8), height: rowHeight, rx: 2 });
      drawing.append(tipped(part, `rank ${rank}, round ${round}: ${named(run, phase)} for ${length(to - from)}${cause ? `, ${cause}` : ""}`));
    }
  });
  for (const told of run.events.filter((each) => each.kind === "worker_failed" || each.kind === "round_broken")) {
    const mark = svg("line", { class: "mark", x1: x(told.after_s), x2: x(told.after_s), y1: 0, y2: height - 22 });
    drawing.append(tipped(mark, told.sentence));
  }
  return el("section", { class: "card" }, el("h2", {}, "Timeline by rank"),
    rankNumbers.length ? drawing : el("p", { class: "quiet" }, run.waiting || "No worker has started yet."));
}

function niceStep(wanted) {
  for (const step of [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400])
    if (step >= wanted) return step;
  return 86400 * Math.ceil(wanted / 86400);
}

function axis(seconds, step) {
  if (step >= 3600) return `${Math.round(seconds / 3600)} h`;
  if (step >= 60) return `${Math.round(seconds / 60)} min`;
  return `${Number(seconds.toFixed(1))} s`;
}

function ranks(run) {
  const hasGpus = run.ranks.some((rank) => rank.gpu_bytes !== null);
  const heads = [["Rank", "number"], ["Host"], ["Pid", "number"], ["Step", "number"], ["Steps/s", "number"], ["Last", "number"],
    ["CPU", "number"], ["Memory", "number"], ...(hasGpus ? [["GPU", "number"], ["GPU memory", "number"]] : []), ...(allowKill ? [[""]] : [])];
  const rows = run.ranks.map((rank) => el("tr", { "data-rank": String(rank.rank) }, ...cells(heads, [
    String(rank.rank), rank.host, String(rank.pid), rank.step === null ? "–" : String(rank.step), three(rank.rate), length(rank.silent_s),
    rank.cpu_percent === null ? "–" : `${Math.round(rank.cpu_percent)} %`, size(rank.rss_bytes),
    ...(hasGpus ? [rank.gpu_percent === null ? "–" : `${Math.round(rank.gpu_percent)} %`, size(rank.gpu_bytes)] : []),
    ...(allowKill ? [killButton(run.run, rank)] : [])])));
  return el("section", { class: "card", id: "ranks" }, el("h2", {}, "Live ranks"),
    rows.length ? table(heads, rows) : el("p", { class: "quiet" }, run.outcome === "running" ? run.waiting || "No worker runs at the moment." : "The run is over."),
    ...(allowKill ? [el("div", { class: "row" }, ...run.agents.map((agent) => nodeButton(run.run, agent)))] : []));
}

function killButton(name, rank) {
  return el("button", { class: "kill", "data-key": `kill ${rank.rank}`, onclick: (event) => doKill(event.target, api("/kill", name, `&rank=${rank.rank}`)) }, "kill");
}

function nodeButton(name, agent) {
  return el("button", { class: "kill", "data-agent": String(agent.pid), "data-key": `node ${agent.pid}`, onclick: (event) => doKill(event.target, api("/kill", name, `&agent=${agent.pid}`)) },
    agent.ranks.length ? `kill the node with ranks ${agent.ranks.join(", ")}` : `kill the node of agent ${agent.pid}`);
}

async function doKill(button, path) {
  button.disabled = true;
  try { await post(path); } catch (error) { alert(error.message); }
  tick();
}

function curves(run) {
  const curve = (name, key, text) => {
    const points = run.samples.filter((sample) => sample[key] !== null);
    if (points.length < 2) return null;
    const from = points[0].after_s, to = points[points.length - 1].after_s || 1, top = Math.max(...points.map((p) => p[key])) || 1;
    const line = points.map((p) => `${((p.after_s - from) / (to - from || 1)) * 400},${70 - (p[key] / top) * 62}`).join(" ");
    return el("div", {}, el("div", { class: "quiet" }, `${name}: ${text(points[points.length - 1][key])}`),
      svg("svg", { viewBox: "0 0 400 74", preserveAspectRatio: "none", role: "img", "aria-label": name }, svg("line", { class: "grid", x1: 0, x2: 400, y1: 72, y2: 72 }), svg("polyline", { class: "curve", points: line })));
  };
  const found = [curve("Steps per second", "rate", three), curve("Goodput", "goodput", percent), curve("Memory of all ranks", "rss_bytes", size),
    curve("GPUs", "gpu_percent", (p) => `${Math.round(p)} %`)].filter(Boolean);
  return el("section", { class: "card" }, el("h2", {}, "Over time"),
    ...(found.length ? found : [el("p", { class: "quiet" }, "Curves are drawn while a run is live and this page is served.")]));
}

function events(run) {
  const lines = [...run.events].reverse().map((told) => el("li", { class: told.level }, tipped(el("time", {}, `+${length(told.after_s)}`), clock(told.time)),
    el("span", {}, told.sentence)));
  return el("section", { class: "card" }, el("h2", {}, "Events, the latest first"),
    lines.length ? el("ol", { class: "events", "data-keep": "events" }, ...lines) : el("p", { class: "quiet" }, "None yet."));
}

function stacks(run) {
  const take = async (event) => {
    event.target.disabled = true;
    try {
      const told = await post(api("/stacks", run.run));
      const odd = told.odd.length ? `rank ${told.odd.join(", ")}: not where the others are\n\n` : "";
      shown.stacks = `${clock(told.time)}\n${odd}${told.text}`;
    } catch (error) { shown.stacks = error.message; }
    tick();
  };
  return el("section", { class: "card", id: "stacks" },
    el("div", { class: "row" }, el("h2", {}, "Stacks"), el("button", { "data-key": "stacks", onclick: take, disabled: run.outcome !== "running" }, "Take stacks now")),
    shown.stacks ? el("pre", { "data-keep": "stacks" }, shown.stacks) : el("p", { class: "quiet" }, "Where every worker of this host is at the moment; training goes on."));
}

function logs(run) {
  const choose = el("select", { "aria-label": "log file", onchange: (event) => { shown.log = event.target.value; event.target.blur(); tick(); } },
    el("option", { value: "" }, (shown.files || []).length ? "choose a log" : "no logs"),
    ...(shown.files || []).map((file) => el("option", { value: file.file, selected: file.file === shown.log }, `${file.file} (${size(file.bytes)})`)));
  const parts = [el("div", { class: "row" }, el("h2", {}, "Logs"), choose)];
  if (shown.text !== undefined && shown.log) parts.push(el("pre", { "data-keep": `log ${shown.log}` }, shown.text || "empty"));
  else if (!(shown.files || []).length) parts.push(el("p", { class: "quiet" }, "The workers write to the terminal only: --tee 3 keeps their output in files, as jobs do."));
  return el("section", { class: "card", id: "logs" }, ...parts);
}

async function readLogs(name) {
  shown.files = await ask(api("/logs", name));
  if (shown.log) {
    const told = await ask(api("/log", name, `&file=${encodeURIComponent(shown.log)}`));
    shown.text = (told.cut ? "…\n" : "") + told.text;
  }
}

// -- the loop --------------------------------------------------------------------------------------------------------------

let place = "";

async function tick() {
  clearTimeout(timer);
  const hash = location.hash;
  if (hash !== place) { place = hash; shown = {}; }
  try {
    const found = /^#\/run\/(.+)$/.exec(hash);
    if (found && isBusy() && main.querySelector("#logs")) {
      // What is on the screen stays until the person is done.
    } else if (found) {
      const name = decodeURIComponent(found[1]);
      if (!allowKill) allowKill = (await ask("/api/runs")).allow_kill;
      await readLogs(name);
      await drawRun(name);
    } else await drawRuns();
    pulse.textContent = `live, ${new Date().toLocaleTimeString()}`;
    pulse.className = "";
  } catch (error) {
    pulse.textContent = error instanceof TypeError ? "the server is gone: holdfast page has ended" : error.message;
    pulse.className = "lost";
  }
  if (hash !== location.hash) return tick();
  timer = setTimeout(tick, document.hidden ? EVERY_MS * 10 : EVERY_MS);
}

addEventListener("hashchange", () => { tick(); main.focus(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
tick();
