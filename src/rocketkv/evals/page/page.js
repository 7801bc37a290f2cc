// Draws what counts.js counts, and listens. All text goes in as text.
const $ = (id) => document.getElementById(id);
const depth = (share) => Math.sqrt(share);
const shown = (piece) => (piece === "" ? "▯" : piece.replace(/\n/g, "↵\n"));
const isMarked = (token) => data.marked.some(([start, stop]) => token >= start && token < stop);
// Where everything is kept, a shade for that would drown the other.
const PLAIN = data.keepsAll.flat().every(Boolean) ? "read" : "both";
const spans = [], cells = [];
let tallied;

function element(name, parent, properties = {}) {
  return parent.appendChild(Object.assign(document.createElement(name), properties));
}

function focused() {
  const token = state.hover ?? state.token;
  if (token !== null) return { tokens: [token], name: `Token ${many(token + 1)} ${quoted(data.pieces[token])}` };
  const expected = data.marked.flatMap(([start, stop]) => range(stop - start).map((i) => start + i));
  return expected.length ? { tokens: expected, name: "The expected words" } : { tokens: range(P), name: "The average prompt token" };
}

function drawFocus() {
  const { tokens, name } = focused(), table = cellsOf(tokens), flat = table.flat();
  const mean = (list) => list.reduce((sum, token) => sum + token, 0) / tokens.length;
  const total = (counts) => mean(tokens.map((token) => counts[token]));
  $("focus").textContent = name;
  const lines = [`kept in ${many(total(tallied.kept), 1)} of ${many(tallied.pairs)} chosen layer × head pairs`,
    `read ${many(total(tallied.read), 1)} times of at most ${many(total(tallied.most), 1)}`];
  if (tokens.length === 1) lines.push(`${tokens[0] < P ? "prompt" : `answer token ${tokens[0] - P + 1}`}, id ${data.ids[tokens[0]]}`);
  if (attention && tokens[tokens.length - 1] < P) lines.push(`Full-KV's attention to it: ${many(100 * total(tallied.look), 3)} % (mean)`);
  $("detail").textContent = lines.join("\n");
  const sum = flat.reduce((all, cell) => all + cell.look, 0);
  let left = sum / 2;
  for (const cell of [...flat].sort((a, b) => b.look - a.look)) { cell.ring = sum > 0 && left > 0; left -= cell.look; }
  flat.forEach((cell, i) => {
    const box = cells[i], layer = Math.floor(i / G), head = i % G;
    box.style.setProperty("--k", depth(cell.kept));
    box.style.setProperty("--r", depth(cell.read));
    box.classList.toggle("look", cell.ring);
    box.classList.toggle("chosen", layer === state.layer && head === state.head);
    box.title = `layer ${data.layers[layer]}, KV head ${head}: kept ${many(100 * cell.kept)} %, read at ${many(100 * cell.read, 1)} % of the steps`
      + (attention ? `, Full-KV's attention ${many(100 * cell.look, 2)} %` : "");
  });
}

function drawMap() {
  const canvas = $("map"), width = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
  canvas.width = width * scale; canvas.height = height * scale;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name);
  pen.scale(scale, scale);
  const lanes = [["--kept", (token) => tallied.kept[token] / tallied.pairs], ["--bar", (token) => (tallied.most[token] ? tallied.read[token] / tallied.most[token] : 0)]];
  lanes.forEach(([name, share], lane) => {
    pen.fillStyle = color(name);
    for (let x = 0; x < width; x++) {
      let most = 0;
      for (let token = Math.floor(x * T / width); token < Math.max((x + 1) * T / width, Math.floor(x * T / width) + 1) && token < T; token++) most = Math.max(most, share(token));
      const tall = 17 * depth(most);
      pen.fillRect(x, 28 + 18 * lane - tall, 1, tall);
    }
  });
  pen.fillStyle = color("--ink");
  pen.fillRect(P * width / T, 10, 1, height);
  for (const [start, stop] of data.marked) {
    const x = (start + stop) / 2 * width / T;
    pen.beginPath(); pen.moveTo(x - 6, 0); pen.lineTo(x + 6, 0); pen.lineTo(x, 9); pen.fill();
  }
}

