// Live data for the pages, which work without it. No dependency, no build step.
"use strict";
(() => {
  document.documentElement.classList.add("script");
  const SECONDS = 120, WIDTH = 640, HEIGHT = 180, LEFT = 44, TOP = 8, BOTTOM = 22;
  const LINES = [["allowed", "allowed"], ["denied", "denied"], ["shadowed", "shadow"], ["fail_open", "open"]];
  const MAX_GAP = 10000; // milliseconds without a sample, across which no line is drawn
  const SVG = "http://www.w3.org/2000/svg";
  const rate = (value) => value === 0 ? "0" : value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
  const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };

  function draw(svg, samples) {
    let top = 1;
    const most = Math.max(0, ...samples.flatMap((one) => LINES.map(([name]) => one[name])));
    outer: for (;; top *= 10) for (const factor of [2, 5, 10]) if (most <= top * factor) { top *= factor; break outer; }
    const now = samples[samples.length - 1].at;
    const add = (kind, attributes, text) => {
      const element = document.createElementNS(SVG, kind);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      if (text !== undefined) element.textContent = text;
      parts.push(element);
    };
    const parts = [];
    for (let step = 0; step < 3; step++) {
      const y = TOP + (HEIGHT - TOP - BOTTOM) * step / 2;
      add("line", {class: "grid", x1: LEFT, y1: y, x2: WIDTH, y2: y});
      const tick = top * (2 - step) / 2;
      add("text", {class: "axis", x: LEFT - 6, y: y + 4, "text-anchor": "end"}, tick >= 1000 ? tick / 1000 + " k" : String(tick));
    }
    for (const [name, style] of LINES) {
      const points = samples.map((one) => [
        WIDTH - (now - one.at) / 1000 / SECONDS * (WIDTH - LEFT),
        TOP + (HEIGHT - TOP - BOTTOM) * (1 - one[name] / top),
      ]).filter(([x]) => x >= LEFT);
      if (points.length < 2 || !samples.some((one) => one[name])) continue;
      const line = points.map(([x, y]) => x.toFixed(1) + "," + y.toFixed(1)).join(" ");
      const floor = HEIGHT - BOTTOM;
      add("polygon", {class: "area " + style, points: points[0][0].toFixed(1) + "," + floor + " " + line + " " + WIDTH + "," + floor});
      add("polyline", {class: "line " + style, points: line});
    }
    add("text", {class: "axis", x: LEFT, y: HEIGHT - 5, "text-anchor": "start"}, "2 min ago");
    add("text", {class: "axis", x: WIDTH, y: HEIGHT - 5, "text-anchor": "end"}, "now");
    svg.replaceChildren(...parts);
  }

  // A row for each rule of the sample that the page did not have when it was loaded; until the rule has no traffic.
  function addRules(rules) {
    const body = document.getElementById("rule-rows"), made = document.getElementById("rule-row");
    if (!body || !made) return;
    const shown = new Set();
    for (const row of [...body.rows])
      if ("added" in row.dataset && !Object.hasOwn(rules, row.dataset.rule)) row.remove(); else shown.add(row.dataset.rule);
    for (const name of Object.keys(rules)) {
      if (shown.has(name)) continue;
      const row = made.content.firstElementChild.cloneNode(true);
      row.dataset.rule = name;
      put(row.querySelector(".name"), name);
      body.append(row);
    }
    document.getElementById("rule-table").hidden = body.rows.length === 0;
    document.getElementById("no-rules").hidden = body.rows.length !== 0;
  }

  function live(url) {
    const state = document.getElementById("live-state"), chart = document.getElementById("live-chart");
    let samples = [], source = null, ended = false;
    const say = (text, on) => { if (state) { put(state, text); state.classList.toggle("on", on); } };

    function show(sample) {
      // A rule may be called "constructor".
      const rates = (rule) => Object.hasOwn(sample.rules, rule) ? sample.rules[rule] : [0, 0, 0];
      for (const element of document.querySelectorAll("[data-value]")) put(element, rate(sample[element.dataset.value]));
      for (const element of document.querySelectorAll("[data-rule-value]"))
        put(element, rate(rates(element.dataset.rule)[element.dataset.ruleValue]));
      addRules(sample.rules);
      for (const row of document.querySelectorAll("tr[data-rule]"))
        for (const cell of row.querySelectorAll("[data-rate]"))
          put(cell, rate(rates(row.dataset.rule)[cell.dataset.rate]));
      const banner = document.getElementById("store-banner"), stores = document.getElementById("store-state");
      if (banner) {
        banner.hidden = !sample.store.failing;
        put(document.getElementById("store-message"), sample.store.message);
      }
      if (stores) {
        put(stores, sample.store.failing ? "not answering" : "ok");
        stores.className = "tag " + (sample.store.failing ? "throttled" : "normal");
      }
      if (chart && samples.length > 1) draw(chart, samples);
    }

    function open() {
      if (source || ended || document.hidden) return;
      source = new EventSource(url);
      source.addEventListener("history", (event) => { samples = JSON.parse(event.data); say("live", true); });
      source.addEventListener("sample", (event) => {
        const sample = JSON.parse(event.data);
        samples.push(sample);
        const gap = samples.findLastIndex((one, index) => index > 0 && one.at - samples[index - 1].at > MAX_GAP);
        samples = samples.slice(Math.max(gap, 0)).filter((one) => one.at > sample.at - SECONDS * 1000);
        show(sample);
      });
      source.addEventListener("end", () => { ended = true; close("your session has ended: log in again"); });
      source.onerror = () => {
        say("connecting…", false);
        if (source && source.readyState === EventSource.CLOSED) { source = null; setTimeout(open, 10000); }
      };
    }
    function close(text) {
      if (source) source.close();
      source = null;
      say(text, false);
    }
    document.addEventListener("visibilitychange", () => document.hidden ? close("paused") : open());
    window.addEventListener("pagehide", () => close("paused"));
    window.addEventListener("pageshow", open);
    open();
  }

  // Counters of a subject: the same page again, every two seconds, as long as it is visible and not being used.
  function refresh(section) {
    setInterval(async () => {
      if (document.hidden || section.contains(document.activeElement)) return;
      try {
        const response = await fetch(location.pathname, {headers: {accept: "text/html"}});
        if (!response.ok || response.redirected) return;
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        const fresh = page.getElementById(section.id);
        if (fresh && !section.contains(document.activeElement)) section.replaceChildren(...fresh.childNodes);
        const banner = page.getElementById("store-banner"), shown = document.getElementById("store-banner");
        if (banner && shown) { shown.hidden = banner.hidden; shown.replaceChildren(...banner.childNodes); }
      } catch { /* the next one may do better */ }
    }, 2000);
  }

  // The limit in words, while it is typed.
  function sayLimit(form) {
    const output = document.getElementById("limit-words");
    let timer = 0;
    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(async () => {
        const query = new URLSearchParams();
        for (const name of ["limit", "window_seconds", "burst", "algorithm"]) query.set(name, form.elements[name].value);
        const response = await fetch("/dashboard/words?" + query);
        if (response.ok && !response.redirected) put(output, await response.text());
      }, 200);
    });
  }

  const start = () => {
    if (document.body.dataset.live) live(document.body.dataset.live);
    for (const section of document.querySelectorAll("[data-refresh]")) refresh(section);
    for (const form of document.querySelectorAll("form[data-words]")) sayLimit(form);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
})();
