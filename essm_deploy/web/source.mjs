// The files of an engine over http.

import { Failure } from "./errors.mjs";

/** Reads files below the URL `base`. A server that ignores ranges sends a file once, and it is kept. */
export function fetchSource(base) {
  const whole = new Map();
  return {
    /** `length` bytes from `offset` on, or the whole file. IntegrityError if they are not to be had. */
    async read(path, offset = 0, length = null) {
      if (length === 0) return new Uint8Array(0);
      const kept = whole.get(path);
      if (kept) return cut(kept, path, offset, length);
      const headers = length === null ? {} : { Range: `bytes=${offset}-${offset + length - 1}` };
      const response = await fetch(base + path.split("/").map(encodeURIComponent).join("/"), { headers });
      if (!response.ok) throw new Failure("IntegrityError", `${base}${path} cannot be read: status ${response.status}`);
      const bytes = new Uint8Array(await response.arrayBuffer());
      if (response.status === 206) return cut(bytes, path, 0, length);
      if (length !== null) whole.set(path, bytes);
      return cut(bytes, path, offset, length);
    },
  };
}

/** The manifest of a bundle, parsed. BundleError if it is none of a version that is known here. */
export async function readManifest(source) {
  const manifest = parse(new TextDecoder().decode(await source.read("manifest.json")));
  if (/^1\.\d+$/.test(manifest?.schema_version) && Array.isArray(manifest.engines)) return manifest;
  throw new Failure("BundleError", "manifest.json is not the manifest of a bundle with schema_version 1");
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** `length` bytes of `bytes`, which are a file's; IntegrityError if it is shorter. */
export function cut(bytes, path, offset, length) {
  if (length === null) return bytes;
  if (offset + length <= bytes.length) return bytes.subarray(offset, offset + length);
  throw new Failure("IntegrityError", `${path} ends at byte ${bytes.length}, ${offset + length} are read: copy it again`);
}
