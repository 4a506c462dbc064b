"use strict";
// Attention viewers: every element of class attention-viewer shows the data that its data-source names.
(() => {
  const SMALLEST_CELL = 11, LARGEST_CELL = 34, LONGEST_LABEL = 110, FONT_SIZE = 12;

  function bytes(text) {
    return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  }

  function bit(packed, index) {
    return (packed[index >> 3] >> (7 - (index & 7))) & 1;
  }

  // Reads the maps of one layer; see attention_maps.py for the format.
  function decode(layer, tokens) {
    if (layer.decoded) return layer.decoded;
    const attention = bytes(layer.attention), attribution = bytes(layer.attribution);
    const dropped = layer.dropped && bytes(layer.dropped), hidden = layer.hidden && bytes(layer.hidden);
    const size = tokens * tokens;
    layer.decoded = {
      heads: layer.heads,
      weight: (head, cell) => (attention[head * size + cell] / 255) ** 2,
      // Strengths of colours: in [0, 1], and in [-1, 1].
      shade: (head, cell) => attention[head * size + cell] / 255,
      relative: (head, cell) => (attribution[head * size + cell] - 128) / 127,
      value: (head, cell) => {
        const code = (attribution[head * size + cell] - 128) / 127;
        return Math.sign(code) * code * code * layer.scale[head];
      },
      dropped: (head, cell) => (dropped ? bit(dropped, head * size + cell) === 1 : false),
      hidden: (cell) => (hidden ? bit(hidden, cell) === 1 : false),
      drops: Boolean(dropped),
    };
    return layer.decoded;
  }

  function colour(name) {
    const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    probe.fillStyle = getComputedStyle(viewers[0].root).getPropertyValue(name).trim();
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
  }

  function mix(from, to, share) {
    return from.map((part, i) => Math.round(part + (to[i] - part) * share));
  }

  function css(rgb) {
    return `rgb(${rgb.join(",")})`;
  }

  function number(value) {
    if (value === 0) return "0";
    return Math.abs(value) >= 0.001 ? value.toFixed(3) : value.toExponential(1);
  }

  class Viewer {
    constructor(root) {
      this.root = root;
      this.data = JSON.parse(document.getElementById(root.dataset.source).textContent);
      this.state = { text: 0, layer: 0, head: 0, query: 0, key: 0, shows: "attention", crosses: true };
      this.panels = [...root.querySelectorAll(".panel")].map((panel) => this.panel(panel));
      this.controls = {};
      for (const name of ["text", "layer", "head", "query", "crosses", "note", "table"]) {
        this.controls[name] = root.querySelector(`[data-role="${name}"]`);
      }
      for (const name of ["text", "layer", "head", "query"]) {
        this.controls[name].addEventListener("change", (event) => this.set({ [name]: Number(event.target.value) }));
      }
      if (this.controls.crosses) {
        this.controls.crosses.addEventListener("change", (event) => this.set({ crosses: event.target.checked }));
      }
      this.buttons = [...root.querySelectorAll("[data-shows]")];
      for (const button of this.buttons) {
        button.addEventListener("click", () => this.set({ shows: button.dataset.shows }));
      }
      root.querySelector(".rows").addEventListener("toggle", () => this.table());
      new ResizeObserver(() => this.draw()).observe(root.querySelector('[data-role="panels"]'));
    }

    panel(element) {
      const find = (role) => element.querySelector(`[data-role="${role}"]`);
      const panel = {};
      for (const role of ["map", "overview", "prediction", "legend", "readout"]) panel[role] = find(role);
      panel.map.addEventListener("keydown", (event) => this.press(event));
      panel.map.addEventListener("click", (event) => {
        const place = this.cellAt(panel, event);
        if (place) this.set(place);
      });
      panel.overview.addEventListener("click", (event) => {
        const { step, left } = panel.thumbs;
        const layer = Math.floor(event.offsetY / step), head = Math.floor((event.offsetX - left) / step);
        if (head >= 0 && layer < this.layers.length && head < this.layers[layer].heads) this.set({ layer, head });
      });
      element.querySelector("details").addEventListener("toggle", () => this.draw());
      return panel;
    }

    // What is shown ----------------------------------------------------------------------------------------------

    get text() {
      return this.data.texts[this.state.text];
    }

    get tokens() {
      return this.text.stages[0].tokens;
    }

    get layers() {
      return this.text.stages[0].layers;
    }

    maps(stage) {
      return decode(this.text.stages[stage].layers[this.state.layer], this.tokens.length);
    }

    set(changes) {
      const state = Object.assign(this.state, changes), last = this.tokens.length - 1;
      state.layer = Math.min(Math.max(state.layer, 0), this.layers.length - 1);
      state.head = Math.min(Math.max(state.head, 0), this.layers[state.layer].heads - 1);
      state.query = Math.min(Math.max(state.query, 0), last);
      state.key = Math.min(Math.max(state.key, 0), last);
      this.update();
    }

    press(event) {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const move = moves[event.key];
      if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      const { layer, head, query, key } = this.state;
      if (event.shiftKey) this.set({ query: query + move[0], key: key + move[1] });
      else this.set({ layer: layer + move[0], head: head + move[1] });
    }

    cellAt(panel, event) {
      const { left, top, cell } = panel.frame;
      const key = Math.floor((event.offsetX - left) / cell), query = Math.floor((event.offsetY - top) / cell);
      const inside = Math.min(key, query) >= 0 && Math.max(key, query) < this.tokens.length;
      return inside ? { query, key } : null;
    }

    update() {
      const { layer, head, query, text, shows } = this.state;
      fill(this.controls.head, Array.from({ length: this.layers[layer].heads }, (_, i) => String(i)), head);
      fill(this.controls.query, this.tokens.map((token, i) => `${i + 1}. ${token}`), query);
      this.controls.text.value = String(text);
      this.controls.note.textContent = this.text.note;
      this.controls.note.hidden = !this.text.note;
      this.controls.layer.value = String(layer);
      for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.shows === shows));
      this.panels.forEach((panel, stage) => this.describe(panel, stage));
      this.table();
      this.draw();
      this.panels.forEach((panel) => this.reveal(panel));
    }

    // Scrolls the chosen position into view; the map of a long text is larger than its box.
    reveal(panel) {
      const { left, top, cell } = panel.frame, { query, key } = this.state, box = panel.map.parentElement;
      const near = (scrolled, size, at) => Math.min(Math.max(scrolled, at + 2 * cell - size), at - cell);
      box.scrollLeft = near(box.scrollLeft, box.clientWidth, left + key * cell);
      box.scrollTop = near(box.scrollTop, box.clientHeight, top + query * cell);
    }

    describe(panel, stage) {
      const { head, query, key, layer } = this.state, { tokens } = this, maps = this.maps(stage);
      const cell = query * tokens.length + key, found = this.text.stages[stage];
      const name = this.layers[layer].key;
      const inData = this.text.label === null ? "" : `; in the data: ${this.text.label}`;
      panel.prediction.textContent = `Prediction: ${found.prediction}${inData}`;
      const where = `layer ${name}, head ${head}`;
      panel.map.setAttribute("aria-label", `Map of ${where}, ${tokens.length} tokens. ${this.data.stages[stage].name}.`);
      const parts = [["b", tokens[query]], ["", " → "], ["b", tokens[key]], ["", ` (${where}): `]];
      if (maps.hidden(cell)) parts.push(["", "hidden by the model's mask."]);
      else {
        parts.push(["", `attention ${number(maps.weight(head, cell))}, attribution ${number(maps.value(head, cell))}`]);
        parts.push(maps.dropped(head, cell) ? ["dropped", ", dropped."] : ["", "."]);
      }
      if (maps.drops) {
        let dropped = 0, possible = 0;
        for (let i = 0; i < tokens.length ** 2; i++) {
          possible += maps.hidden(i) ? 0 : 1;
          dropped += maps.dropped(head, i) ? 1 : 0;
        }
        const share = possible ? (100 * dropped) / possible : 0;
        parts.push(["", ` In this head ${dropped} of ${possible} positions are dropped (${share.toFixed(0)} %).`]);
      }
      panel.readout.replaceChildren(...parts.map(([kind, text]) => node(kind, text)));
    }

    table() {
      if (!this.controls.table.closest("details").open) return;
      const { head, query, layer } = this.state, { tokens } = this;
      const at = (key) => query * tokens.length + key, groups = [];
      const columns = this.data.stages.flatMap((stage, i) => {
        const maps = this.maps(i), hidden = (key, shown) => (maps.hidden(at(key)) ? "hidden" : number(shown));
        const found = [
          ["attention", (key) => hidden(key, maps.weight(head, at(key)))],
          ["attribution", (key) => hidden(key, maps.value(head, at(key)))],
        ];
        if (maps.drops) found.push(["dropped", (key) => (maps.dropped(head, at(key)) ? "dropped" : "")]);
        groups.push([stage.name, found.length]);
        return found;
      });
      const table = document.createElement("table"), body = document.createElement("tbody");
      const caption = `Layer ${this.layers[layer].key}, head ${head}: from “${tokens[query]}” to each token`;
      table.append(node("caption", caption), document.createElement("thead"), body);
      if (groups.length > 1) {
        const above = row(["", ...groups.map(([name]) => name)], "colgroup");
        groups.forEach(([, span], i) => (above.cells[i + 1].colSpan = span));
        table.tHead.append(above);
      }
      table.tHead.append(row(["token", ...columns.map(([name]) => name)], "col"));
      tokens.forEach((token, key) => body.append(row([token, ...columns.map(([, value]) => value(key))], "row")));
      this.controls.table.replaceChildren(...table.childNodes);
    }

    // Drawing ----------------------------------------------------------------------------------------------------

    draw() {
      this.colours = {};
      for (const name of ["background", "surface", "text", "accent", "weight", "positive", "negative", "line"]) {
        this.colours[name] = colour(`--${name}`);
      }
      this.panels.forEach((panel, stage) => {
        this.drawMap(panel, stage);
        this.drawOverview(panel, stage);
        this.drawLegend(panel, stage);
      });
    }

    paint(maps, head, cell) {
      const { background, surface, weight, positive, negative } = this.colours;
      if (maps.hidden(cell)) return surface;
      if (this.state.shows === "attention") return mix(background, weight, maps.shade(head, cell));
      const relative = maps.relative(head, cell);
      return mix(background, relative > 0 ? positive : negative, Math.abs(relative));
    }

    drawMap(panel, stage) {
      const { tokens } = this, maps = this.maps(stage), { head, query, key, crosses } = this.state;
      const count = tokens.length, family = getComputedStyle(document.body).fontFamily;
      const measure = panel.map.getContext("2d");
      measure.font = `bold ${FONT_SIZE}px ${family}`;
      const widest = Math.max(...tokens.map((token) => measure.measureText(token).width));
      const label = Math.min(LONGEST_LABEL, Math.ceil(widest)) + 8;
      const room = panel.map.parentElement.clientWidth - 8 - label;
      const cell = Math.min(LARGEST_CELL, Math.max(SMALLEST_CELL, Math.floor(room / count)));
      panel.frame = { left: label, top: label, cell };
      const font = `${Math.min(FONT_SIZE, cell - 1)}px ${family}`;
      const brush = sized(panel.map, label + count * cell + 1, label + count * cell + 1);
      const { text, background, accent, line } = this.colours;
      brush.font = font;
      brush.textBaseline = "middle";
      tokens.forEach((token, i) => {
        const shown = clipped(brush, token, label - 8);
        brush.fillStyle = css(text);
        brush.textAlign = "right";
        brush.font = i === query ? `bold ${font}` : font;
        brush.fillText(shown, label - 6, label + (i + 0.5) * cell);
        brush.save();
        brush.translate(label + (i + 0.5) * cell, label - 6);
        brush.rotate(-Math.PI / 2);
        brush.textAlign = "left";
        brush.font = i === key ? `bold ${font}` : font;
        brush.fillText(shown, 0, 0);
        brush.restore();
      });
      for (let i = 0; i < count * count; i++) {
        const x = label + (i % count) * cell, y = label + Math.floor(i / count) * cell;
        brush.fillStyle = css(this.paint(maps, head, i));
        brush.fillRect(x, y, cell, cell);
        if (cell > 13 && !maps.hidden(i)) {
          brush.strokeStyle = css(line);
          brush.lineWidth = 0.5;
          brush.strokeRect(x + 0.25, y + 0.25, cell, cell);
        }
      }
      for (let i = 0; crosses && i < count * count; i++) {
        if (!maps.dropped(head, i)) continue;
        const x = label + (i % count) * cell, y = label + Math.floor(i / count) * cell;
        cross(brush, x, y, cell, css(background), css(text));
      }
      brush.strokeStyle = css(line);
      brush.lineWidth = 1;
      brush.strokeRect(label - 0.5, label - 0.5, count * cell + 1, count * cell + 1);
      brush.strokeStyle = css(accent);
      brush.lineWidth = 2;
      brush.strokeRect(label + key * cell, label + query * cell, cell, cell);
    }

    drawOverview(panel, stage) {
      const { layers, tokens } = this, heads = Math.max(...layers.map((layer) => layer.heads)), left = 26, gap = 3;
      const room = panel.overview.parentElement.clientWidth - 8 - left;
      if (room < 0) return; // closed
      const step = Math.min(48, Math.max(14, Math.floor(room / heads)));
      panel.thumbs = { step, left };
      const brush = sized(panel.overview, left + heads * step, layers.length * step);
      const small = document.createElement("canvas");
      small.width = small.height = tokens.length;
      const dots = small.getContext("2d");
      layers.forEach((_, layer) => {
        const maps = decode(this.text.stages[stage].layers[layer], tokens.length);
        brush.fillStyle = css(this.colours.text);
        brush.font = `${FONT_SIZE}px ${getComputedStyle(document.body).fontFamily}`;
        brush.textBaseline = "middle";
        brush.fillText(layers[layer].key.split(".").pop(), 2, (layer + 0.5) * step);
        for (let head = 0; head < maps.heads; head++) {
          const image = dots.createImageData(tokens.length, tokens.length);
          for (let i = 0; i < tokens.length ** 2; i++) {
            const shade = this.paint(maps, head, i);
            const drop = this.state.crosses && maps.dropped(head, i);
            image.data.set([...(drop ? mix(shade, this.colours.text, 0.4) : shade), 255], 4 * i);
          }
          dots.putImageData(image, 0, 0);
          const x = left + head * step, y = layer * step;
          brush.imageSmoothingEnabled = tokens.length > step - gap;
          brush.drawImage(small, x + 1, y + 1, step - gap, step - gap);
          const chosen = layer === this.state.layer && head === this.state.head;
          brush.strokeStyle = css(chosen ? this.colours.accent : this.colours.line);
          brush.lineWidth = chosen ? 2.5 : 1;
          brush.strokeRect(x + 1, y + 1, step - gap, step - gap);
        }
      });
    }

    drawLegend(panel, stage) {
      const { background, weight, positive, negative, text } = this.colours, maps = this.maps(stage);
      const steps = this.state.shows === "attention"
        ? [0, 0.05, 0.25, 1].map((value) => [mix(background, weight, Math.sqrt(value)), String(value)])
        : [[negative, "lowers the prediction's score"], [background, "0"], [positive, "raises it"]];
      const found = steps.map(([rgb, name]) => {
        const item = node("span", ""), swatch = document.createElement("i");
        swatch.style.background = css(rgb);
        item.append(swatch, name);
        return item;
      });
      if (maps.drops && this.state.crosses) found.push(node("span", "× dropped"));
      panel.legend.replaceChildren(...found);
      panel.legend.style.color = css(text);
    }
  }

  function fill(select, names, chosen) {
    const options = names.map((name, i) => new Option(name, String(i)));
    select.replaceChildren(...options);
    select.value = String(chosen);
  }

  function node(kind, text) {
    if (kind === "") return document.createTextNode(text);
    const element = document.createElement(kind === "dropped" ? "span" : kind);
    if (kind === "dropped") element.className = kind;
    element.textContent = text;
    return element;
  }

  function row(values, scope) {
    const found = document.createElement("tr");
    values.forEach((value, i) => {
      const cell = document.createElement(scope !== "row" || i === 0 ? "th" : "td");
      if (cell.tagName === "TH") cell.scope = scope;
      if (i > 0) cell.className = "number";
      cell.textContent = value;
      found.append(cell);
    });
    return found;
  }

  function sized(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const brush = canvas.getContext("2d");
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    return brush;
  }

  function clipped(brush, text, width) {
    let shown = text;
    while (shown && brush.measureText(shown + "…").width > width) shown = shown.slice(0, -1);
    return brush.measureText(text).width <= width ? text : shown + "…";
  }

  function cross(brush, x, y, cell, halo, stroke) {
    const inset = Math.max(2.5, cell * 0.25);
    for (const [style, width] of [[halo, 4], [stroke, 1.75]]) {
      brush.strokeStyle = style;
      brush.lineWidth = cell < 16 ? width * 0.75 : width;
      brush.beginPath();
      brush.moveTo(x + inset, y + inset);
      brush.lineTo(x + cell - inset, y + cell - inset);
      brush.moveTo(x + cell - inset, y + inset);
      brush.lineTo(x + inset, y + cell - inset);
      brush.stroke();
    }
  }

  const viewers = [];
  for (const root of document.querySelectorAll(".attention-viewer")) {
    viewers.push(new Viewer(root));
    viewers.at(-1).update();
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => viewers.forEach((v) => v.draw()));
})();
