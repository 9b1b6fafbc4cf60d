//! Draws a [`State`].
//!
//! ```text
//! runs/a                                          sample · 3.2M parameters, 4 layers · cpu
//! +- loss -----------------------------------------+- now --------------------------------+
//! | train and validation                            | numbers                              |
//! |                                                 +- tokens/s ---------------------------+
//! |                                                 | over the run                         |
//! +- log -------------------------------------------+- sample -----------------------------+
//! +-------------------------------------------------+--------------------------------------+
//! 42% ----------              step 420/1000  0:31 elapsed, ETA 0:43
//! q stop and save   l logarithmic
//! ```

use super::series::Series;
use super::state::State;
use super::terminal::SMALLEST;
use crate::units;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Axis, Block, BorderType, Chart, Dataset, GraphType, LineGauge, Paragraph};
use ratatui::widgets::{Padding, Sparkline, SparklineBar, Wrap};
use std::time::Duration;

const TRAIN: Color = Color::Cyan;
const VALIDATION: Color = Color::Yellow;
/// Columns of the numbers.
const NUMBERS_WIDTH: u16 = 36;
/// Rows that a curve below the numbers needs: its border and two of bars.
const CURVE_HEIGHT: u16 = 4;

pub fn draw(frame: &mut Frame, state: &State) {
    let area = frame.area();
    let (columns, rows) = SMALLEST;
    if area.width < columns || area.height < rows {
        let text = format!("This window is smaller than {columns} by {rows}. The run goes on.\nq stops and saves it.");
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
    }
    let parts = [Constraint::Length(1), Constraint::Fill(2), Constraint::Fill(1)];
    let bottom = [Constraint::Length(1), Constraint::Length(1)];
    let [head, upper, lower, gauge, keys] = Layout::vertical([parts.as_slice(), &bottom].concat()).areas(area);
    draw_head(frame, head, state);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(NUMBERS_WIDTH)]).areas(upper);
    draw_losses(frame, left, state);
    draw_right(frame, right, state);
    draw_lower(frame, lower, state);
    draw_gauge(frame, gauge, state);
    let scale = if state.log_scale { "linear" } else { "logarithmic" };
    let keys_text = format!(" q stop after this step and save   l {scale} loss");
    frame.render_widget(Line::from(keys_text).dark_gray(), keys);
}

fn block(title: &str) -> Block<'_> {
    let border = Style::new().fg(Color::DarkGray);
    Block::bordered().border_type(BorderType::Rounded).border_style(border).title(format!(" {title} ").reset().bold())
}

fn draw_head(frame: &mut Frame, area: Rect, state: &State) {
    let title = format!(" {}  ", state.title);
    let [left, right] =
        Layout::horizontal([Constraint::Length(title.chars().count() as u16), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Line::from(title).bold(), left);
    let about = format!("{} ", state.about);
    // Where it does not fit, its end is cut off.
    let alignment = if about.chars().count() > right.width as usize { Alignment::Left } else { Alignment::Right };
    frame.render_widget(Line::from(about).dark_gray().alignment(alignment), right);
}

fn draw_losses(frame: &mut Frame, area: Rect, state: &State) {
    let scale = |loss: f64| if state.log_scale { loss.max(1e-12).ln() } else { loss };
    let unscale = |y: f64| if state.log_scale { y.exp() } else { y };
    let scaled = |series: &Series| series.points().iter().map(|(x, y)| (*x, scale(*y))).collect::<Vec<_>>();
    let (train, validation) = (scaled(&state.train_loss), scaled(&state.validation_loss));
    let title = if state.log_scale { "loss, logarithmic" } else { "loss" };
    if train.is_empty() && validation.is_empty() {
        return frame.render_widget(Paragraph::new(" The first steps are under way.").block(block(title)), area);
    }
    let curve = |points, colour| {
        let line = Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line);
        line.style(Style::new().fg(colour)).data(points)
    };
    let mut curves = vec![curve(&train, TRAIN)];
    let mut legend = vec![" ● train ".fg(TRAIN)];
    if !validation.is_empty() {
        curves.push(curve(&validation, VALIDATION));
        legend.push(" ● validation ".fg(VALIDATION));
    }
    let [bottom, top] = bounds(train.iter().chain(&validation).map(|point| point.1));
    // Of a resumed run the curve begins before its first step.
    let first = train.iter().chain(&validation).map(|point| point.0).fold(state.first_step as f64, f64::min);
    let last = (state.step.max(state.first_step + 1)) as f64;
    let steps = [first, last].map(|step| Line::from(format!("{step:.0}")));
    let losses = [bottom, (bottom + top) / 2.0, top].map(|y| Line::from(format!("{:.3}", unscale(y))));
    let axis = |bounds, labels: Vec<Line<'static>>| {
        Axis::default().bounds(bounds).labels(labels).style(Style::new().fg(Color::DarkGray))
    };
    let chart = Chart::new(curves)
        .block(block(title).title_top(Line::from(legend).right_aligned()).padding(Padding::left(1)))
        .x_axis(axis([first, last], steps.to_vec()))
        .y_axis(axis([bottom, top], losses.to_vec()))
        // It would cover the curves: it is in the border.
        .legend_position(None);
    frame.render_widget(chart, area);
}

