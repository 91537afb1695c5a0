// What an app in a browser, or in Node, imports:
//
//   import { fetchSource, openEngine, readManifest } from "./core.mjs";
//   const source = fetchSource("bundle/");
//   const manifest = await readManifest(source);
//   const engine = await openEngine(ort, source, manifest.engines[0], 2);
//   const { logits } = await engine.run({ features: { data: new Float32Array(4000), dims: [1, 100, 40] } });

export { Failure } from "./errors.mjs";
export { LogMel } from "./logmel.mjs";
export { answer, openEngine } from "./protocol.mjs";
export { PROVIDER } from "./session.mjs";
export { fetchSource, readManifest } from "./source.mjs";
export { decodeTensor, encodeTensor, randomInputs } from "./tensors.mjs";
export { sample, timedMs, warmUp } from "./timing.mjs";
