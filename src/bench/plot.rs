//! Draws timings: of steps tokens per second against the batch size, and the time of a token against the context; of
//! generation the time of a token against the tokens before it.

use super::{GenerateTiming, StepTiming};
use crate::{Error, Result};
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// x and y.
type Points = Vec<(f64, f64)>;

/// A curve and its name.
struct Curve {
    name: String,
    points: Points,
    /// What is to be expected, drawn thin and without marks.
    expected: bool,
}

/// A panel for each of the two that `timings` have several values for, as SVG; `None` if that is neither.
///
/// # Errors
/// If a speed is no number above 0, or the drawing fails.
pub fn plot_steps(timings: &[StepTiming]) -> Result<Option<String>> {
    expect_measured(timings.iter().flat_map(|t| [t.batch_size as f64, t.tokens_per_s]))?;
    let [by_batch, by_context] = [batch_curves(timings), context_curves(timings)];
    let panels = [!by_batch.is_empty(), !by_context.is_empty()].into_iter().filter(|&drawn| drawn).count();
    if panels == 0 {
        return Ok(None);
    }
    let mut svg = String::new();
    draw(&mut svg, panels as u32, &by_batch, &by_context)
        .map_err(|e| Error::Invalid(format!("cannot draw the timings: {e}")))?;
    Ok(Some(svg))
}

/// The time of a token against the tokens before it, as SVG; `None` if no model has several lengths.
///
/// # Errors
/// If a time is no number above 0, or the drawing fails.
pub fn plot_generate(timings: &[GenerateTiming]) -> Result<Option<String>> {
    expect_measured(timings.iter().flat_map(|t| [t.ms_per_token, t.bytes_read]))?;
    let mut curves = Vec::new();
    for group in groups(timings, |t| (t.case, t.batch_size), |t| t.prompt_tokens) {
        let points: Points = group.iter().map(|t| (t.prompt_tokens as f64, t.ms_per_token)).collect();
        let (_, ms) = points[0];
        let expected = |t: &&GenerateTiming| (t.prompt_tokens as f64, ms * t.bytes_read / group[0].bytes_read);
        let in_proportion = group.iter().map(expected).collect();
        curves.push(Curve { name: format!("{} B={}", group[0].case, group[0].batch_size), points, expected: false });
        let name = "in proportion to the bytes that are read".into();
        curves.push(Curve { name, points: in_proportion, expected: true });
    }
    if curves.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    draw_generate(&mut svg, &curves).map_err(|e| Error::Invalid(format!("cannot draw the timings: {e}")))?;
    Ok(Some(svg))
}

/// Fails at a number that no axis has, and at those that were not measured.
fn expect_measured(mut numbers: impl Iterator<Item = f64>) -> Result<()> {
    match numbers.find(|number| !(number.is_finite() && *number > 0.0)) {
        Some(number) => Err(Error::Invalid(format!("timings with {number} in them cannot be drawn"))),
        None => Ok(()),
    }
}

