// The page that measures one engine in a browser; targets/page_server.py serves it and takes its messages.
//
//   POST event       one message of the protocol, in order
//   GET request      the request, once there is one; null if there will be none
//   ../ort/         onnxruntime-web's dist folder
//   ../engine/      the files of the engine of the request

import { Failure } from "./errors.mjs";
import { answer } from "./protocol.mjs";
import { fetchSource } from "./source.mjs";

const here = new URL("./", import.meta.url);

async function main() {
  const ort = await import(new URL("../ort/ort.wasm.min.mjs", here));
  ort.env.wasm.wasmPaths = new URL("../ort/", here).href;
  const versions = { browser: await browser(), onnxruntime_web: ort.env.versions.web };
  const source = () => fetchSource(new URL("../engine/", here).href);
  await answer({ ort, versions, pid: null, source, memory }, receive, send);
}

/** A page cannot read what its process takes. */
function memory() {
  return { peak_bytes: null, reasons: { peak_bytes: "a page cannot read the memory of its process" } };
}

async function browser() {
  const { fullVersionList } = (await navigator.userAgentData?.getHighEntropyValues(["fullVersionList"])) ?? {};
  const real = (fullVersionList ?? []).filter(({ brand }) => !/^not|brand/i.test(brand.replace(/[^a-z]/gi, "")));
  return real.map(({ brand, version }) => `${brand} ${version}`).join(", ") || navigator.userAgent;
}

async function receive() {
  const response = await fetch(new URL("request", here), { cache: "no-store" });
  if (!response.ok) throw new Failure("WorkerError", `the request cannot be had: status ${response.status}`);
  return response.json();
}

/** Waits until the bridge has it, so that messages keep their order and none of it falls into a sample. */
async function send(message) {
  await fetch(new URL("event", here), { method: "POST", body: JSON.stringify(message) });
}

await main().catch((error) => send({ event: "error", type: "WorkerError", message: String(error), exit_code: 4 }));