/// What an axis must span, with a little room.
fn bounds(values: impl Iterator<Item = f64> + Clone) -> [f64; 2] {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
    let room = (0.05 * (high - low)).max(1e-3);
    [low - room, high + room]
}

fn draw_right(frame: &mut Frame, area: Rect, state: &State) {
    let rows = numbers(state);
    let needed = rows.len() as u16 + 2;
    let curves = (area.height.saturating_sub(needed) / CURVE_HEIGHT).min(2) as usize;
    let mut heights = vec![Constraint::Length(needed.min(area.height))];
    heights.extend(vec![Constraint::Fill(1); curves]);
    if curves == 0 {
        heights[0] = Constraint::Fill(1);
    }
    let areas = Layout::vertical(heights).split(area);
    let label = |name: &'static str| Span::from(format!(" {name:<14}")).dark_gray();
    let lines = rows.into_iter().map(|(name, value)| Line::from(vec![label(name), value]));
    frame.render_widget(Paragraph::new(Text::from_iter(lines)).block(block("now")), areas[0]);
    let shown =
        [("tokens/s", &state.tokens_per_s, Color::Green), ("learning rate", &state.learning_rate, Color::Magenta)];
    for ((title, series, colour), area) in shown.into_iter().zip(&areas[1..]) {
        draw_curve(frame, *area, title, series, colour);
    }
}

/// The names and values beside the curve.
fn numbers(state: &State) -> Vec<(&'static str, Span<'static>)> {
    let text = |text: Option<String>| Span::from(text.unwrap_or("-".into()));
    let at =
        |loss: Option<(usize, f64)>| text(loss.map(|(step, loss)| format!("{} at step {step}", units::loss(loss))));
    let last = state.last;
    let mut rows = vec![
        ("loss", text(last.map(|s| units::loss(s.loss))).fg(TRAIN)),
        ("validation", at(state.validation).fg(VALIDATION)),
        ("best", at(state.best)),
        ("tokens/s", text(last.and_then(|s| s.tokens_per_s).map(units::count))),
        ("learning rate", text(last.map(|s| units::number(s.learning_rate)))),
        ("gradient norm", text(last.map(|s| units::number(s.grad_norm)))),
        ("epoch", text(last.map(|s| format!("{:.2} of {:.2}", s.epoch, state.total_epochs)))),
    ];
    if let Some(scale) = last.and_then(|s| s.loss_scale) {
        rows.push(("loss scale", Span::from(format!("{}, {} overflows", scale.scale, scale.overflows))));
    }
    if let Some([used, peak]) = &state.memory {
        rows.push((state.memory_name(), Span::from(used.clone())));
        rows.push(("peak memory", Span::from(peak.clone())));
    }
    rows
}

/// A curve of bars that begin at zero.
fn draw_curve(frame: &mut Frame, area: Rect, title: &str, series: &Series, colour: Color) {
    let values = series.resampled(area.width.saturating_sub(2) as usize);
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let bars = values.iter().map(|value| SparklineBar::from((1e6 * value / most) as u64));
    frame.render_widget(Sparkline::default().data(bars).max(1_000_000).fg(colour).block(block(title)), area);
}

