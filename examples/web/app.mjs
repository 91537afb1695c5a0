// Opens a bundle's engines, runs them on the bundle's own test vectors, and compares with the reference's outputs; for a
// model that hears, also on a clip from a file or the microphone.

import { decodeClip, record } from "./clip.mjs";
import { fetchSource, LogMel, openEngine, readManifest, timedMs } from "./essm/core.mjs";
import * as ort from "./ort/ort.wasm.min.mjs";
import { readNpz } from "./npz.mjs";
import { definitions, fill, scores } from "./view.mjs";

const CALLS = 50;
const $ = (id) => document.getElementById(id);
const source = fetchSource(new URL("bundle/", location).href);
const opened = new Map();
ort.env.wasm.wasmPaths = new URL("ort/", location).href;

async function main() {
  const manifest = await readManifest(source);
  const engines = manifest.engines.filter((engine) => engine.kind === "sequence" && engine.backend === "onnxruntime");
  const chosen = () => engines.find(({ id }) => id === $("engine").value);
  fill($("engine"), engines.map(({ id }) => [id, id === manifest.default ? `${id} (default)` : id]));
  $("engine").value = engines.some(({ id }) => id === manifest.default) ? manifest.default : engines[0].id;
  $("about").textContent = `${manifest.model.name}: built for ${manifest.target.name}`;
  await offerVectors(manifest, chosen);
  if (manifest.model.frontend) offerClips(manifest, chosen);
}

async function offerVectors(manifest, chosen) {
  const vectors = readNpz(await source.read("test_vectors.npz"));
  const count = Object.values(vectors)[0].dims[0];
  fill($("vector"), Array.from({ length: count }, (_, index) => [index, `${index + 1} of ${count}`]));
  const run = () => showVector(manifest, vectors, chosen(), Number($("vector").value));
  $("controls").addEventListener("submit", (event) => (event.preventDefault(), guarded(run)));
  $("controls").hidden = false;
  await run();
}

function offerClips(manifest, chosen) {
  const mel = new LogMel(manifest.model.frontend);
  const hear = async (bytes) => {
    const samples = await decodeClip(bytes, mel.sample_rate, mel.clip_samples);
    await show(manifest, chosen(), mel.inputs(samples), { clip: `${(samples.length / mel.sample_rate).toFixed(2)} s` });
  };
  $("file").addEventListener("change", () => guarded(async () => hear(await $("file").files[0].arrayBuffer())));
  $("record").addEventListener("click", () => guarded(async () => hear(await record(mel.clip_samples / mel.sample_rate))));
  $("clips").hidden = false;
}

async function showVector(manifest, vectors, entry, index) {
  const inputs = Object.fromEntries(entry.inputs.map(({ name }) => [name, row(vectors[`input/${name}`], index)]));
  const expected = row(vectors[`output/${entry.budget}/logits`], index);
  const { logits } = await (await engineOf(entry)).run(inputs);
  const off = difference(logits.data, expected.data).toExponential(1);
  await show(manifest, entry, inputs, { "difference from the reference": off });
}

/** The scores for `inputs`, the time of a call, and `facts`. */
async function show(manifest, entry, inputs, facts) {
  const engine = await engineOf(entry);
  const { logits } = await engine.run(inputs);
  const times = [];
  for (let call = 0; call < CALLS; call++) times.push(await timedMs(() => engine.run(inputs)));
  const median = times.sort((one, other) => one - other)[CALLS / 2];
  const threads = `${ort.env.wasm.numThreads}${crossOriginIsolated ? "" : ": the page is not cross-origin isolated"}`;
  const all = { ...facts, "time of a call": `${median.toFixed(2)} ms (median of ${CALLS})`, threads };
  const last = logits.data.slice(-logits.dims.at(-1)); // of a language model, what follows the last token
  $("result").replaceChildren(definitions(all), scores(manifest.model.id2label ?? {}, softmax(last)));
}

/** The engine, opened once; one thread for every two logical processors, which is about the physical cores. */
function engineOf(entry) {
  const threads = Math.max(1, Math.floor(navigator.hardwareConcurrency / 2));
  if (!opened.has(entry.id)) opened.set(entry.id, openEngine(ort, source, entry, threads));
  return opened.get(entry.id);
}

/** Row `index` of an array, as a batch of one. */
function row({ data, dims }, index) {
  const size = data.length / dims[0];
  return { data: data.slice(index * size, (index + 1) * size), dims: [1, ...dims.slice(1)] };
}

/** ||ours - reference|| / ||reference||. */
function difference(ours, reference) {
  const norm = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
  return norm(Array.from(ours, (value, index) => value - reference[index])) / norm(Array.from(reference));
}

function softmax(logits) {
  const most = Math.max(...logits);
  const exponentials = Array.from(logits, (value) => Math.exp(value - most));
  const total = exponentials.reduce((sum, value) => sum + value, 0);
  return exponentials.map((value) => value / total);
}

/** What goes wrong is shown, not swallowed. */
async function guarded(work) {
  try {
    await work();
  } catch (error) {
    Object.assign($("about"), { textContent: error.message, className: "error" });
  }
}

await guarded(main);
