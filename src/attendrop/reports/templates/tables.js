"use strict";
// Makes each table of class "sortable" sortable by its columns, and gives it a filter.
(() => {
  const compare = (a, b, isNumber, direction) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // unknown values stay last
    const order = isNumber ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
    return direction * order;
  };

  const sort = (table, index) => {
    const head = table.tHead.rows[0].cells[index];
    const isNumber = head.classList.contains("number");
    const before = head.getAttribute("aria-sort");
    // The first press puts the highest number, or the first name, on top.
    const direction = before === null ? (isNumber ? -1 : 1) : before === "ascending" ? -1 : 1;
    for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(a.cells[index].dataset.value, b.cells[index].dataset.value, isNumber, direction));
    table.tBodies[0].append(...rows);
  };

  const filter = (table, text, count) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) {
      const content = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => content.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = shown === rows.length ? `${rows.length} rows` : `${shown} of ${rows.length} rows`;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((cell, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = cell.textContent;
      button.addEventListener("click", () => sort(table, index));
      cell.replaceChildren(button);
    });
    const controls = document.createElement("div");
    const label = document.createElement("label");
    const input = document.createElement("input");
    const count = document.createElement("output");
    controls.className = "controls";
    input.type = "search";
    input.setAttribute("aria-controls", table.id);
    count.className = "muted";
    label.append("Filter ", input);
    controls.append(label, count);
    table.parentElement.before(controls);
    input.addEventListener("input", () => filter(table, input.value, count));
    filter(table, "", count);
  }
})();
