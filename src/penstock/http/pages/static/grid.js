// The page of the grid: loads bytes and labels, filters and zooms, follows pointer and keys, and polls for changes.
"use strict";
(() => {
  const grid = window.penstockGrid;
  const by = (id) => document.getElementById(id);
  const [root, scroll, sizer, canvas] = ["grid", "grid-scroll", "grid-sizer", "grid-canvas"].map(by);
  const POLL = 5000; // milliseconds
  const LARGEST = grid.SIZES.length - 1;
  const PIXEL = grid.SIZES.indexOf(1); // from this zoom level on, a cell is one partition
  const painter = new grid.Painter(canvas);
  const view = { zoomX: LARGEST, zoomY: LARGEST, left: 0, top: 0 };
  const shown = { cursor: null, hover: null, selection: null };
  const model = {
    source: root.dataset.source, query: root.dataset.query, codes: new Uint8Array(), rows: 0, columns: 0, first: 0,
    labels: [], allRows: 0, highlighted: null, cells: [], order: [],
  };
  const loaded = { codes: null, labels: null, tag: null };
  let anchor = null; // where a selection by keys or pointer began
  let isAllSelected = false;

  for (const entry of root.querySelectorAll(".grid-entry")) {
    const { number, name, text, symbol, state, display } = entry.dataset;
    model.cells[Number(number)] = { name, text, symbol, state, display };
    model.order.push(Number(number));
  }

  // Loading

  const api = (path) => {
    const query = new URLSearchParams({ query: model.query });
    for (const name of ["since", "until"]) if (root.dataset[name]) query.set(name, root.dataset[name]);
    return `/api/v1/${path}?${query}`;
  };

  class Refused extends Error {}

  async function request(path, headers = {}) {
    const response = await fetch(api(path), { headers });
    if (response.status === 401) {
      location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
      throw new Refused("The session is over.");
    }
    if (response.status === 304 || response.ok) return response;
    const problem = await response.json().catch(() => null);
    const error = new Refused(problem?.detail || `The server answered with status ${response.status}.`);
    error.isEmpty = response.status === 400;
    throw error;
  }

  /** Load the codes and, if their layout is new, the labels. Returns false if nothing changed. */
  async function load() {
    const isFirst = !loaded.codes;
    const early = isFirst ? request("grid/labels").then((response) => response.json()) : null;
    early?.catch(() => {});
    const response = await request("grid", loaded.tag ? { "If-None-Match": loaded.tag } : {});
    if (response.status === 304) return false;
    const codes = new Uint8Array(await response.arrayBuffer());
    const layout = response.headers.get("Grid-Layout");
    let labels = isFirst ? await early : loaded.labels;
    if (labels.layout !== layout) labels = await (await request("grid/labels")).json();
    if (labels.layout !== layout) throw new Refused("The customers or days changed while the grid was loaded. It is loaded again.");
    Object.assign(loaded, { codes, labels, tag: response.headers.get("ETag") });
    return true;
  }

  async function refresh() {
    try {
      if (await load()) applyData();
      by("grid-notice").hidden = by("grid-empty").hidden = by("lost").hidden = true;
      root.hidden = false;
    } catch (error) {
      if (!(error instanceof Refused)) {
        by("lost").hidden = false;
      } else {
        const box = by(error.isEmpty && !loaded.codes ? "grid-empty" : "grid-notice");
        box.textContent = error.message;
        box.hidden = false;
      }
      root.hidden = !loaded.codes;
    }
  }

  let timer = null;
  async function poll() {
    clearTimeout(timer);
    if (!document.hidden) await refresh();
    clearTimeout(timer);
    timer = document.hidden ? null : setTimeout(poll, POLL);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });

  // Filters

  function applyData() {
    const { labels } = loaded;
    const before = { first: model.first, ids: model.labels };
    const isFirst = !model.allRows;
    model.first = grid.dayNumber(labels.first);
    model.columns = labels.days;
    model.allRows = labels.rows.length;
    root.hidden = false;
    filterRows();
    const isSame = before.first === model.first && before.ids.length === model.labels.length
      && before.ids.every((label, row) => label.id === model.labels[row].id);
    if (!isFirst && !isSame && shown.selection && !isAllSelected) {
      select(null);
      announce("The customers or days changed. The selection is cleared.");
    }
    layOut(isFirst);
    if (isAllSelected) selectAll();
    else if (shown.selection) select(shown.selection);
    if (isFirst) {
      paint();
      performance.mark("penstock:grid-painted");
      root.dataset.painted = "";
    }
  }

  /** Take the rows whose customer matches the filter. */
  function filterRows() {
    const { codes, labels } = loaded;
    const wanted = by("customer").value.trim().toLowerCase();
    const rows = [];
    labels.rows.forEach((row, number) => {
      if (!wanted || `${row.customer_id} ${row.name || ""}`.toLowerCase().includes(wanted)) rows.push(number);
    });
    model.labels = rows.map((row) => ({ id: labels.rows[row].customer_id, name: labels.rows[row].name || "" }));
    model.rows = rows.length;
    if (rows.length === model.allRows) {
      model.codes = codes;
    } else {
      model.codes = new Uint8Array(rows.length * model.columns);
      rows.forEach((row, at) => model.codes.set(codes.subarray(row * model.columns, (row + 1) * model.columns), at * model.columns));
    }
    painter.forget();
    highlight();
    const counts = grid.countCodes(model.codes, model.columns, 0, model.rows - 1, 0, model.columns - 1);
    for (const element of root.querySelectorAll("[data-count]")) element.textContent = counts[Number(element.dataset.count)].toLocaleString("en-US");
    const of = model.rows === model.allRows ? "" : ` of ${model.allRows.toLocaleString("en-US")}`;
    by("grid-shape").textContent = `${model.rows.toLocaleString("en-US")}${of} customers, ${grid.counted(model.columns, "day", "days")}: ${labels.first} to ${labels.last}`;
    shown.hover = null;
    if (!model.rows) shown.cursor = null;
    else if (shown.cursor) moveTo(shown.cursor.top, shown.cursor.left);
  }

  function highlight() {
    const wanted = by("status").value;
    const code = model.order.find((one) => model.cells[one].name && model.cells[one].name === wanted);
    model.highlighted = code === undefined ? null : code;
    for (const button of root.querySelectorAll("button.grid-entry")) {
      button.setAttribute("aria-pressed", String(button.dataset.name === wanted));
    }
  }

  function keepInUrl() {
    const query = new URLSearchParams(location.search);
    for (const name of ["customer", "status"]) {
      const value = by(name).value.trim();
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  }

  function changeFilters(rowsChanged) {
    keepInUrl();
    if (!loaded.codes) return;
    if (rowsChanged) {
      if (!isAllSelected) select(null);
      shown.cursor = null;
      filterRows();
      layOut(false);
    } else {
      highlight();
    }
    if (isAllSelected) selectAll();
    else if (shown.selection) select(shown.selection);
    requestPaint();
  }

  // View

  function contentSize() {
    const g = painter.geometry(view);
    return [
      painter.labelWidth + (Math.ceil(model.columns / g.columnsEach) * g.width) / painter.scale,
      grid.HEAD + (Math.ceil(model.rows / g.rowsEach) * g.height) / painter.scale,
    ];
  }

  /** Fit the canvas and the scrolled area to the page and the data. */
  function layOut(isFirst) {
    const bar = scroll.offsetHeight - scroll.clientHeight;
    scroll.style.height = `${grid.HEAD + Math.max(1, model.rows) * grid.SIZES[LARGEST] + bar}px`;
    painter.resize(scroll.clientWidth, scroll.clientHeight);
    painter.measureLabels(model.labels);
    if (isFirst) fit(PIXEL);
    resizeContent();
    if (isFirst) scroll.scrollLeft = scroll.scrollWidth;
    readScroll();
    for (const key of root.querySelectorAll(".grid-key")) {
      grid.drawCell(key.getContext("2d"), Number(key.dataset.code), key.width, key.height, 1.5, painter.colours, false);
    }
    requestPaint();
  }

  function resizeContent() {
    const [width, height] = contentSize();
    sizer.style.width = `${Math.ceil(width)}px`;
    sizer.style.height = `${Math.ceil(height)}px`;
  }

  function readScroll() {
    view.left = scroll.scrollLeft;
    view.top = scroll.scrollTop;
  }

  /** The largest zoom level, of each axis, at which everything is visible; not below `least`. */
  function fit(least) {
    const fitting = (count, room) => {
      let zoom = LARGEST;
      while (zoom > least && Math.ceil(count * grid.SIZES[zoom]) > room) zoom--;
      return zoom;
    };
    view.zoomX = fitting(model.columns, scroll.clientWidth - painter.labelWidth);
    view.zoomY = fitting(model.rows, scroll.clientHeight - grid.HEAD);
  }

  /** Change the zoom levels; the cell at this point of the canvas stays where it is. */
  function zoomTo(change, x, y) {
    const old = painter.geometry(view);
    const column = ((view.left + x - painter.labelWidth) * painter.scale * old.columnsEach) / old.width;
    const row = ((view.top + y - grid.HEAD) * painter.scale * old.rowsEach) / old.height;
    change();
    const g = painter.geometry(view);
    resizeContent();
    scroll.scrollLeft = (column * g.width) / g.columnsEach / painter.scale - (x - painter.labelWidth);
    scroll.scrollTop = (row * g.height) / g.rowsEach / painter.scale - (y - grid.HEAD);
    readScroll();
    hideTip();
    requestPaint();
  }

  function zoomBy(step, x, y) {
    zoomTo(() => {
      for (const axis of ["zoomX", "zoomY"]) view[axis] = Math.max(0, Math.min(LARGEST, view[axis] + step));
    }, x, y);
  }

  const middle = () => {
    const box = shown.cursor && document.activeElement === canvas ? placeOnPage(shown.cursor) : null;
    return box ? [box.x, box.y] : [(painter.labelWidth + painter.width) / 2, (grid.HEAD + painter.height) / 2];
  };

  let isRequested = false;
  function requestPaint() {
    if (isRequested) return;
    isRequested = true;
    requestAnimationFrame(() => {
      isRequested = false;
      paint();
    });
  }

  function paint() {
    if (!loaded.codes || !painter.width) return;
    painter.paint(model, view, { ...shown, cursor: document.activeElement === canvas ? shown.cursor : null });
  }

  // Cells

  const boxOf = (row, column) => ({ top: row, bottom: row, left: column, right: column });

  /** The cell at a point of the canvas; null outside of the cells. */
  function cellAt(x, y) {
    if (x < painter.labelWidth || y < grid.HEAD) return null;
    readScroll();
    const g = painter.geometry(view);
    const column = Math.floor(((x - painter.labelWidth + view.left) * painter.scale) / g.width) * g.columnsEach;
    const row = Math.floor(((y - grid.HEAD + view.top) * painter.scale) / g.height) * g.rowsEach;
    if (column >= model.columns || row >= model.rows) return null;
    const [right, bottom] = [Math.min(model.columns, column + g.columnsEach) - 1, Math.min(model.rows, row + g.rowsEach) - 1];
    return { top: row, bottom, left: column, right };
  }

  const isOne = (box) => box.top === box.bottom && box.left === box.right;
  const codeAt = (row, column) => model.codes[row * model.columns + column];

  function describe(box) {
    const label = model.labels[box.top];
    if (isOne(box)) {
      const cell = model.cells[codeAt(box.top, box.left)];
      return [`${label.id}${label.name ? ` ${label.name}` : ""}`, grid.dayText(model.first + box.left), `${cell.symbol} ${cell.text}`];
    }
    const counts = grid.countCodes(model.codes, model.columns, box.top, box.bottom, box.left, box.right);
    const last = model.labels[box.bottom];
    const lines = [
      box.top === box.bottom ? label.id : `${label.id} to ${last.id}`,
      `${grid.dayText(model.first + box.left)} to ${grid.dayText(model.first + box.right)}`,
    ];
    for (const code of model.order) if (counts[code]) lines.push(`${model.cells[code].symbol} ${model.cells[code].text}: ${counts[code].toLocaleString("en-US")}`);
    return lines;
  }

  const pathOf = (row, column) => `/partitions/${[
    model.source, model.labels[row].id, model.query, grid.dayText(model.first + column),
  ].map(encodeURIComponent).join("/")}`;

  function open(row, column, inNewTab) {
    if (!codeAt(row, column)) {
      announce("This partition is not expected: it has no page.");
    } else if (inNewTab) {
      window.open(pathOf(row, column), "_blank", "noopener");
    } else {
      location.assign(pathOf(row, column));
    }
  }

  // Tooltip and live region

  let [waiting, lastSaid] = [null, 0];
  function announce(text) {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      lastSaid = Date.now();
      by("grid-live").textContent = text;
    }, Math.max(0, 500 - (Date.now() - lastSaid)));
  }

  function showTip(box, x, y) {
    const tip = by("grid-tip");
    const lines = describe(box);
    tip.replaceChildren(...lines.map((text) => {
      const line = document.createElement("div");
      line.textContent = text;
      return line;
    }));
    tip.hidden = false;
    const frame = canvas.getBoundingClientRect();
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    const left = frame.left + x + 14;
    const top = frame.top + y + 18;
    tip.style.left = `${Math.max(4, left + width > innerWidth - 4 ? frame.left + x - width - 10 : left)}px`;
    tip.style.top = `${Math.max(4, top + height > innerHeight - 4 ? frame.top + y - height - 10 : top)}px`;
    announce(lines.join(", "));
  }

  function hideTip() {
    by("grid-tip").hidden = true;
    shown.hover = null;
  }

  // Selection

  function select(box) {
    isAllSelected = false;
    shown.selection = box;
    const sentence = grid.showSelection(model, box);
    if (sentence) announce(sentence);
    requestPaint();
  }

  function selectAll() {
    if (!model.rows) return;
    select({ top: 0, left: 0, bottom: model.rows - 1, right: model.columns - 1 });
    isAllSelected = true;
  }

  function clearSelection() {
    anchor = null;
    select(null);
    announce("Nothing is selected.");
  }

  const around = (a, b) => ({
    top: Math.min(a.top, b.top), bottom: Math.max(a.bottom, b.bottom), left: Math.min(a.left, b.left), right: Math.max(a.right, b.right),
  });

  // Pointer

  let drag = null;
  const pointOf = (event) => {
    const frame = canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const dragPans = () => by("grid-pan").getAttribute("aria-pressed") === "true";

  function setPanning(pans) {
    by("grid-pan").setAttribute("aria-pressed", String(pans));
    canvas.classList.toggle("grid-panning", pans);
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 1) return;
    const [x, y] = pointOf(event);
    const pans = event.button === 1 || event.shiftKey || dragPans();
    if (event.button === 1) event.preventDefault();
    drag = { x, y, pans, button: event.button, moved: false, from: cellAt(x, y), left: view.left, top: view.top };
    if (event.pointerType !== "touch" || !pans) canvas.setPointerCapture(event.pointerId);
  });

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = pointOf(event);
    if (drag) {
      if (!drag.moved && Math.hypot(x - drag.x, y - drag.y) < 5) return;
      drag.moved = true;
      hideTip();
      if (drag.pans) {
        if (event.pointerType === "touch") return; // the browser scrolls
        scroll.scrollLeft = drag.left + drag.x - x;
        scroll.scrollTop = drag.top + drag.y - y;
      } else if (drag.from) {
        scrollAtEdge(x, y);
        const to = cellAt(
          Math.min(Math.max(x, painter.labelWidth), painter.width - 1, lastPixel(0)),
          Math.min(Math.max(y, grid.HEAD), painter.height - 1, lastPixel(1)),
        );
        if (to) select(around(drag.from, to));
      }
      return;
    }
    pointed = [x, y];
    hoverAt(x, y);
  });

  let pointed = null; // the place of the pointer over the canvas
  function hoverAt(x, y) {
    const box = cellAt(x, y);
    shown.hover = box;
    canvas.classList.toggle("grid-pointing", Boolean(box));
    if (box) showTip(box, x, y);
    else hideTip();
    requestPaint();
  }

  /** The last point of the cells on the canvas, by axis. */
  const lastPixel = (axis) => contentSize()[axis] - (axis ? view.top : view.left) - 0.5;

  function scrollAtEdge(x, y) {
    const edge = 12;
    if (x > painter.width - edge) scroll.scrollLeft += 16;
    if (x < painter.labelWidth + edge) scroll.scrollLeft -= 16;
    if (y > painter.height - edge) scroll.scrollTop += 16;
    if (y < grid.HEAD + edge) scroll.scrollTop -= 16;
    readScroll();
  }

  canvas.addEventListener("pointerup", (event) => {
    const ended = drag;
    drag = null;
    if (!ended || ended.moved || !ended.from) return;
    const box = ended.from;
    shown.cursor = boxOf(box.top, box.left);
    requestPaint();
    if (!isOne(box)) zoomBy(2, ended.x, ended.y);
    else if (!event.shiftKey) open(box.top, box.left, ended.button === 1 || event.ctrlKey || event.metaKey);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => {
    pointed = null;
    if (!drag) hideTip();
    requestPaint();
  });

  let still = null;
  scroll.addEventListener("scroll", () => {
    readScroll();
    if (shown.hover) hideTip();
    clearTimeout(still);
    still = setTimeout(() => { if (pointed && !drag) hoverAt(...pointed); }, 120);
    requestPaint();
  }, { passive: true });

  let turned = 0; // a touchpad sends many small events
  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    turned = Math.sign(turned) === Math.sign(event.deltaY) ? turned + event.deltaY : event.deltaY;
    if (Math.abs(turned) < 30) return;
    zoomBy(turned < 0 ? 1 : -1, ...pointOf(event));
    turned = 0;
  }, { passive: false });

  // Keyboard

  /** The centre and the size of a rectangle of cells, in CSS pixels of the canvas. */
  function placeOnPage(box) {
    readScroll();
    const g = painter.geometry(view);
    const [left, top, width, height] = painter.place(box, g, Math.round(view.left * painter.scale), Math.round(view.top * painter.scale));
    return { x: (left + width / 2) / painter.scale, y: (top + height / 2) / painter.scale, width: width / painter.scale, height: height / painter.scale };
  }

  grid.placeOnPage = placeOnPage;

  function moveTo(row, column) {
    shown.cursor = boxOf(Math.max(0, Math.min(model.rows - 1, row)), Math.max(0, Math.min(model.columns - 1, column)));
  }

  /** Scroll so that the cursor is visible. */
  function reveal() {
    const place = placeOnPage(shown.cursor);
    const [left, top] = [place.x - place.width / 2, place.y - place.height / 2];
    if (left < painter.labelWidth) scroll.scrollLeft += left - painter.labelWidth;
    if (left + place.width > painter.width) scroll.scrollLeft += left + place.width - painter.width;
    if (top < grid.HEAD) scroll.scrollTop += top - grid.HEAD;
    if (top + place.height > painter.height) scroll.scrollTop += top + place.height - painter.height;
    readScroll();
    const after = placeOnPage(shown.cursor);
    showTip(shown.cursor, after.x, after.y);
  }

  function visibleRows() {
    const g = painter.geometry(view);
    return Math.max(1, Math.floor((((painter.height - grid.HEAD) * painter.scale) / g.height) * g.rowsEach) - 1);
  }

  /** How far a key moves the cursor: rows and columns. */
  function movement(event) {
    const g = painter.geometry(view);
    const far = event.ctrlKey || event.metaKey;
    switch (event.key) {
      case "ArrowUp": return [far ? -10 * g.rowsEach : -g.rowsEach, 0];
      case "ArrowDown": return [far ? 10 * g.rowsEach : g.rowsEach, 0];
      case "ArrowLeft": return [0, far ? -7 * g.columnsEach : -g.columnsEach];
      case "ArrowRight": return [0, far ? 7 * g.columnsEach : g.columnsEach];
      case "PageUp": return [-visibleRows(), 0];
      case "PageDown": return [visibleRows(), 0];
      case "Home": return [far ? -model.rows : 0, -model.columns];
      case "End": return [far ? model.rows : 0, model.columns];
      default: return null;
    }
  }

  canvas.addEventListener("keydown", (event) => {
    if (!model.rows || event.altKey) return;
    const cursor = shown.cursor || (cellAt(painter.labelWidth + 1, grid.HEAD + 1) ?? boxOf(0, 0));
    const move = movement(event);
    if (move) {
      const start = boxOf(cursor.top, cursor.left);
      moveTo(cursor.top + move[0], cursor.left + move[1]);
      if (event.shiftKey) {
        anchor ??= start;
        select(around(anchor, shown.cursor));
      } else {
        anchor = null;
      }
      reveal();
    } else if (event.key === "Enter") {
      open(cursor.top, cursor.left, event.ctrlKey || event.metaKey);
    } else if (event.key === " ") {
      anchor = boxOf(cursor.top, cursor.left);
      select(anchor);
    } else if (event.key === "Escape") {
      hideTip();
      clearSelection();
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      if (event.ctrlKey || event.metaKey) return; // the zoom of the browser
      zoomBy(event.key === "-" ? -1 : 1, ...middle());
    } else if (event.key === "0" && !event.ctrlKey && !event.metaKey) {
      zoomTo(() => fit(0), ...middle());
    } else if (event.key === "1" && !event.ctrlKey && !event.metaKey) {
      zoomToDays();
    } else if (event.key.toLowerCase() === "a" && (event.ctrlKey || event.metaKey)) {
      selectAll();
    } else {
      return;
    }
    event.preventDefault();
    requestPaint();
  });

  canvas.addEventListener("focus", () => {
    if (model.rows && !shown.cursor && canvas.matches(":focus-visible")) {
      const first = cellAt(painter.labelWidth + 1, grid.HEAD + 1) ?? boxOf(0, 0);
      moveTo(first.top, first.left);
      reveal();
    }
    requestPaint();
  });
  canvas.addEventListener("blur", () => {
    hideTip();
    requestPaint();
  });

  // Buttons, filters, theme

  function zoomToDays() {
    zoomTo(() => { view.zoomX = view.zoomY = LARGEST; }, ...middle());
  }
  by("grid-in").addEventListener("click", () => zoomBy(1, ...middle()));
  by("grid-out").addEventListener("click", () => zoomBy(-1, ...middle()));
  by("grid-fit").addEventListener("click", () => zoomTo(() => fit(0), ...middle()));
  by("grid-days").addEventListener("click", zoomToDays);
  by("grid-all").addEventListener("click", selectAll);
  by("grid-clear").addEventListener("click", clearSelection);
  by("grid-pan").addEventListener("click", () => setPanning(!dragPans()));
  setPanning(matchMedia("(pointer: coarse)").matches);

  for (const button of root.querySelectorAll("button.grid-entry")) {
    button.addEventListener("click", () => {
      by("status").value = button.getAttribute("aria-pressed") === "true" ? "" : button.dataset.name;
      changeFilters(false);
    });
  }
  let typing = null;
  by("customer").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => changeFilters(true), 150);
  });
  by("status").addEventListener("change", () => changeFilters(false));

  const changeTheme = () => {
    painter.readTheme();
    if (loaded.codes) layOut(false);
  };
  document.addEventListener("penstock:theme", changeTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changeTheme);
  new ResizeObserver(() => { if (loaded.codes && !root.hidden) layOut(false); }).observe(scroll);

  // A page from the history of the browser shows the filters of its address.
  const address = new URLSearchParams(location.search);
  for (const name of ["customer", "status"]) by(name).value = address.get(name) || "";
  poll();
})();