fn draw_generate(svg: &mut String, curves: &[Curve]) -> Drawn {
    let root = SVGBackend::with_string(svg, (560, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    let [x, y] = [range(curves, |p| p.0, 1.0), range(curves, |p| p.1, 1.5)];
    let mut chart = builder(&root, "Time of a new token").build_cartesian_2d(0.0..1.05 * x.end, 0.0..y.end)?;
    panel(&mut chart, ["tokens before it", "milliseconds per token"], curves, SeriesLabelPosition::UpperLeft)?;
    root.present()?;
    Ok(())
}

/// Timings that have `key` in common, sorted by `x`; only where there are several.
fn groups<T, K: PartialEq>(timings: &[T], key: impl Fn(&T) -> K, x: impl Fn(&T) -> usize) -> Vec<Vec<&T>> {
    let mut groups: Vec<Vec<&T>> = Vec::new();
    for timing in timings {
        match groups.iter_mut().find(|group| key(group[0]) == key(timing)) {
            Some(group) => group.push(timing),
            None => groups.push(vec![timing]),
        }
    }
    for group in &mut groups {
        group.sort_by_key(|t| x(t));
        group.dedup_by_key(|t| x(t));
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// Tokens per second against B, and what it would be if it grew with B.
fn batch_curves(timings: &[StepTiming]) -> Vec<Curve> {
    let groups = groups(timings, |t| (t.case, t.context), |t| t.batch_size);
    let mut curves = Vec::new();
    for group in groups {
        let points: Points = group.iter().map(|t| (t.batch_size as f64, t.tokens_per_s)).collect();
        let (b, speed) = points[0];
        let proportional = points.iter().map(|&(x, _)| (x, speed * x / b)).collect();
        curves.push(Curve { name: format!("{} T={}", group[0].case, group[0].context), points, expected: false });
        curves.push(Curve { name: "in proportion to B".into(), points: proportional, expected: true });
    }
    curves
}

/// Microseconds per token against T, and what FLOPs predict: those of attention grow with T, all others do not. The
/// longest context says how long each part takes.
fn context_curves(timings: &[StepTiming]) -> Vec<Curve> {
    let mut curves = Vec::new();
    for group in groups(timings, |t| (t.case, t.batch_size), |t| t.context) {
        let points: Points = group.iter().map(|t| (t.context as f64, 1e6 / t.tokens_per_s)).collect();
        curves.push(Curve { name: format!("{} B={}", group[0].case, group[0].batch_size), points, expected: false });
        let longest = group[group.len() - 1];
        let &(context, time) = &curves[curves.len() - 1].points[group.len() - 1];
        let Some(share) = attention_share(longest) else { continue };
        let [first, last] = [group[0].context as f64, context];
        let at = |x: f64| (x, time * (1.0 - share + share * x / context));
        let name = "predicted: attention in proportion to T".into();
        curves.push(Curve { name, points: vec![at(first), at(last)], expected: true });
    }
    curves
}

/// Attention's part of the time, 0 to 1, if kernels were timed.
fn attention_share(timing: &StepTiming) -> Option<f64> {
    let report = &timing.report;
    let attention: f64 = report.kernels.iter().filter(|k| k.name.starts_with("attention")).map(|k| k.seconds).sum();
    (attention > 0.0).then(|| attention / report.training_seconds)
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn draw(svg: &mut String, panels: u32, by_batch: &[Curve], by_context: &[Curve]) -> Drawn {
    let root = SVGBackend::with_string(svg, (560 * panels, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut areas = root.split_evenly((1, panels as usize)).into_iter();
    if !by_batch.is_empty() {
        let area = areas.next().expect("one for each panel");
        let [x, y] = [range(by_batch, |p| p.0, 1.1), range(by_batch, |p| p.1, 1.0)];
        // Whole decades: only powers of ten are labelled.
        let [low, high] = [y.start.log10().floor(), y.end.log10().ceil()].map(|decade| 10f64.powf(decade));
        let [x, y] = [x.log_scale().base(2.0), (low..high).log_scale()];
        let mut chart = builder(&area, "Training speed").build_cartesian_2d(x, y)?;
        panel(&mut chart, ["sequences per batch, B", "tokens per second"], by_batch, SeriesLabelPosition::LowerRight)?;
    }
    if !by_context.is_empty() {
        let area = areas.next().expect("one for each panel");
        let x = range(by_context, |p| p.0, 1.0);
        let y = range(by_context, |p| p.1, 1.25);
        let mut chart = builder(&area, "Time of a token").build_cartesian_2d(0.0..1.05 * x.end, 0.0..y.end)?;
        panel(&mut chart, ["context, T", "microseconds per token"], by_context, SeriesLabelPosition::UpperLeft)?;
    }
    root.present()?;
    Ok(())
}

/// The values of all curves, with a margin by this factor.
fn range(curves: &[Curve], of: fn(&(f64, f64)) -> f64, margin: f64) -> std::ops::Range<f64> {
    let values = || curves.iter().flat_map(|c| c.points.iter().map(of));
    values().fold(f64::INFINITY, f64::min) / margin..values().fold(0.0, f64::max) * margin
}

fn builder<'a, 'b>(area: &'a Area<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, ("sans-serif", 18)).margin(12).x_label_area_size(44).y_label_area_size(72);
    builder
}

fn panel<'a, 's: 'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'s>, Cartesian2d<X, Y>>,
    [x, y]: [&str; 2],
    curves: &[Curve],
    legend: SeriesLabelPosition,
) -> Drawn
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let short = |value: &f64| match *value {
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v if v >= 1e3 => format!("{}k", v / 1e3),
        // Sums of steps like 0.1 would show their rounding.
        v => format!("{}", (1e3 * v).round() / 1e3),
    };
    let mesh_style = BLACK.mix(0.08);
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(x).y_desc(y).light_line_style(TRANSPARENT).bold_line_style(mesh_style);
    mesh.x_label_formatter(&short).y_label_formatter(&short).draw()?;
    for (i, curve) in curves.iter().enumerate() {
        // A curve and what it is expected to be follow each other, and share their colour.
        const COLORS: [RGBColor; 4] =
            [RGBColor(31, 119, 180), RGBColor(214, 98, 14), RGBColor(44, 140, 44), RGBColor(148, 103, 189)];
        let color =
            COLORS[curves[..i].iter().filter(|c| !c.expected).count().saturating_sub(curve.expected as usize) % 4];
        let style = if curve.expected { color.mix(0.5).stroke_width(1) } else { color.stroke_width(2) };
        let line = chart.draw_series(LineSeries::new(curve.points.iter().copied(), style))?;
        // What is expected of each curve has one name.
        if !curve.expected || curves[..i].iter().all(|c| !c.expected) {
            line.label(&curve.name).legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], style));
        }
        if !curve.expected {
            chart.draw_series(curve.points.iter().map(|&p| Circle::new(p, 3, color.filled())))?;
        }
    }
    chart.configure_series_labels().position(legend).background_style(WHITE.mix(0.8)).draw()?;
    Ok(())
}
