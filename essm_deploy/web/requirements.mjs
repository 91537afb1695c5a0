// What an engine needs of the runtime, checked before it is opened (see runtime/requirements.py).

import { Failure } from "./errors.mjs";

const CONDITION = /^(>=|<=|==|!=|<|>)([0-9]{1,6}(?:\.[0-9]{1,6}){0,4})$/;
const HOLDS = {
  ">=": (order) => order >= 0,
  "<=": (order) => order <= 0,
  "==": (order) => order === 0,
  "!=": (order) => order !== 0,
  "<": (order) => order < 0,
  ">": (order) => order > 0,
};

/** UnavailableError that names both sides if ONNX Runtime Web `version` lacks something that `engine` needs. */
export function checkRequirements(engine, version) {
  if (engine.backend !== "onnxruntime") unavailable(engine, `the backend ${engine.backend}, ONNX Runtime Web runs onnxruntime`);
  for (const [name, wanted] of Object.entries(engine.requires ?? {})) {
    if (name === "onnxruntime" && !satisfies(version, wanted, engine)) {
      unavailable(engine, `onnxruntime ${wanted}, onnxruntime-web here is ${version}: install one that fits`);
    }
    const same = name === "provider" && wanted === "CPUExecutionProvider"; // which is what WebAssembly runs
    if (name !== "onnxruntime" && name !== "opset" && !same) {
      unavailable(engine, `${name} = ${JSON.stringify(wanted)}, which ONNX Runtime Web does not have: build for web-wasm`);
    }
  }
}

function unavailable(engine, rest) {
  throw new Failure("UnavailableError", `engine '${engine.id}' needs ${rest}`);
}

function satisfies(version, conditions, engine) {
  return String(conditions).split(",").every((condition) => {
    const match = CONDITION.exec(condition.trim());
    if (match) return HOLDS[match[1]](compare(numbers(version), numbers(match[2])));
    throw new Failure("BundleError", `engine '${engine.id}' requires onnxruntime '${conditions}', expected as in '>=1.20,<2'`);
  });
}

const numbers = (version) => /^[0-9]+(\.[0-9]+)*/.exec(version)?.[0].split(".").map(Number) ?? [];

function compare(one, other) {
  for (let index = 0; index < Math.max(one.length, other.length); index++) {
    const difference = (one[index] ?? 0) - (other[index] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}
