// Fills the menu of versions from versions.js, which `python -m tools.docs --publish` writes beside the pages.
document.addEventListener("DOMContentLoaded", () => {
  const menu = document.getElementById("version-menu");
  const versions = window.CRESTGATE_VERSIONS || [];
  if (!menu || versions.length === 0) return;
  menu.replaceChildren(...versions.map((name) => new Option(name, name, false, name === menu.dataset.version)));
  menu.addEventListener("change", () => {
    // The start page, because another version need not have this one.
    window.location.href = `${menu.dataset.root}../${menu.value}/index.html`;
  });
});
