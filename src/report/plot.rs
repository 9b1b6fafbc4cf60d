//! Curves in characters, for a terminal: braille patterns, each of two by four dots.

use crate::units;
use std::fmt::Write;

/// A curve, its points ascending in x.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Colours of the terminal's own palette, which the user has chosen to be readable.
const COLOURS: [&str; 6] = ["36", "33", "35", "32", "34", "31"];
/// Characters that the numbers beside the axis take.
const MARGIN: usize = 9;

/// Columns and rows that any terminal has.
const LARGEST: usize = 1 << 10;

/// A cell: its dots, and the curve drawn there last.
#[derive(Clone, Copy, Default)]
struct Cell {
    dots: u8,
    curve: usize,
}

/// A plot of `width` by `height` characters with axes and a legend. Each curve ends with a letter. With `colour`,
/// curves have distinct colours; without, all but the first omit every second column of dots. Empty if there is nothing
/// to draw.
pub fn plot(curves: &[Curve], width: usize, height: usize, colour: bool) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let range = |of: fn(&(f64, f64)) -> f64| {
        let (low, high) = points().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if high > low { (low, high) } else { (low, low + low.abs().max(1.0)) }
    };
    if points().next().is_none() {
        return String::new();
    }
    let ((x0, x1), (y0, y1)) = (range(|p| p.0), range(|p| p.1));
    let (columns, rows) = (width.saturating_sub(MARGIN + 2).clamp(10, LARGEST), height.clamp(3, LARGEST));
    let (wide, high) = (2 * columns - 1, 4 * rows - 1);
    let dot = |&(x, y): &(f64, f64)| {
        let at = |part: f64, most: usize| (part * most as f64).round() as usize;
        (at((x - x0) / (x1 - x0), wide), high - at((y - y0) / (y1 - y0), high))
    };
    let mut cells = vec![vec![Cell::default(); columns]; rows];
    let mut letters: Vec<(usize, usize, usize)> = Vec::new();
    for (i, curve) in curves.iter().enumerate() {
        let dots: Vec<_> = curve.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()).map(dot).collect();
        for pair in dots.windows(2) {
            draw(&mut cells, pair[0], pair[1], i, !colour && i > 0);
        }
        if let Some(&(x, y)) = dots.last() {
            // Curves that end together have their letters below each other.
            let taken = |row: usize| letters.iter().any(|&(column, other, _)| (column, other) == (x / 2, row));
            let free = (y / 4..rows).chain((0..y / 4).rev()).find(|&row| !taken(row));
            letters.extend(free.map(|row| (x / 2, row, i)));
        }
    }
    let mut text = String::new();
    for (row, line) in cells.iter().enumerate() {
        let label = y1 - (y1 - y0) * row as f64 / (rows - 1) as f64;
        let label = if (row % 4 == 0 && row + 2 < rows) || row + 1 == rows { short(label) } else { String::new() };
        let _ = write!(text, "{label:>MARGIN$} │");
        for (column, cell) in line.iter().enumerate() {
            let letter = letters.iter().find(|(x, y, _)| (*x, *y) == (column, row)).map(|&(.., i)| i);
            let (c, curve) = match letter {
                Some(curve) => (name_of(curve), curve),
                // Braille patterns begin with the one that has no dots.
                None => (char::from_u32(0x2800 + u32::from(cell.dots)).unwrap_or(' '), cell.curve),
            };
            paint(&mut text, c, (colour && (letter.is_some() || cell.dots > 0)).then_some(curve));
        }
        text.truncate(text.trim_end_matches(['\u{2800}', ' ']).len());
        text.push('\n');
    }
    let (left, right) = (short(x0), short(x1));
    let _ = writeln!(text, "{:MARGIN$} └{}", "", "─".repeat(columns));
    let rest = columns.saturating_sub(left.len());
    let _ = writeln!(text, "{:MARGIN$}  {left}{right:>rest$}", "");
    for (i, curve) in curves.iter().enumerate().filter(|(_, curve)| !curve.points.is_empty()) {
        let _ = write!(text, "{:MARGIN$}  ", "");
        paint(&mut text, name_of(i), colour.then_some(i));
        let _ = writeln!(text, "  {}", curve.name);
    }
    text
}

/// `A` is the first curve's.
fn name_of(curve: usize) -> char {
    char::from(b'A' + (curve % 26) as u8)
}

fn paint(text: &mut String, c: char, colour: Option<usize>) {
    match colour {
        Some(i) => {
            let _ = write!(text, "\x1b[{}m{c}\x1b[0m", COLOURS[i % COLOURS.len()]);
        }
        None => text.push(c),
    }
}

/// Sets the dots of a line.
fn draw(cells: &mut [Vec<Cell>], from: (usize, usize), to: (usize, usize), curve: usize, sparse: bool) {
    /// The bit of the dot in each column and row of a braille pattern.
    const BITS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
    let steps = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1));
    for i in 0..=steps {
        let along = |a: usize, b: usize| {
            let part = if steps == 0 { 0.0 } else { i as f64 / steps as f64 };
            (a as f64 + part * (b as f64 - a as f64)).round() as usize
        };
        let (x, y) = (along(from.0, to.0), along(from.1, to.1));
        if !(sparse && x % 2 == 1) {
            let cell = &mut cells[y / 4][x / 2];
            *cell = Cell { dots: cell.dots | BITS[x % 2][y % 4], curve };
        }
    }
}

/// A number with four digits, in at most nine characters.
fn short(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (0.001..1e7).contains(&size) {
        let decimals = if size >= 1000.0 || value.fract() == 0.0 { 0 } else { 3 - size.log10().max(0.0) as usize };
        return format!("{value:.decimals$}");
    }
    units::number(value)
}
