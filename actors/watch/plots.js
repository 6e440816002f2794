// Curves over steps: hover for values, smoothing and a logarithmic axis by the controls above them.
const COLORS = ["#2e86ab", "#d66e14", "#1e8232", "#823ca0", "#a02a2a", "#666666"];
const [W, H, L, R, B, T] = [520, 230, 64, 12, 24, 10];
const settings = { smooth: 0, log: false, at: null };
// Round values between two, about `count` of them: 1, 2 or 5 times a power of ten apart.
const ticks = (from, to, count, whole) => {
  const least = (to - from) / count, power = 10 ** Math.floor(Math.log10(least));
  const apart = Math.max([1, 2, 5, 10].map(m => m * power).find(s => s >= least * 0.999), whole ? 1 : 0), values = [];
  for (let i = Math.ceil(from / apart - 1e-6); i * apart <= to + apart * 1e-6 && values.length < 100; i++) values.push(+(i * apart).toPrecision(12));
  return values;
};
// 1, 2 and 5 of each power of ten; where these are few, round values.
const logTicks = (from, to) => {
  const values = [];
  for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power++)
    for (const m of to / from > 1e4 ? [1] : [1, 2, 5]) values.push(+(m * 10 ** power).toPrecision(3));
  const inside = values.filter(v => v >= from && v <= to);
  return inside.length > 1 ? inside : ticks(from, to, 4).filter(v => v > 0);
};
const label = v => v !== 0 && Math.abs(v) < 1e-3 ? (+v.toPrecision(4)).toExponential() : short(v);
// An exponential mean, unbiased at its beginning.
const smoothed = points => {
  const keep = settings.smooth;
  let sum = 0, weight = 0;
  return keep === 0 ? points : points.map(([x, y]) => {
    sum = keep * sum + (1 - keep) * y;
    weight = keep * weight + (1 - keep);
    return [x, sum / weight];
  });
};
const nearest = (points, x) => points.reduce((best, p) => Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best);

// Draws `curves`, each { name, points, dots }, into the element of this id; hides its section where there is nothing. `exact`: neither
// smoothing nor a logarithmic axis; `unit`: ticks are round in it; `first`: the color of the first curve.
function plot(place, curves, { format = label, exact = false, unit = 1, first = 0 } = {}) {
  const log = settings.log && !exact;
  const box = document.getElementById(place), usable = p => p[1] != null && (!log || p[1] > 0);
  curves = curves.map((curve, i) => ({ ...curve, color: COLORS[(first + i) % COLORS.length], points: curve.points.filter(usable) }));
  const all = curves.flatMap(curve => curve.points);
  box.parentElement.hidden = all.length < 2;
  if (all.length < 2) return;
  const least = i => all.reduce((a, p) => Math.min(a, p[i]), Infinity), most = i => all.reduce((a, p) => Math.max(a, p[i]), -Infinity);
  const [x0, x1] = [least(0), most(0)];
  let [y0, y1] = [least(1), most(1)];
  // What differs by the rounding of means alone is one value: between two such there are no round ones.
  if (y1 - y0 <= 1e-12 * Math.max(Math.abs(y0), Math.abs(y1))) [y0, y1] = log ? [y0 / 2, y1 * 2] : [y0 - 0.5, y1 + 0.5];
  const scale = log ? Math.log : v => v;
  const X = x => L + (x - x0) / (x1 - x0 || 1) * (W - L - R), Y = y => H - B - (scale(y) - scale(y0)) / (scale(y1) - scale(y0)) * (H - B - T);
  const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, "font-size": 11, role: "img", class: "plot" });
  for (const y of log ? logTicks(y0, y1) : ticks(y0 / unit, y1 / unit, 5).map(y => y * unit)) {
    svg.append(draw("line", { x1: L, x2: W - R, y1: Y(y), y2: Y(y), stroke: "#eee" }));
    svg.append(draw("text", { x: L - 6, y: Y(y) + 4, "text-anchor": "end", fill: "#666" }, format(y)));
  }
  for (const x of ticks(x0, x1, 8, true)) {
    svg.append(draw("line", { x1: X(x), x2: X(x), y1: H - B, y2: H - B + 4, stroke: "#999" }));
    svg.append(draw("text", { x: X(x), y: H - 6, "text-anchor": "middle", fill: "#666" }, short(x)));
  }
  const line = (points, stroke, opacity) => svg.append(draw("polyline", { points: points.map(p => X(p[0]).toFixed(1) + "," + Y(p[1]).toFixed(1)).join(" "), fill: "none", stroke, "stroke-width": 1.5, opacity }));
  for (const curve of curves) {
    const mean = curve.dots || exact ? curve.points : smoothed(curve.points);
    if (mean !== curve.points) line(curve.points, curve.color, 0.25);
    line(mean, curve.color, 1);
    if (curve.dots) for (const p of curve.points) svg.append(draw("circle", { cx: X(p[0]), cy: Y(p[1]), r: 2.5, fill: curve.color }));
    curve.mean = mean;
  }
  const shown = curves.filter(curve => curve.points.length);
  const rule = draw("line", { y1: T, y2: H - B, stroke: "#999", "stroke-dasharray": "3 3", visibility: "hidden" });
  svg.append(rule);
  const legend = document.createElement("div");
  legend.className = "legend";
  // The names of the curves, and what each is at the step that is pointed at, or at its last one.
  const tell = at => {
    rule.setAttribute("visibility", at == null ? "hidden" : "visible");
    if (at != null) rule.setAttribute("x1", X(at)), rule.setAttribute("x2", X(at));
    const step = at == null ? x1 : at;
    legend.replaceChildren(document.createTextNode("step " + step), ...shown.map(curve => {
      const one = document.createElement("span"), mark = document.createElement("i"), found = nearest(curve.mean, step);
      mark.style.background = curve.color;
      one.append(mark, `${curve.name} ${format(found[1])}` + (found[0] === step ? "" : ` (step ${found[0]})`));
      return one;
    }));
  };
  svg.addEventListener("pointermove", event => {
    const area = svg.getBoundingClientRect(), x = (event.clientX - area.left) / area.width * W;
    const wanted = x0 + (x - L) / (W - L - R) * (x1 - x0);
    settings.at = nearest(shown[0].points, Math.min(Math.max(wanted, x0), x1))[0];
    tell(settings.at);
  });
  svg.addEventListener("pointerleave", () => tell(settings.at = null));
  tell(settings.at != null && settings.at >= x0 && settings.at <= x1 ? settings.at : null);
  box.replaceChildren(legend, svg);
}

// Remembers smoothing and axis in this browser, where it may.
function control(changed) {
  const store = { get: key => { try { return localStorage.getItem(key); } catch { return null; } }, set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* not kept */ } } };
  const smooth = document.getElementById("smooth"), log = document.getElementById("log");
  smooth.value = store.get("loongforge.smooth") || "0";
  log.checked = store.get("loongforge.log") === "true";
  const apply = () => {
    settings.smooth = Number(smooth.value);
    settings.log = log.checked;
    document.getElementById("smoothing").textContent = settings.smooth.toFixed(2);
    store.set("loongforge.smooth", smooth.value);
    store.set("loongforge.log", String(log.checked));
    changed();
  };
  smooth.addEventListener("input", apply);
  log.addEventListener("change", apply);
  apply();
}
