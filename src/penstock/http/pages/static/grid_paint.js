// Paints the grid on a canvas as large as its viewport: cells, labels of customers and days, cursor and selection.
"use strict";
(() => {
  const grid = window.penstockGrid;
  const DAY = 86400000;
  const HEAD = 38; // CSS pixels of the labels of the days
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";

  /** The sizes of a cell in CSS pixels. A size below 1 merges cells into one pixel. */
  grid.SIZES = [1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 4, 6, 8, 12, 16, 24];

  grid.dayText = (day) => new Date(day * DAY).toISOString().slice(0, 10);
  grid.dayNumber = (text) => Date.parse(`${text}T00:00:00Z`) / DAY;

  const parts = (day) => {
    const date = new Date(day * DAY);
    return [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()];
  };
  const dayOf = (year, month) => Date.UTC(year, month, 1) / DAY;

  grid.Painter = class {
    constructor(canvas) {
      this.canvas = canvas;
      this.ctx = canvas.getContext("2d", { alpha: false });
      this.labelWidth = 0;
      this.forget();
      this.readTheme();
    }

    /** Forget what was made from the codes. */
    forget() {
      this.merged = new Map();
    }

    readTheme() {
      this.colours = grid.readColours();
      this.tiles = null;
      this.shortened = new Map();
    }

    resize(width, height) {
      const scale = window.devicePixelRatio || 1;
      if (this.width === width && this.height === height && this.scale === scale) return;
      [this.width, this.height, this.scale] = [width, height, scale];
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
      this.tiles = null;
      this.image = null;
    }

    /** The widest label decides the width of their column, within limits. */
    measureLabels(labels) {
      const isNarrow = this.width < 560;
      this.labels = labels;
      this.labelText = isNarrow ? (label) => label.id : (label) => (label.name ? `${label.id} ${label.name}` : label.id);
      const longest = labels.reduce((text, label) => (this.labelText(label).length > text.length ? this.labelText(label) : text), "");
      this.ctx.setTransform(1, 0, 0, 1, 0, 0);
      this.ctx.font = FONT;
      const most = Math.max(64, Math.min(260, this.width * 0.35));
      this.labelWidth = Math.ceil(Math.min(most, this.ctx.measureText(longest).width + 16));
      this.shortened = new Map();
    }

    /** The lengths of a zoom level in pixels of the device. */
    geometry(view) {
      const [sizeX, sizeY] = [grid.SIZES[view.zoomX], grid.SIZES[view.zoomY]];
      return {
        columnsEach: sizeX < 1 ? 1 / sizeX : 1,
        rowsEach: sizeY < 1 ? 1 / sizeY : 1,
        width: Math.max(1, Math.round(Math.max(1, sizeX) * this.scale)),
        height: Math.max(1, Math.round(Math.max(1, sizeY) * this.scale)),
        left: Math.round(this.labelWidth * this.scale),
        top: Math.round(HEAD * this.scale),
      };
    }

    paint(model, view, shown) {
      const { ctx, colours, scale } = this;
      const g = this.geometry(view);
      const [fromX, fromY] = [Math.round(view.left * scale), Math.round(view.top * scale)];
      this.paintCells(model, g, fromX, fromY);
      ctx.setTransform(1, 0, 0, 1, 0, 0);
      const place = (box) => this.place(box, g, fromX, fromY);
      ctx.save();
      ctx.beginPath();
      ctx.rect(g.left, g.top, this.canvas.width, this.canvas.height);
      ctx.clip();
      if (shown.selection) this.drawBox(place(shown.selection), colours.accent, 2 * scale, true);
      if (shown.hover) this.drawBox(place(shown.hover), colours.text, scale, false);
      if (shown.cursor) {
        this.drawBox(place(shown.cursor), colours.back, 4 * scale, false);
        this.drawBox(place(shown.cursor), colours.text, 2 * scale, false);
      }
      ctx.restore();
      ctx.setTransform(scale, 0, 0, scale, 0, 0);
      this.drawDays(model, g, fromX / scale);
      this.drawCustomers(model, g, fromY / scale, shown.cursor);
    }

    paintCells(model, g, fromX, fromY) {
      const width = Math.max(1, this.canvas.width - g.left);
      const height = Math.max(1, this.canvas.height - g.top);
      if (!this.image || this.image.width !== width || this.image.height !== height) {
        this.image = this.ctx.createImageData(width, height);
        this.pixels = new Uint32Array(this.image.data.buffer);
      }
      const wanted = `${g.width} ${g.height} ${model.highlighted}`;
      if (!this.tiles || this.tilesOf !== wanted) {
        this.tiles = grid.makeTiles(g.width, g.height, this.scale, this.colours, model.highlighted);
        this.tilesOf = wanted;
        this.background = this.oneColour(this.colours.soft);
      }
      const named = `${g.columnsEach} ${g.rowsEach} ${model.highlighted}`;
      if (!this.merged.has(named)) {
        if (this.merged.size > 6) this.merged.clear();
        this.merged.set(named, grid.mergeCells(model.codes, model.rows, model.columns, g.columnsEach, g.rowsEach, model.highlighted));
      }
      grid.fillPixels(this.pixels, width, height, this.merged.get(named), this.tiles, fromX, fromY, this.background);
      this.ctx.putImageData(this.image, g.left, g.top);
    }

    oneColour(colour) {
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = 1;
      const ctx = canvas.getContext("2d");
      ctx.fillStyle = colour;
      ctx.fillRect(0, 0, 1, 1);
      return new Uint32Array(ctx.getImageData(0, 0, 1, 1).data.buffer)[0];
    }

    /** The place of a rectangle of cells on the canvas; its ends are included. */
    place(box, g, fromX, fromY) {
      const x = (column) => g.left + Math.floor(column / g.columnsEach) * g.width - fromX;
      const y = (row) => g.top + Math.floor(row / g.rowsEach) * g.height - fromY;
      const [left, top] = [x(box.left), y(box.top)];
      return [left, top, x(box.right) + g.width - left, y(box.bottom) + g.height - top];
    }

    drawBox([left, top, width, height], colour, thickness, isFilled) {
      const { ctx, scale } = this;
      const least = Math.round(7 * scale); // a cell of one pixel would not be seen
      const [growX, growY] = [Math.max(0, least - width) / 2, Math.max(0, least - height) / 2];
      ctx.strokeStyle = ctx.fillStyle = colour;
      if (isFilled) {
        ctx.globalAlpha = 0.18;
        ctx.fillRect(left, top, width, height);
        ctx.globalAlpha = 1;
      }
      ctx.lineWidth = thickness;
      ctx.strokeRect(left - growX, top - growY, width + 2 * growX, height + 2 * growY);
    }

    drawDays(model, g, scrolled) {
      const { ctx, colours, width, labelWidth } = this;
      const each = g.width / this.scale / g.columnsEach;
      ctx.fillStyle = colours.soft;
      ctx.fillRect(0, 0, width, HEAD);
      ctx.font = FONT;
      ctx.textBaseline = "middle";
      const first = model.first + Math.max(0, Math.floor(scrolled / each));
      const last = Math.min(model.first + model.columns - 1, model.first + Math.ceil((scrolled + width - labelWidth) / each));
      const x = (day) => labelWidth + (day - model.first) * each - scrolled;
      const end = Math.min(width, x(last + 1));
      ctx.save();
      ctx.beginPath();
      ctx.rect(labelWidth, 0, width - labelWidth, HEAD);
      ctx.clip();
      const draw = (starts, y, colour, ticks) => this.drawStarts(starts, x, y, end, colour, ticks);
      const years = () => unitStarts(first, last, 12, (year) => String(year));
      if (each * 7 >= 24) {
        const step = each >= 20 ? 1 : each * 2 >= 24 ? 2 : 7;
        draw(unitStarts(first, last, 1, (year, month) => `${MONTHS[month]} ${year}`), 11, colours.text, HEAD);
        draw(dayStarts(first, last, step), 28, colours.faint, 0);
      } else if (each * 30 >= 28) {
        draw(years(), 11, colours.text, HEAD);
        draw(unitStarts(first, last, 1, (_, month) => MONTHS[month]), 28, colours.faint, 18);
      } else if (each * 91 >= 28) {
        draw(years(), 11, colours.text, HEAD);
        draw(unitStarts(first, last, 3, (_, month) => MONTHS[month]), 28, colours.faint, 18);
      } else {
        const step = [1, 2, 5, 10, 20, 50].find((count) => count * 365 * each >= 40) || 100;
        draw(unitStarts(first, last, 12 * step, (year) => String(year)), 20, colours.text, HEAD);
      }
      ctx.restore();
      ctx.fillStyle = colours.line;
      ctx.fillRect(0, HEAD - 1, width, 1);
    }

    /** Texts at the first day of units. The first text stays visible while its unit is. */
    drawStarts(starts, x, y, end, colour, tick) {
      const { ctx, colours, labelWidth } = this;
      starts.forEach(([day, text], number) => {
        const from = x(day);
        const to = number + 1 < starts.length ? x(starts[number + 1][0]) : end;
        if (tick) {
          ctx.fillStyle = colours.line;
          ctx.fillRect(Math.round(from), tick === HEAD ? 0 : 18, 1, HEAD);
        }
        const at = Math.max(from, labelWidth) + 3;
        if (at + ctx.measureText(text).width > to + (tick ? 0 : 4)) return;
        ctx.fillStyle = colour;
        ctx.fillText(text, at, y);
      });
    }

    drawCustomers(model, g, scrolled, cursor) {
      const { ctx, colours, height, labelWidth } = this;
      ctx.fillStyle = colours.soft;
      ctx.fillRect(0, HEAD, labelWidth, height - HEAD);
      const each = g.height / this.scale / g.rowsEach;
      const step = labelStep(15 / each);
      const first = Math.max(0, Math.floor(scrolled / each / step) * step);
      const last = Math.min(model.rows - 1, Math.ceil((scrolled + height - HEAD) / each));
      ctx.save();
      ctx.beginPath();
      ctx.rect(0, HEAD, labelWidth, height - HEAD);
      ctx.clip();
      ctx.font = FONT;
      ctx.textBaseline = "middle";
      for (let row = first; row <= last; row += step) {
        const middle = HEAD + row * each - scrolled + (step === 1 ? each / 2 : Math.min(each / 2, 7.5));
        ctx.fillStyle = cursor && cursor.top === row ? colours.accent : colours.text;
        ctx.fillText(this.shortLabel(row), 6, step === 1 ? middle : middle + 6);
        if (step > 1) {
          ctx.fillStyle = colours.line;
          ctx.fillRect(0, Math.round(HEAD + row * each - scrolled), labelWidth, 1);
        }
      }
      ctx.restore();
      ctx.fillStyle = colours.soft;
      ctx.fillRect(0, 0, labelWidth, HEAD - 1);
      ctx.fillStyle = colours.faint;
      ctx.fillText("Customer", 6, 28);
      ctx.fillStyle = colours.line;
      ctx.fillRect(labelWidth - 1, 0, 1, height);
    }

    shortLabel(row) {
      const known = this.shortened.get(row);
      if (known !== undefined) return known;
      if (this.shortened.size > 20000) this.shortened.clear();
      const most = this.labelWidth - 12;
      let text = this.labelText(this.labels[row]);
      if (this.ctx.measureText(text).width > most) {
        let [short, long] = [0, text.length];
        while (short < long) {
          const middle = (short + long + 1) >> 1;
          if (this.ctx.measureText(`${text.slice(0, middle)}…`).width <= most) short = middle;
          else long = middle - 1;
        }
        text = `${text.slice(0, short)}…`;
      }
      this.shortened.set(row, text);
      return text;
    }
  };
  grid.HEAD = HEAD;

  /** The smallest of 1, 2, 5, 10, 20, 50 ... that is not below `least`. */
  function labelStep(least) {
    for (let power = 1; ; power *= 10) {
      for (const digit of [1, 2, 5]) if (digit * power >= least) return digit * power;
    }
  }

  /** The first days of units of so many months that reach into the days from first to last, with their texts. */
  function unitStarts(first, last, months, text) {
    const [year, month] = parts(first);
    const found = [];
    for (let number = Math.floor((year * 12 + month) / months) * months; ; number += months) {
      const [inYear, inMonth] = [Math.floor(number / 12), number % 12];
      const day = dayOf(inYear, inMonth);
      if (day > last) return found;
      found.push([day, text(inYear, inMonth)]);
    }
  }

  /** Every day, every second one, or the days 1, 8, 15 and 22 of the month. */
  function dayStarts(first, last, step) {
    const found = [];
    for (let day = first; day <= last; day++) {
      const inMonth = parts(day)[2];
      if ((inMonth - 1) % step === 0 && (step === 1 || inMonth < 30)) found.push([day, String(inMonth)]);
    }
    return found;
  }
})();