function drawLegend() {
  const legend = $("legend"), looks = state.shade === "look";
  legend.replaceChildren();
  const scale = (title, variable, kind) => {
    const box = element("b", legend);
    element("span", box, { textContent: title });
    for (const share of [0, 0.05, 0.25, 1]) {
      element("i", box, { className: kind }).style.setProperty(variable, depth(share));
      element("span", box, { textContent: `${100 * share}%` });
    }
  };
  if (state.shade !== "read" && !looks) scale("kept, of layers × heads", "--k", "k");
  if (state.shade !== "kept" && !looks) scale("read, of steps × heads", "--r", "r");
  if (looks) scale("Full-KV's attention, of the largest shown", "--a", "a");
}

function draw() {
  tallied = tally();
  const peak = Math.max(...[...tallied.look].sort((a, b) => b - a).slice(Math.ceil(P / 100), Math.ceil(P / 100) + 1), 1e-9);
  spans.forEach((span, token) => {
    span.style.setProperty("--k", depth(tallied.kept[token] / tallied.pairs).toFixed(3));
    span.style.setProperty("--r", tallied.most[token] ? depth(tallied.read[token] / tallied.most[token]).toFixed(3) : 0);
    span.style.setProperty("--a", token < P ? depth(Math.min(1, tallied.look[token] / peak)).toFixed(3) : 0);
    span.classList.toggle("gone", !tallied.kept[token]);
    span.classList.toggle("chosen", token === state.token);
    span.classList.toggle("current", state.step !== null && token === P + state.step - 1);
  });
  $("flow").className = state.shade;
  document.body.className = state.shade;
  $("selection").textContent = summary(tallied);
  $("layer").value = state.layer ?? ""; $("head").value = state.head ?? "";
  $("step").value = state.step ?? ""; $("shade").value = state.shade;
  [...$("answer").children].forEach((button, i) => button.setAttribute("aria-pressed", state.step === i + 1));
  drawLegend(); drawFocus(); drawMap();
}

function choose(changes) {
  Object.assign(state, changes);
  const set = Object.entries(state).filter(([name, value]) => name !== "hover" && value !== null && value !== PLAIN);
  history.replaceState(null, "", `#${set.map(([name, value]) => `${name}=${name === "layer" ? data.layers[value] : name === "token" ? value + 1 : value}`).join("&")}`);
  draw();
}

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name, least, most) => {
    const value = Number(given.get(name));
    return given.has(name) && Number.isInteger(value) && value >= least && value <= most ? value : null;
  };
  const layer = data.layers.indexOf(Number(given.get("layer") ?? NaN)), token = number("token", 1, T);
  const shade = [...$("shade").options].map((option) => option.value).find((value) => value === given.get("shade"));
  Object.assign(state, { layer: layer < 0 ? null : layer, head: number("head", 0, G - 1), step: number("step", 1, N),
    token: token === null ? null : token - 1, shade: shade ?? PLAIN });
  draw();
  if (token !== null) show(state.token);
}

function show(token) { spans[token].scrollIntoView({ block: "center" }); }

function goTo(token) {
  const there = Math.min(T - 1, Math.max(0, token));
  choose({ token: there });
  show(there);
}

function toPlace(direction) {
  const starts = data.marked.map(([start]) => start), from = state.token ?? -1;
  const later = direction > 0 ? starts.find((start) => start > from) : starts.findLast((start) => start < from);
  if (starts.length) goTo(later ?? (direction > 0 ? starts[0] : starts[starts.length - 1]));
}

const stepBy = (move) => choose({ step: Math.min(N, Math.max(1, state.step === null ? (move > 0 ? 1 : N) : state.step + move)) });

