// Arrays of a numpy .npz file that was written without compression, as a bundle's test vectors are.

const KINDS = { "<f4": Float32Array, "<f8": Float64Array, "<i4": Int32Array, "<i8": BigInt64Array, "|b1": Uint8Array };

/** {name: {data: typed array, dims}} of the bytes of an .npz file. */
export function readNpz(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const entries = [...directory(view, bytes)];
  return Object.fromEntries(entries.map(({ name, content }) => [name.replace(/\.npy$/, ""), readNpy(content)]));
}

/** The files of a zip archive, from its central directory (PKWARE's APPNOTE, 4.3.12 and 4.3.7). */
function* directory(view, bytes) {
  let end = bytes.length - 22;
  while (view.getUint32(end, true) !== 0x06054b50) end -= 1;
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    const [method, size, start] = [view.getUint16(at + 10, true), view.getUint32(at + 20, true), view.getUint32(at + 42, true)];
    const lengths = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
    const name = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + lengths[0]));
    if (method !== 0) throw new Error(`${name} is compressed: expected an archive of numpy.savez`);
    const data = start + 30 + view.getUint16(start + 26, true) + view.getUint16(start + 28, true);
    yield { name, content: bytes.slice(data, data + size) };
    at += 46 + lengths[0] + lengths[1] + lengths[2];
  }
}

/** One .npy file (numpy.lib.format, versions 1 to 3). */
function readNpy(content) {
  const view = new DataView(content.buffer);
  const wide = content[6] > 1;
  const start = (wide ? 12 : 10) + (wide ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = new TextDecoder().decode(content.subarray(10, start));
  const kind = KINDS[/'descr': '([^']+)'/.exec(header)?.[1]];
  if (!kind || !header.includes("'fortran_order': False")) throw new Error(`cannot read an array with the header ${header}`);
  const dims = /'shape': \(([^)]*)\)/.exec(header)[1].split(",").filter((size) => size.trim()).map(Number);
  return { data: new kind(content.buffer.slice(start)), dims };
}
