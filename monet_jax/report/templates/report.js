"use strict";
// Pointing at a chart names the value there, and its line; a table is sorted by a click on a head.
//
// A chart's data: `samples` are [run, phase, stage, op]; `bands` are [kind, start, stop, nbytes,
// title, module, source], both ends included, and lie in their order on each other; `rest` is, for
// each kind and sample, what has no band; `fixed` lies under all.
(() => {
  const { charts, layers, titles } = JSON.parse(document.getElementById("mj-data").textContent);
  const tip = document.querySelector(".mj-tip");
  const phases = { forward: "forward", again: "forward, run again", backward: "backward" };

  function size(nbytes) {
    if (nbytes < 1024) return `${nbytes} B`;
    let unit = "";
    for (unit of ["KiB", "MiB", "GiB", "TiB"]) {
      nbytes /= 1024;
      if (nbytes < 1023.95) break;
    }
    return `${nbytes.toFixed(1)} ${unit}`;
  }

  // What lies at a sample, from the bottom: [kind, nbytes, band or null].
  function stack(data, m) {
    const found = [[layers[0], data.fixed, null]];
    for (const kind of layers.slice(1)) {
      for (const band of data.bands)
        if (band[0] === kind && band[1] <= m && m <= band[2]) found.push([kind, band[3], band]);
      found.push([kind, (data.rest[kind] || [])[m] || 0, null]);
    }
    return found;
  }

  function pick(data, m, nbytes) {
    let low = 0;
    for (const [kind, high, band] of stack(data, m)) {
      if (nbytes < low + high) return { kind, nbytes: high, band };
      low += high;
    }
    return null;
  }

  function total(data, m) {
    return stack(data, m).reduce((sum, part) => sum + part[1], 0);
  }

  function outline(data, band) {
    const step = data.runs / data.samples.length;
    const there = [], back = [];
    for (let m = band[1]; m <= band[2]; m++) {
      let low = 0;
      for (const part of stack(data, m)) {
        if (part[2] === band) break;
        low += part[1];
      }
      const y = (b) => (1000 * (1 - b / data.top)).toFixed(1);
      there.push(`${m * step},${y(low + band[3])}`, `${(m + 1) * step},${y(low + band[3])}`);
      back.push(`${m * step},${y(low)}`, `${(m + 1) * step},${y(low)}`);
    }
    back.reverse();
    for (let i = 0; i + 1 < back.length; i += 2) [back[i], back[i + 1]] = [back[i], back[i + 1]];
    return `M${there.join("L")}L${back.join("L")}Z`;
  }

  function line(text, tag = "div") {
    const element = document.createElement(tag);
    element.textContent = text;
    return element;
  }

  function describe(data, m, found) {
    const parts = [];
    if (found) {
      const head = line(found.band ? found.band[4] : `${titles[found.kind]}`, "b");
      const swatch = document.createElement("span");
      swatch.className = `mj-swatch mj-${found.kind}`;
      head.prepend(swatch);
      parts.push(head);
      const small = found.band || found.kind === layers[0] ? "" : "small values, ";
      parts.push(line(`${small}${titles[found.kind]}: ${size(found.nbytes)}`));
      if (found.band && found.band[5]) parts.push(line(found.band[5]));
      if (found.band && found.band[6]) parts.push(line(found.band[6]));
    }
    const [run, phase, stage, op] = data.samples[m];
    const where = `run ${run + 1} of ${data.runs}: ${op}, ${phases[phase]} of stage ${stage}`;
    parts.push(line(`${size(total(data, m))} in memory at ${where}`));
    return parts;
  }

  function show(figure, data, m, found, x, y) {
    const step = data.runs / data.samples.length;
    figure.querySelector(".mj-cursor").setAttribute("d", `M${(m + 0.5) * step},0V1000`);
    const path = found && found.band ? outline(data, found.band) : "";
    figure.querySelector(".mj-picked").setAttribute("d", path);
    tip.replaceChildren(...describe(data, m, found));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
    tip.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
    tip.style.top = `${y + 18 + height > innerHeight ? y - 14 - height : y + 18}px`;
  }

  function hide(figure) {
    tip.hidden = true;
    for (const name of [".mj-cursor", ".mj-picked"])
      figure.querySelector(name).setAttribute("d", "");
  }

  const rows = [...document.querySelectorAll("#values tbody tr")];

  // The row of the value that was clicked on.
  function mark(found) {
    const name = found && found.band ? found.band[4].split(":")[0] : "";
    for (const row of rows)
      row.classList.toggle("mj-marked", row.dataset.names.split(" ").includes(name) && name !== "");
    const row = rows.find((row) => row.classList.contains("mj-marked"));
    if (row) row.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  const search = document.getElementById("mj-search");
  const decision = document.getElementById("mj-decision");
  function filter() {
    const text = search.value.toLowerCase(), wanted = decision ? decision.value : "";
    for (const row of rows) {
      const named = `${row.textContent} ${row.dataset.names}`.toLowerCase();
      row.hidden = !named.includes(text) || (wanted !== "" && row.dataset.decision !== wanted);
    }
    const count = rows.filter((row) => !row.hidden).length;
    document.getElementById("mj-found").textContent = text || wanted ? `${count} rows` : "";
  }
  for (const control of [search, decision]) if (control) control.addEventListener("input", filter);

  for (const figure of document.querySelectorAll("[data-chart]")) {
    const data = charts[figure.dataset.chart], plot = figure.querySelector(".mj-plot");
    let at = 0;
    const sample = (share) => Math.floor((share * data.across * data.samples.length) / data.runs);
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const m = sample((event.clientX - box.left) / box.width);
      if (m < 0 || m >= data.samples.length) return hide(figure);
      at = m;
      const nbytes = data.top * (1 - (event.clientY - box.top) / box.height);
      show(figure, data, m, pick(data, m, nbytes), event.clientX, event.clientY);
    });
    plot.addEventListener("click", (event) => {
      const box = plot.getBoundingClientRect();
      const m = sample((event.clientX - box.left) / box.width);
      if (m < 0 || m >= data.samples.length) return;
      mark(pick(data, m, data.top * (1 - (event.clientY - box.top) / box.height)));
    });
    plot.addEventListener("pointerleave", () => hide(figure));
    plot.addEventListener("blur", () => hide(figure));
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      at = Math.max(0, Math.min(data.samples.length - 1, at + step));
      const box = plot.getBoundingClientRect();
      const across = ((at + 0.5) * data.runs) / data.samples.length / data.across;
      const top = total(data, at) / data.top;
      show(figure, data, at, null, box.left + across * box.width, box.bottom - top * box.height);
    });
  }

  for (const head of document.querySelectorAll("th button")) {
    head.addEventListener("click", () => {
      const cell = head.parentElement, body = cell.closest("table").tBodies[0];
      const n = cell.cellIndex, isNumber = cell.classList.contains("mj-number");
      const down = cell.ariaSort ? cell.ariaSort === "ascending" : isNumber;
      for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
      cell.ariaSort = down ? "descending" : "ascending";
      const key = (row) => row.cells[n].dataset.key ?? row.cells[n].textContent;
      const order = (a, b) =>
        isNumber ? key(a) - key(b) : key(a).localeCompare(key(b), "en", { numeric: true });
      const rows = [...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
      body.append(...rows);
    });
  }
})();