fn draw_lower(frame: &mut Frame, area: Rect, state: &State) {
    let width = if state.sample.is_some() { Constraint::Fill(1) } else { Constraint::Length(0) };
    let [left, right] = Layout::horizontal([Constraint::Fill(1), width]).areas(area);
    let inside = |area: Rect| (area.width.saturating_sub(3) as usize, area.height.saturating_sub(2) as usize);
    let (width, height) = inside(left);
    let lines: Vec<String> = state.log.iter().flat_map(|line| wrapped(line, width)).collect();
    let newest = &lines[lines.len().saturating_sub(height)..];
    frame.render_widget(paragraph(newest).block(block("log")), left);
    if let Some(sample) = &state.sample {
        let lines: Vec<String> = sample.lines().flat_map(|line| wrapped(line, inside(right).0)).collect();
        frame.render_widget(paragraph(&lines).block(block("sample")), right);
    }
}

fn paragraph(lines: &[String]) -> Paragraph<'static> {
    Paragraph::new(Text::from_iter(lines.iter().map(|line| format!(" {line}"))))
}

/// A line in parts of at most `width` characters, broken after a space where there is one.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let (mut parts, mut rest) = (Vec::new(), line);
    while let Some((end, _)) = rest.char_indices().nth(width.max(1)) {
        let end = rest[..end].rfind(' ').map_or(end, |space| space + 1);
        parts.push(rest[..end].trim_end().to_string());
        rest = &rest[end..];
    }
    parts.push(rest.to_string());
    parts
}

fn draw_gauge(frame: &mut Frame, area: Rect, state: &State) {
    let share = state.step as f64 / state.total_steps.max(1) as f64;
    let eta = state.remaining().map_or(String::new(), |left| format!(", ETA {}", clock(left)));
    let times = format!("  step {}/{}  {}{eta} ", state.step, state.total_steps, clock(state.elapsed()));
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(times.chars().count() as u16)]).areas(area);
    let gauge = LineGauge::default().ratio(share.clamp(0.0, 1.0)).label(format!(" {:3.0}%", 100.0 * share));
    // Two symbols, for terminals without colours.
    let gauge = gauge.filled_symbol("━").unfilled_symbol("─");
    frame.render_widget(gauge.filled_style(Style::new().fg(TRAIN)).unfilled_style(Color::DarkGray), left);
    frame.render_widget(Line::from(times), right);
}

