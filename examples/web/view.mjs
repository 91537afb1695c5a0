// What the page shows: facts as a list, scores as bars.

/** A definition list of {name: text}. */
export function definitions(facts) {
  const list = document.createElement("dl");
  const element = (kind, textContent) => Object.assign(document.createElement(kind), { textContent });
  for (const [name, value] of Object.entries(facts)) list.append(element("dt", name), element("dd", value));
  return list;
}

/** The ten best of `shares`, which add up to one, as a table of bars. */
export function scores(labels, shares) {
  const named = shares.map((share, index) => [labels[index] ?? `token ${index}`, share]);
  const table = document.createElement("table");
  for (const [label, share] of named.sort((one, other) => other[1] - one[1]).slice(0, 10)) {
    const line = table.insertRow();
    line.insertCell().textContent = label;
    const bar = Object.assign(line.insertCell(), { className: "bar" });
    bar.append(document.createElement("div"));
    bar.firstChild.style.width = `${100 * share}%`;
    Object.assign(line.insertCell(), { className: "number", textContent: share.toFixed(3) });
  }
  return table;
}

/** Fill a <select> with [value, text] pairs. */
export function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
}
