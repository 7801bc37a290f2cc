"use strict";
// T tokens: P of the prompt, then N of the answer. L layers, G KV heads, PER query heads of each that read differently.
// Step 1 is the prompt's own pass; step n chose answer token n, and its reads are number n - 2 of S.
const data = JSON.parse(document.getElementById("data").textContent);
const P = data.promptTokens, T = data.pieces.length, N = T - P, S = N - 1;
const L = data.layers.length, G = data.heads, H = data.readHeads, PER = Math.max(1, H / G);
const KEPT_BYTES = Math.ceil(P / 8);
const state = { layer: null, head: null, step: null, token: null, hover: null, shade: null };
const range = (count) => [...Array(count).keys()];
const many = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
const quoted = (piece) => `“${piece.replace(/\n/g, "↵")}”`;
let kept, reads, attention;

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function addBits(bits, start, bytes, counts) {
  for (let i = 0; i < bytes; i++) {
    let byte = bits[start + i];
    for (let token = 8 * i; byte; byte >>= 1, token++) counts[token] += byte & 1;
  }
}

const bit = (bits, start, token) => (bits[start + (token >> 3)] >> (token & 7)) & 1;
const readsAt = (step, layer, head) => ((step * L + layer) * H + head) * data.readBytes;
const layers = () => (state.layer === null ? range(L) : [state.layer]);
const heads = () => (state.head === null ? range(G) : [state.head]);
const steps = () => (state.step === null ? range(S) : state.step === 1 ? [] : [state.step - 2]);

// Per token: in how many chosen pairs it is kept, how often it was read, and how often it could have been at most.
function tally() {
  const pairs = layers().length * heads().length, chosen = steps(), first = state.step === 1;
  const out = { pairs, kept: new Uint32Array(T + 8), read: new Uint32Array(T + 8), most: new Uint32Array(T), look: new Float64Array(P) };
  for (const layer of layers()) for (const head of heads()) {
    addBits(kept, (layer * G + head) * KEPT_BYTES, KEPT_BYTES, out.kept);
    for (const step of chosen) for (let r = 0; r < PER; r++)
      addBits(reads, readsAt(step, layer, head * PER + r), data.readBytes, out.read);
    if (attention) for (let token = 0, at = (layer * G + head) * P; token < P; token++, at++)
      out.look[token] += (attention[at] / 255) ** 2 / pairs;
  }
  for (let token = 0; token < T; token++) {
    const there = token < P ? chosen.length : chosen.filter((step) => step >= token - P).length;
    out.most[token] = first ? (token < P ? pairs : 0) : there * pairs * PER;
    if (token >= P) out.kept[token] = there ? pairs : 0;
    if (first) out.read[token] = out.most[token];
  }
  return out;
}

// Per pair: which share of `tokens` it kept, which share of the chosen steps read them, what Full-KV attends to them.
function cellsOf(tokens) {
  return range(L).map((layer) => range(G).map((head) => {
    let stored = 0, read = 0, most = 0, look = 0;
    for (const token of tokens) {
      stored += token < P ? bit(kept, (layer * G + head) * KEPT_BYTES, token) : 1;
      if (attention && token < P) look += (attention[(layer * G + head) * P + token] / 255) ** 2;
      for (const step of steps()) if (token < P + step + 1) for (let r = 0; r < PER; r++, most++)
        read += bit(reads, readsAt(step, layer, head * PER + r), token);
    }
    return { kept: stored / tokens.length, read: state.step === 1 ? 1 : most ? read / most : 0, look };
  }));
}

// What the selection holds and reads, in words; `tallied` is its tally.
function summary(tallied) {
  const { pairs } = tallied, total = (counts) => counts.slice(0, T).reduce((sum, value) => sum + value, 0);
  const where = `${state.layer === null ? "All layers" : `Layer ${data.layers[state.layer]}`}, ${state.head === null ? "all KV heads" : `KV head ${state.head}`}`;
  const held = tallied.kept.slice(0, P).reduce((sum, value) => sum + value, 0) / pairs;
  const words = [`${where}: ${many(held, 1)} of ${many(P)} prompt tokens kept${pairs > 1 ? " per head (mean)" : ""}.`];
  const chosen = steps().length;
  if (state.step === 1) words.push("Answer token 1 comes from the prompt's own pass, which reads everything.");
  else if (!chosen) words.push("The answer took no decode step.");
  else words.push(`${state.step === null ? `A step of ${many(S)} read` : `The step that chose answer token ${state.step} read`} ${many(total(tallied.read) / chosen / pairs / PER, 1)} tokens${chosen * pairs * PER > 1 ? " (mean)" : ""}.`);
  const every = (table) => layers().every((layer) => heads().every((head) => table[layer][head]));
  if (every(data.readsEverything)) words.push("Reads everything: nothing is evicted or passed over here.");
  else if (every(data.keepsAll)) words.push("Keeps every prompt token here.");
  return words.join(" ");
}
