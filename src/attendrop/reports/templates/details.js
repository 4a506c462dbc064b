"use strict";
// Opens what a link within the page leads to.
(() => {
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    if (target && target.tagName === "DETAILS") {
      target.scrollIntoView();
      target.querySelector("summary").focus({ preventScroll: true });
    }
  };
  addEventListener("hashchange", open);
  // A second click on a link changes no hash.
  addEventListener("click", (event) => event.target.closest("a[href^='#']") && setTimeout(open));
  if (location.hash) open();
})();
