const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const names = runs.map((run) => run.summary.name);
const perStep = (run) => run.tokens_per_step;

// The run's name in the colour of its curves.
function name(i) {
  return make("span", {}, make("span", { class: "swatch", style: `background:${colour(i)}` }), names[i]);
}

// A row of a number of each run; the lowest loss stands out, where losses can be compared.
function row(label, values, format, lowest) {
  const least = lowest && data.same_data ? Math.min(...values.filter(isNumber)) : NaN;
  return [
    label,
    ...values.map((value) =>
      make(
        "td",
        { class: value === least ? "number best" : "number" },
        value === null || value === undefined ? "-" : format(value),
      ),
    ),
  ];
}

const head = () => ["", ...runs.map((_, i) => name(i))];
const four = (x) => fixed(x, 4);

// What the runs came to: a name, a value of each run's summary, how it is written, whether the lowest stands out.
const SUMS = [
  ["state", (s) => s.state, String],
  ["best validation loss", (s) => s.best && s.best.loss, four, true],
  ["at step", (s) => s.best && s.best.step, String],
  ["bits per byte", (s) => s.best && s.best.bits_per_byte, (x) => fixed(x, 3), true],
  ["last training loss", (s) => s.train_loss, four],
  ["steps", (s) => s.steps, String],
  ["tokens", (s) => s.tokens, short],
  ["tokens per second", (s) => s.tokens_per_s, short],
  ["training time", (s) => s.training_seconds, duration],
  ["parameters", (s) => s.parameters, short],
  ["trained parameters", (s) => s.trained_parameters, short],
  ["device", (s) => s.device, String],
  ["precision", (s) => s.precision, String],
];

function heading() {
  const of = (get) => runs.map((run) => get(run.summary));
  const rows = SUMS.map(([label, get, format, lowest]) => row(label, of(get), format, lowest));
  const note = "The runs learned from different text or with different tokenizers: their losses cannot be compared.";
  return [
    make("h1", {}, `${runs.length} runs compared`),
    data.same_data ? null : make("p", { class: "alert" }, note),
    table(head(), rows, (i) => i > 0),
  ].filter(Boolean);
}

function charts() {
  const axes = Object.keys(AXES).filter((name) => name !== "tokens" || runs.every(perStep));
  const all = [];
  const { bar, values } = controls(
    [
      { name: "axis", label: "over", choices: axes, value: "step" },
      { name: "xLog", label: "logarithmic axis", value: false },
      { name: "yLog", label: "logarithmic loss", value: false },
      { name: "smooth", label: "smoothed", value: true },
    ],
    () => all.forEach((chart) => chart.paint()),
  );
  const axis = () => AXES[values.axis];
  const add = (title, pick, { dots, isLoss = true, yFormat } = {}) => {
    const added = chart(() => ({
      title: typeof title === "function" ? title() : title,
      height: 300,
      xName: axis().name,
      xFormat: axis().format,
      xTick: axis().tick,
      xLog: values.xLog,
      series: runs.map((run, i) => ({
        name: names[i],
        x: axis().of(pick(run.series), perStep(run)),
        y: pick(run.series).values,
        colour: colour(i),
        dots,
      })),
      yLog: values.yLog && isLoss,
      yFormat: yFormat || (isLoss ? four : number),
      yTick: yFormat || number,
    }));
    all.push(added);
    return added.figure;
  };
  return [
    bar,
    make("h2", {}, "Validation loss"),
    add("", (s) => s.validation, { dots: true }),
    make("h2", {}, "Training loss"),
    add(
      () => (values.smooth ? "smoothed" : ""),
      (s) => (values.smooth ? s.smoothed : s.train),
    ),
    make("h2", {}, "Learning rate and speed"),
    make(
      "div",
      { class: "small-charts" },
      add("learning rate", (s) => s.learning_rate, { isLoss: false }),
      add("tokens per second", (s) => s.tokens_per_s, { isLoss: false, yFormat: short }),
    ),
    thinned(runs.flatMap((run) => Object.values(run.series))),
  ];
}

function equal() {
  if (data.equal.length === 0) return [];
  const shown = {
    step: (x) => `at step ${Math.round(x)}`,
    tokens: (x) => `at ${short(x)} tokens`,
    seconds: (x) => `after ${duration(x)} of training`,
  };
  const rows = data.equal.map((e) =>
    row(`${e.loss === "train" ? "smoothed training" : e.loss} loss ${shown[e.axis](e.at)}`, e.losses, four, true),
  );
  return [
    make("h2", {}, "Where all have come equally far"),
    table(head(), rows, (i) => i > 0),
    make("p", { class: "note" }, "Validation losses are interpolated between evaluations."),
  ];
}

function settings() {
  const rows = data.config.map((d) => [
    make("td", {}, make("code", {}, d.key)),
    ...d.values.map((value) => make("td", { class: "number" }, value === null ? "-" : value)),
  ]);
  const all = rows.length > 0 ? table(head(), rows, (i) => i > 0) : make("p", {}, "The configurations are the same.");
  return [make("h2", {}, "What was set differently"), all];
}

show([heading, charts, equal, settings]);