function onKey(event) {
  if (event.target.tagName === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = {
    ArrowLeft: () => goTo((state.token ?? 1) - 1), ArrowRight: () => goTo((state.token ?? -1) + 1),
    "[": () => stepBy(-1), "]": () => stepBy(1), n: () => toPlace(1), p: () => toPlace(-1), Escape: reset,
  };
  if (event.key in moves) { event.preventDefault(); moves[event.key](); }
}

function reset() { choose({ layer: null, head: null, step: null, token: null, shade: PLAIN }); }

function build() {
  const { verdict } = data;
  $("verdict").className = verdict.tone;
  $("verdict").firstElementChild.textContent = verdict.label;
  for (const sentence of verdict.sentences) element("li", $("verdict").lastElementChild, { textContent: sentence });
  for (const [name, value] of data.facts) { element("dt", $("facts"), { textContent: name }); element("dd", $("facts"), { textContent: value }); }
  const special = new Set(data.special), answerIds = data.ids.slice(P), parts = data.full ? answerIds.findIndex((id, i) => id !== data.full.ids[i]) : -1;
  data.pieces.forEach((piece, token) => {
    if (token === P) element("h3", $("flow"), { textContent: "The answer, which is kept and read like the prompt" });
    const names = ["t", token >= P && "answer", special.has(token) && "special", isMarked(token) && "marked",
      data.marked.some(([start]) => start === token) && "begins", data.marked.some(([, stop]) => stop === token + 1) && "ends"];
    const span = element("span", $("flow"), { className: names.filter(Boolean).join(" "), textContent: shown(piece) });
    span.dataset.token = token;
    spans.push(span);
  });
  answerIds.forEach((id, i) => element("button", $("answer"), { textContent: shown(data.pieces[P + i]), onclick: () => choose({ step: state.step === i + 1 ? null : i + 1 }),
    title: i === parts ? "from here on Full-KV's answer is another" : `step ${i + 1}`, className: i === parts ? "parts" : "" }));
  $("beside").hidden = data.full === null;
  if (data.full) data.full.pieces.forEach((piece, i) => element("span", $("full"), { textContent: piece, className: i === parts ? "parts" : "" }));
  const options = (id, list) => list.forEach(([value, textContent]) => element("option", $(id), { value, textContent }));
  options("layer", [["", "All"], ...data.layers.map((number, i) => [i, `${number}${data.readsEverything[i].every(Boolean) ? ": reads everything" : data.keepsAll[i].every(Boolean) ? ": keeps everything" : ""}`])]);
  options("head", [["", "All"], ...range(G).map((head) => [head, head])]);
  options("step", [["", "All decode steps"], ...range(N).map((i) => [i + 1, `${i + 1} ${quoted(data.pieces[P + i])}${i ? "" : " (prompt's pass)"}`])]);
  options("shade", [["both", "kept and read"], ["kept", "kept"], ["read", "read"], ...(attention ? [["look", "Full-KV's attention"]] : [])]);
  const top = element("tr", $("grid"));
  element("th", top, { textContent: "layer" });
  for (const head of range(G)) element("th", top, { textContent: G > 8 ? head : `head ${head}` });
  for (const layer of range(L)) {
    const row = element("tr", $("grid"));
    element("th", row, { textContent: data.layers[layer] });
    for (const head of range(G)) cells.push(element("td", row, { onclick: () => choose(state.layer === layer && state.head === head ? { layer: null, head: null } : { layer, head }) }));
  }
  $("note").textContent = "Blue: kept. Orange: read at the chosen steps." + (attention ? " Dark frames: the pairs that hold half of Full-KV's attention to it." : "");
}

function listen() {
  const chosen = (id) => ($(id).value === "" ? null : Number($(id).value));
  for (const id of ["layer", "head", "step"]) $(id).onchange = () => choose({ [id]: chosen(id) });
  $("shade").onchange = () => choose({ shade: $("shade").value });
  $("before").onclick = () => stepBy(-1); $("after").onclick = () => stepBy(1); $("reset").onclick = reset;
  const tokenOf = (event) => (event.target.dataset.token === undefined ? null : Number(event.target.dataset.token));
  $("flow").onclick = (event) => choose({ token: tokenOf(event) === state.token ? null : tokenOf(event) });
  $("flow").onmouseover = (event) => { state.hover = tokenOf(event); drawFocus(); };
  $("flow").onmouseleave = () => { state.hover = null; drawFocus(); };
  $("map").onclick = (event) => goTo(Math.floor(event.offsetX / $("map").clientWidth * T));
  window.onresize = drawMap; window.onhashchange = fromAddress; document.onkeydown = onKey;
  matchMedia("(prefers-color-scheme: dark)").onchange = drawMap;
}

async function start() {
  [kept, reads, attention] = await Promise.all([unpacked(data.kept), unpacked(data.reads), data.attention && unpacked(data.attention)]);
  build(); listen(); fromAddress();
  document.body.dataset.ready = "yes";
}
start();
