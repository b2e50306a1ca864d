"use strict";

// Sorting: by data-value as a number where a cell has one, else by its text; what is absent stays last.
// A third click brings back the order of the paper.
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

function sortKey(row, column) {
  const cell = row.cells[column];
  if (!("value" in cell.dataset)) return (cell.dataset.text ?? cell.textContent).trim().toLowerCase();
  return cell.dataset.value === "" ? null : Number(cell.dataset.value);
}

function sortBy(head) {
  const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
  const order = NEXT[head.getAttribute("aria-sort")];
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", order);
  const sign = order === "descending" ? -1 : 1;
  const rows = [...body.rows].sort((a, b) => {
    const first = Number(a.dataset.index), second = Number(b.dataset.index);
    if (order === "none") return first - second;
    const x = sortKey(a, column), y = sortKey(b, column);
    if (x === null || y === null) return (x === null) - (y === null) || first - second;
    const compared = typeof x === "number" ? x - y : x.localeCompare(y);
    return sign * compared || first - second;
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll("section.table table")) {
  [...table.tBodies[0].rows].forEach((row, index) => { row.dataset.index = index; });
  for (const head of table.tHead.rows[0].cells)
    head.querySelector("button").addEventListener("click", () => sortBy(head));
}

// Filtering: rows by their dataset and network, figures by those that they show.
const dataset = document.getElementById("dataset"), model = document.getElementById("model");
const finished = document.getElementById("finished"), count = document.getElementById("count");

function filter() {
  let shown = 0, all = 0;
  for (const section of document.querySelectorAll("section.table")) {
    let any = false;
    for (const row of section.querySelectorAll("tbody tr")) {
      const keep = (!dataset.value || row.dataset.dataset === dataset.value)
        && (!model.value || row.dataset.model === model.value)
        && (!finished.checked || row.dataset.state !== "missing");
      row.hidden = !keep;
      any ||= keep;
      all += 1;
      shown += keep;
    }
    section.hidden = !any;
    document.querySelector(`.contents a[href="#${section.id}"]`).parentNode.hidden = !any;
  }
  for (const figure of document.querySelectorAll("figure")) {
    const lacks = (words, wanted) => wanted && words && !words.split(" ").includes(wanted);
    figure.hidden = Boolean(lacks(figure.dataset.datasets, dataset.value) || lacks(figure.dataset.models, model.value));
  }
  count.textContent = shown === all ? `${all} rows` : `${shown} of ${all} rows`;
}

for (const control of [dataset, model, finished]) control.addEventListener("change", filter);
document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
filter();

// Panels: #runs/SOURCE/HASH/HASH... opens the runs behind a number. All text is set as text.
let runs = null;  // until they are unpacked
const panel = document.getElementById("panel");

async function unpack() {
  const bytes = Uint8Array.from(atob(document.getElementById("runs").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  runs = JSON.parse(await new Response(stream).text());
}

function make(tag, attributes, ...children) {
  const svg = ["svg", "path", "line", "text"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function chart(run) {
  const curves = Object.entries(run.curves), values = curves.flatMap(([, y]) => y).filter((v) => v !== null);
  if (!values.length) return make("p", { class: "note" }, "Every replica diverged at once: nothing to draw.");
  const width = Math.max(300, Math.min(640, document.documentElement.clientWidth - 32));
  const [height, left, right, top, bottom] = [210, 36, 74, 10, 24];
  const low = Math.floor(Math.min(...values)), high = Math.max(Math.ceil(Math.max(...values)), low + 1);
  const epochs = Math.max(...curves.map(([, y]) => y.length));
  const x = (epoch) => left + (epoch / Math.max(epochs - 1, 1)) * (width - left - right);
  const y = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
  const label = `Accuracy by epoch of the chosen replica, from ${low} to ${high} percent.`;
  const svg = make("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const value of [low, (low + high) / 2, high]) {
    svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(make("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, `${value}`));
  }
  for (const epoch of [0, epochs - 1])
    svg.append(make("text", { x: x(epoch), y: height - 6, "text-anchor": "middle" }, `${epoch + 1}`));
  svg.append(make("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "epoch"));
  if (run.best) {
    const at = x(run.best.epoch);
    svg.append(make("line", { class: "chosen", x1: at, x2: at, y1: top, y2: height - bottom }));
  }
  const ends = [];
  for (const [name, line] of curves) {
    const points = line.map((v, i) => (v === null ? null : `${x(i).toFixed(1)} ${y(v).toFixed(1)}`)).filter(Boolean);
    if (!points.length) continue;
    svg.append(make("path", { class: name, d: `M${points.join("L")}` }));
    ends.push({ name, y: Number(points.at(-1).split(" ")[1]) });
  }
  // Names at the ends of the lines, moved apart where these meet.
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + 13); });
  for (const end of ends)
    svg.append(make("text", { class: end.name, x: width - right + 6, y: end.y + 4 }, end.name));
  return svg;
}

function facts(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs)
    if (value !== null && value !== undefined && value !== "") list.append(make("dt", {}, name), make("dd", {}, `${value}`));
  return list;
}

const percent = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(2)} %`);

function replicas(run) {
  const head = make("tr");
  for (const name of ["Rate", "Trial", "Validation", "Test", "Diverged"]) head.append(make("th", { scope: "col" }, name));
  const body = make("tbody");
  for (const row of run.replicas) {
    const cells = [row.lr, row.trial + 1, percent(row.validation), percent(row.test),
      row.diverged === null ? "–" : `epoch ${row.diverged + 1}`];
    body.append(make("tr", {}, ...cells.map((cell) => make("td", {}, `${cell}`))));
  }
  return make("details", {}, make("summary", {}, `All ${run.replicas.length} replicas, each at its best epoch`),
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), body)));
}

function describe(run) {
  const best = run.best, mean = run.mean, data = run.data;
  return make("div", { class: "run" },
    make("h3", {}, run.label),
    facts([
      ["Test accuracy", best && percent(best.test)],
      ["Validation, training", best && `${percent(best.validation)}, ${percent(best.train)}`],
      ["Chosen", best && `learning rate ${best.lr}, trial ${best.trial + 1}, epoch ${best.epoch + 1}`],
      ["Mean of trials", mean && `${percent(mean.test)} ± ${mean.deviation.toFixed(2)} (${mean.trials} at rate ${mean.lr})`],
      ["Parameters", run.parameters.toLocaleString("en")],
      ["Data", `${data.source}: ${data.train} + ${data.validation} + ${data.test} images, ${data.fingerprint.slice(0, 12)}`],
      ["Trained", `${run.seconds} s on ${run.machine.device}, ${run.time}`],
      ["With", Object.entries(run.machine.versions ?? {}).map(([k, v]) => `${k} ${v}`).join(", ")],
      ["Notes", Object.entries(run.notes).map(([k, v]) => `${k}: ${v}`).join(", ")],
    ]),
    chart(run),
    replicas(run),
    make("details", { open: "" }, make("summary", {}, `Config, hash ${run.hash}`),
      make("pre", {}, make("code", {}, JSON.stringify(run.config, null, 2)))));
}

function openPanel() {
  if (!location.hash.startsWith("#runs/")) {
    if (panel.open) panel.close();
    return;
  }
  if (runs === null) return;  // it is called again
  const [source, ...hashes] = location.hash.slice("#runs/".length).split("/");
  const found = hashes.map((hash) => runs[`${source}/${hash}`]).filter(Boolean);
  const body = document.getElementById("panel-body"), title = document.getElementById("panel-title");
  title.textContent = found.length === 1 ? "One run" : `${found.length} runs, one a seed`;
  body.replaceChildren(...found.map(describe));
  if (!found.length) body.append(make("p", {}, "The page has no such run."));
  if (!panel.open) panel.showModal();
  panel.scrollTop = 0;
  title.focus();
}

panel.addEventListener("close", () => {
  if (location.hash.startsWith("#runs/")) history.replaceState(null, "", "#");
});
panel.addEventListener("click", (event) => { if (event.target === panel) panel.close(); });
document.getElementById("panel-close").addEventListener("click", () => panel.close());
window.addEventListener("hashchange", openPanel);
unpack().then(openPanel);
