// The cells of the grid: their colours, their patterns, and merged cells for small zoom levels.
"use strict";
window.penstockGrid = (() => {
  const CODES = 7;
  // By code, see /api/v1/grid/labels: the worst status of merged cells wins.
  const SEVERITY = [0, 4, 1, 3, 2, 5, 6];
  const GAP_FROM = 4; // CSS pixels: from this size on, a line separates cells
  const PATTERN_FROM = 8; // CSS pixels: from this size on, cells have a pattern

  // The lines and dots of a code in a square from 0 to 1.
  const PATTERNS = {
    1: (ctx) => { ctx.beginPath(); ctx.arc(0.5, 0.5, 0.26, 0, 7); ctx.stroke(); },
    3: (ctx) => line(ctx, [[0, 0.5, 0.5, 0], [0, 1, 1, 0], [0.5, 1, 1, 0.5]]),
    4: (ctx) => { for (const [x, y] of [[0.27, 0.27], [0.73, 0.27], [0.27, 0.73], [0.73, 0.73]]) dot(ctx, x, y); },
    5: (ctx) => line(ctx, [[0.33, 0, 0.33, 1], [0.67, 0, 0.67, 1], [0, 0.33, 1, 0.33], [0, 0.67, 1, 0.67]]),
    6: (ctx) => line(ctx, [[0.2, 0.2, 0.8, 0.8], [0.8, 0.2, 0.2, 0.8]]),
  };

  function line(ctx, lines) {
    ctx.beginPath();
    for (const [x0, y0, x1, y1] of lines) { ctx.moveTo(x0, y0); ctx.lineTo(x1, y1); }
    ctx.stroke();
  }

  function dot(ctx, x, y) {
    ctx.beginPath();
    ctx.arc(x, y, 0.13, 0, 7);
    ctx.fill();
  }

  /** The colours of the theme: `cells` and `inks` by code, and those of the frame. */
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const codes = [...Array(CODES).keys()];
    return {
      cells: codes.map((code) => read(`--cell-${code}`)),
      inks: codes.map((code) => read(`--ink-${code}`)),
      back: read("--back"), soft: read("--soft"), line: read("--line"), text: read("--text"), faint: read("--faint"),
      accent: read("--accent"),
    };
  }

  /** Draw one cell: its colour, its pattern if there is room, and the line to the next cells. */
  function drawCell(ctx, code, width, height, scale, colours, dimmed) {
    const size = Math.min(width, height);
    const gap = size >= GAP_FROM * scale ? Math.max(1, Math.round(scale)) : 0;
    ctx.globalAlpha = 1;
    ctx.fillStyle = colours.back;
    ctx.fillRect(0, 0, width, height);
    ctx.globalAlpha = dimmed ? 0.18 : 1;
    ctx.fillStyle = colours.cells[code];
    ctx.fillRect(0, 0, width - gap, height - gap);
    const pattern = PATTERNS[code];
    if (pattern && size >= PATTERN_FROM * scale) {
      const side = size - gap;
      ctx.save();
      ctx.beginPath();
      ctx.rect(0, 0, width - gap, height - gap);
      ctx.clip();
      ctx.translate((width - gap - side) / 2, (height - gap - side) / 2);
      ctx.scale(side, side);
      ctx.lineWidth = Math.max(0.1, scale / side);
      ctx.strokeStyle = ctx.fillStyle = colours.inks[code];
      pattern(ctx);
      ctx.restore();
    }
    ctx.globalAlpha = 1;
  }

  /** The pixels of one cell of each code, one after the other, and whether all lines of a cell are equal. */
  function makeTiles(width, height, scale, colours, highlighted) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height];
    const ctx = canvas.getContext("2d", { willReadFrequently: true });
    const area = width * height;
    const pixels = new Uint32Array(area * CODES);
    for (let code = 0; code < CODES; code++) {
      drawCell(ctx, code, width, height, scale, colours, highlighted !== null && code !== highlighted);
      pixels.set(new Uint32Array(ctx.getImageData(0, 0, width, height).data.buffer), code * area);
    }
    return { width, height, area, pixels, isUniform: Math.min(width, height) < GAP_FROM * scale };
  }

  /** Merge so many columns and rows into one cell. The worst code wins; a highlighted code is the worst. */
  function mergeCells(codes, rows, columns, columnsEach, rowsEach, highlighted) {
    if (columnsEach === 1 && rowsEach === 1) return { codes, rows, columns };
    const rank = SEVERITY.slice();
    if (highlighted !== null) rank[highlighted] = CODES;
    const width = Math.ceil(columns / columnsEach);
    const height = Math.ceil(rows / rowsEach);
    const merged = new Uint8Array(width * height);
    for (let row = 0, at = 0; row < rows; row++) {
      const base = Math.floor(row / rowsEach) * width;
      for (let target = base, left = columnsEach, column = 0; column < columns; column++) {
        const code = codes[at++];
        if (rank[code] > rank[merged[target]]) merged[target] = code;
        if (--left === 0) { target++; left = columnsEach; }
      }
    }
    return { codes: merged, rows: height, columns: width };
  }

  /** Fill the pixels of a viewport with cells, from a place in the grid on. All lengths are pixels of the device. */
  function fillPixels(pixels, width, height, cells, tiles, fromX, fromY, background) {
    const { codes, rows, columns } = cells;
    const firstColumn = Math.floor(fromX / tiles.width);
    const used = Math.max(0, Math.min(width, columns * tiles.width - fromX));
    for (let y = 0; y < height; y++) {
      const at = y * width;
      const row = Math.floor((fromY + y) / tiles.height);
      if (row >= rows) {
        pixels.fill(background, at);
        return;
      }
      const inTile = (fromY + y) % tiles.height;
      if (y > 0 && inTile > 0 && tiles.isUniform) {
        pixels.copyWithin(at, at - width, at);
        continue;
      }
      const base = row * columns;
      let to = at;
      const end = at + used;
      if (tiles.width === 1) {
        const shift = inTile;
        for (let from = base + fromX; to < end; ) pixels[to++] = tiles.pixels[codes[from++] * tiles.area + shift];
      } else {
        let column = firstColumn;
        let x = fromX % tiles.width;
        while (to < end) {
          let from = codes[base + column++] * tiles.area + inTile * tiles.width + x;
          const stop = Math.min(end, to + tiles.width - x);
          while (to < stop) pixels[to++] = tiles.pixels[from++];
          x = 0;
        }
      }
      if (used < width) pixels.fill(background, end, at + width);
    }
  }

  /** The number of cells of each code in a rectangle; `to` is included. */
  function countCodes(codes, columns, top, bottom, left, right) {
    const counts = new Array(CODES).fill(0);
    for (let row = top; row <= bottom; row++) {
      for (let at = row * columns + left, end = row * columns + right; at <= end; at++) counts[codes[at]]++;
    }
    return counts;
  }

  return { readColours, drawCell, makeTiles, mergeCells, fillPixels, countCodes };
})();