/// "0:42", "1:02:03"
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::train::{Evaluation, Event, Start, Step};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn start() -> Start {
        Start {
            folder: "runs/a".into(),
            device: "cpu (1 threads)".into(),
            precision: "f32".into(),
            corpus: "sample".into(),
            text: Default::default(),
            tokenizer: "char".into(),
            tokens: 65,
            model: crate::models::testing::small(65, 16, 1, 16),
            parameters: 3940,
            adapters: None,
            train_tokens: 1000,
            validation_tokens: 100,
            tokens_per_step: 64,
            first_step: 0,
            total_steps: 1000,
            epochs: 2.0,
            warmup_steps: 0,
        }
    }

    /// A run of 1000 steps that has done 250, of which each tenth is logged, and was evaluated at 200.
    fn state() -> State {
        let mut state = State::new(Device::Cpu);
        state.event(&Event::Started(Box::new(start())));
        for step in (10..=250).step_by(10) {
            let (epoch, loss) = (step as f64 / 500.0, 4.0 - step as f64 / 100.0);
            let numbers = Step {
                step,
                epoch,
                loss,
                learning_rate: 1e-3,
                grad_norm: 0.5,
                tokens: Some(64 * step as u64),
                tokens_per_s: Some(12_345.0),
                loss_scale: None,
                rewards: None,
            };
            state.event(&Event::Step(numbers));
        }
        let result = Evaluation {
            loss: 2.5,
            perplexity: 12.18,
            bits_per_byte: 3.6,
            lossless: true,
            unknown_share: 0.0,
            tokens: 100,
            context: 16,
            stride: 16,
            rewards: None,
        };
        state.event(&Event::Evaluated { step: 200, split: "validation", result, best: true });
        state.event(&Event::Progress { step: 250 });
        state
    }

    fn drawn(state: &State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(row).collect()
    }

    #[track_caller]
    fn assert_shows(lines: &[String], parts: &[&str]) {
        for part in parts {
            assert!(lines.iter().any(|line| line.contains(part)), "{part:?} is missing in\n{}", lines.join("\n"));
        }
    }

    #[test]
    fn a_run_is_shown_with_curves_numbers_log_and_progress() {
        let mut state = state();
        let lines = drawn(&state, 100, 30);
        assert!(
            lines[0].starts_with(" runs/a ")
                && lines[0].ends_with("sample · 3.94k parameters, 1 layer · cpu (1 threads) ")
        );
        assert_shows(
            &lines,
            &[
                "╭ loss ─",
                " ● train  ● validation ╮",
                "│ 4.020│",
                "││ loss          1.5000 ",
                "││ validation    2.5000 at step 200 ",
                "││ tokens/s      12.3k ",
                "││ learning rate 0.001 ",
                "││ epoch         0.50 of 2.00 ",
                "│ step    200  validation loss 2.5000  perplexity 12.18  bits per byte 3.6000  (best) ",
                "  25% ━━━━━━",
                "  step 250/1000  0:0",
            ],
        );
        assert!(lines.iter().any(|line| line.contains(char::is_alphabetic) && line.contains("⠉")), "a curve of dots");
        state.toggle_log_scale();
        assert_shows(&drawn(&state, 100, 30), &["╭ loss, logarithmic ─", "l linear loss"]);
    }

    #[test]
    fn a_resumed_run_is_shown_with_its_earlier_curve() {
        let dir = tempfile::tempdir().unwrap();
        let line = |step| format!("{{\"kind\": \"train\", \"step\": {step}, \"loss\": 3.5}}\n");
        let evaluation = "{\"kind\": \"eval\", \"step\": 20, \"loss\": 3.4}\n".to_string();
        let lines: String = (1..=20).map(line).chain([evaluation]).collect();
        std::fs::write(dir.path().join("metrics.jsonl"), lines).unwrap();
        let mut resumed = State::new(Device::Cpu);
        resumed.event(&Event::Started(Box::new(Start { folder: dir.path().into(), first_step: 20, ..start() })));
        assert_eq!((resumed.train_loss.points().len(), resumed.validation), (20, Some((20, 3.4))));
        let lines = drawn(&resumed, 100, 30);
        assert!(
            lines.iter().any(|line| line.contains("╰") || line.trim_start_matches('│').trim_start().starts_with("1 "))
        );
        assert_shows(&lines, &["││ validation    3.4000 at step 20 ", "││ best          3.4000 at step 20 "]);
    }

    #[test]
    fn memory_is_named_by_its_place() {
        let mut state = state();
        state.memory = Some(["12.3 MiB".into(), "14.5 MiB".into()]);
        assert_shows(&drawn(&state, 100, 30), &["││ CPU memory    12.3 MiB ", "││ peak memory   14.5 MiB "]);
    }

    #[test]
    fn the_sample_stands_beside_the_log_without_control_characters() {
        let mut state = state();
        let text = "Once\x1b[31m upon\n\na time".into();
        state.event(&Event::EarlySample { step: 50, text });
        let lines = drawn(&state, 100, 30);
        assert_shows(&lines, &["╭ sample ─", "││ a time "]);
        assert!(!lines.iter().any(|line| line.contains('\x1b')));
    }

    #[test]
    fn every_size_can_be_drawn_and_one_that_is_too_small_says_so() {
        let full = state();
        for state in [&full, &State::new(Device::Cpu)] {
            for (width, height) in [(1, 1), (20, 50), (60, 16), (61, 17), (80, 24), (200, 60), (500, 16)] {
                let lines = drawn(state, width, height);
                let is_small = width < 60 || height < 16;
                assert_eq!(lines.iter().any(|line| line.contains("q stop after")), !is_small, "{width} by {height}");
            }
        }
        assert!(drawn(&full, 60, 16)[0].starts_with(" runs/a  sample · 3.94k parameters, 1 layer · cpu"));
        assert_shows(&drawn(&full, 40, 10), &["This window is smaller than 60 by 16."]);
    }

    #[test]
    fn what_came_after_the_checkpoint_is_gone_once_a_run_went_back() {
        let mut state = state();
        let (cause, learning_rate_factor) = (String::new(), 0.5);
        state.event(&Event::RolledBack { from_step: 250, step: 100, cause, learning_rate_factor });
        assert_eq!(state.train_loss.points().last(), Some(&(100.0, 3.0)));
        assert_shows(&drawn(&state, 100, 30), &["││ validation    - ", "  step 100/1000"]);
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrapped("", 3), [""]);
        assert_eq!(wrapped("äöü", 2), ["äö", "ü"]);
    }

    #[test]
    fn times_are_short() {
        assert_eq!([42, 3723].map(|seconds| clock(Duration::from_secs(seconds))), ["0:42", "1:02:03"]);
    }
}
