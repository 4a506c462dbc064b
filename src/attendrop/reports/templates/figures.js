"use strict";
// Tells the values of figures: of the mark next to the pointer, or by the arrow keys on a focused figure.
(() => {
  const NEAR = 26; // pixels

  for (const picture of document.querySelectorAll(".picture")) {
    const svg = picture.querySelector("svg");
    const marks = [...svg.querySelectorAll(".mark")];
    if (marks.length === 0) continue;
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    tip.setAttribute("role", "status");
    picture.append(tip);
    for (const mark of marks) {
      const title = mark.querySelector("title");
      mark.dataset.text = title.textContent;
      title.remove(); // otherwise the browser shows it as well
    }
    let current = -1;

    const place = (mark) => {
      const box = mark.getBoundingClientRect();
      const frame = picture.getBoundingClientRect();
      return [box.left + box.width / 2 - frame.left, box.top + box.height / 2 - frame.top];
    };

    const show = (index) => {
      if (current >= 0) marks[current].classList.remove("current");
      current = index;
      tip.hidden = index < 0;
      if (index < 0) return;
      marks[index].classList.add("current");
      tip.textContent = marks[index].dataset.text;
      const [x, y] = place(marks[index]);
      tip.style.left = "0"; // its width must not depend on its last place
      const left = Math.min(Math.max(x - tip.offsetWidth / 2, 0), picture.clientWidth - tip.offsetWidth);
      tip.style.left = `${Math.max(left, 0)}px`;
      tip.style.top = `${y - tip.offsetHeight - 10 < 0 ? y + 12 : y - tip.offsetHeight - 10}px`;
    };

    const nearest = (event) => {
      const frame = picture.getBoundingClientRect();
      let best = -1;
      let least = NEAR;
      marks.forEach((mark, index) => {
        const [x, y] = place(mark);
        const distance = Math.hypot(x - event.clientX + frame.left, y - event.clientY + frame.top);
        if (distance < least) [best, least] = [index, distance];
      });
      return best;
    };

    svg.addEventListener("pointermove", (event) => show(nearest(event)));
    svg.addEventListener("pointerdown", (event) => show(nearest(event)));
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") show(-1); });
    svg.addEventListener("blur", () => show(-1));
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") show(-1);
      if (step === undefined) return;
      event.preventDefault();
      show(current < 0 ? (step > 0 ? 0 : marks.length - 1) : (current + step + marks.length) % marks.length);
    });
  }
})();
