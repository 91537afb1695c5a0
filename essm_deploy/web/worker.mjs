// The process that runs one engine in Node: JSON Lines on stdin and stdout, as runtime/worker.py has them.
//
//   node worker.mjs PACKAGE          PACKAGE: the folder of onnxruntime-web

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

import { Failure } from "./errors.mjs";
import { fileSource } from "./file_source.mjs";
import { answer } from "./protocol.mjs";

async function main(root) {
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const status = await answer(await findHost(root), () => receive(lines), send);
  await lines.next(); // whoever asked may want to look at this process, and closes its stdin when that is done
  process.exit(status); // threads of the runtime would keep the process
}

async function findHost(root) {
  const ort = await import(pathToFileURL(join(root, "dist", "ort.node.min.mjs")));
  const { version } = JSON.parse(readFileSync(join(root, "package.json")));
  const versions = { node: process.versions.node, v8: process.versions.v8, onnxruntime_web: version };
  return { ort, versions, pid: process.pid, source: fileSource, memory };
}

/** The largest resident set; what else there is, the bridge reads from the kernel. */
function memory() {
  return { peak_bytes: process.resourceUsage().maxRSS * 1024, reasons: {} };
}

async function receive(lines) {
  const { value, done } = await lines.next();
  if (done) return null;
  try {
    return JSON.parse(value);
  } catch {
    throw new Failure("BundleError", "the request is not JSON");
  }
}

function send(message) {
  return new Promise((resolve) => process.stdout.write(`${JSON.stringify(message)}\n`, resolve));
}

console.log = console.info = console.debug = console.error; // stdout is the protocol's
process.stdout.on("error", () => process.exit(130)); // whoever asked is gone
await main(process.argv[2]);
