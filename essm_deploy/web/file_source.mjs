// The files of an engine in Node.

import { realpathSync } from "node:fs";
import { open, readFile } from "node:fs/promises";
import { join, sep } from "node:path";

import { Failure } from "./errors.mjs";
import { cut } from "./source.mjs";

/** Reads files below the folder `root`. IntegrityError for one that is missing, or reached through a link that leaves it. */
export function fileSource(root) {
  return {
    /** `length` bytes from `offset` on, or the whole file. */
    async read(path, offset = 0, length = null) {
      const file = inside(root, path);
      return length === null ? new Uint8Array(await readFile(file)) : part(file, path, offset, length);
    },
  };
}

async function part(file, path, offset, length) {
  const handle = await open(file);
  try {
    const { bytesRead, buffer } = await handle.read(new Uint8Array(length), 0, length, offset);
    return cut(buffer.subarray(0, bytesRead), path, 0, length);
  } finally {
    await handle.close();
  }
}

function inside(root, path) {
  try {
    const [base, file] = [realpathSync(root), realpathSync(join(root, path))];
    if (file.startsWith(base + sep)) return file;
  } catch {
    // said below
  }
  throw new Failure("IntegrityError", `${root} lacks the file '${path}' that its manifest names: copy the whole bundle again`);
}
