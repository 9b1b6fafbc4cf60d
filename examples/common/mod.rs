//! What the examples share: the folder that they write to, and pictures as SVG.

#![allow(dead_code)] // Not every example needs all of it.

use std::error::Error;
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What an example returns, whatever went wrong.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// What `main` returns after this, of an error its message.
pub fn exit(main: impl FnOnce() -> Outcome<()>) -> ExitCode {
    match main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The first argument, the folder for pictures, or `target/examples`; and the number that follows, if there is one.
pub fn arguments(steps: usize) -> Outcome<(PathBuf, usize)> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let folder = arguments.next().map_or_else(|| "target/examples".into(), PathBuf::from);
    let steps = match arguments.next() {
        None => steps,
        Some(text) => match text.parse() {
            Ok(steps) if steps > 0 => steps,
            _ => return Err(format!("expected a number of steps above 0, got {text:?}").into()),
        },
    };
    std::fs::create_dir_all(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    Ok((folder, steps))
}

/// A picture, whose origin is at the upper left.
pub struct Svg {
    size: [f64; 2],
    body: String,
}

/// Blue, orange, green, red and grey that people who confuse red and green can tell apart (Okabe and Ito 2008).
pub const COLOURS: [&str; 5] = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#666666"];

impl Svg {
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { size: [width, height], body: String::new() }
    }

    fn add(&mut self, element: impl Display) {
        let _ = writeln!(self.body, "{element}");
    }

    pub fn rect(&mut self, [x, y]: [f64; 2], [width, height]: [f64; 2], fill: &str) {
        self.add(format_args!(
            r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{fill}"/>"#
        ));
    }

    /// A box with an edge and round corners.
    pub fn frame(&mut self, [x, y]: [f64; 2], [width, height]: [f64; 2], fill: &str, edge: &str) {
        let place = format!(r#"x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" rx="4""#);
        self.add(format_args!(r#"<rect {place} fill="{fill}" stroke="{edge}"/>"#));
    }

    pub fn circle(&mut self, [x, y]: [f64; 2], radius: f64, fill: &str) {
        self.add(format_args!(r##"<circle cx="{x:.2}" cy="{y:.2}" r="{radius}" fill="{fill}" stroke="#fff"/>"##));
    }

    pub fn line(&mut self, from: [f64; 2], to: [f64; 2], colour: &str) {
        self.curve(&[from, to], colour, "none");
    }

    /// Lines from point to point; `dashes` as in `stroke-dasharray`.
    pub fn curve(&mut self, points: &[[f64; 2]], colour: &str, dashes: &str) {
        let points: Vec<String> = points.iter().map(|[x, y]| format!("{x:.2},{y:.2}")).collect();
        let points = points.join(" ");
        let style = format!(r#"stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dashes}""#);
        self.add(format_args!(r#"<polyline points="{points}" fill="none" {style}/>"#));
    }

    /// Text around x.
    pub fn text(&mut self, [x, y]: [f64; 2], size: f64, colour: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(format_args!(
            r#"<text x="{x:.2}" y="{y:.2}" font-size="{size}" fill="{colour}" text-anchor="middle">{text}</text>"#
        ));
    }

    /// Writes the picture into a folder.
    pub fn save(&self, folder: &Path, name: &str) -> Outcome<PathBuf> {
        let (path, [width, height]) = (folder.join(name), self.size);
        let head =
            format!(r#"xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif""#);
        let text = format!("<svg {head}>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n", self.body);
        std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(path)
    }
}

/// A colour between white and `strong`, "#rrggbb", by a part of 0 to 1.
pub fn shade(strong: &str, part: f64) -> String {
    let channel = |i: usize| {
        let full = u8::from_str_radix(&strong[i..i + 2], 16).unwrap_or(0);
        (255.0 - (255.0 - f64::from(full)) * part.clamp(0.0, 1.0)).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", channel(1), channel(3), channel(5))
}

/// Random numbers in [0, 1), the same on every machine (Steele, Lea and Flood 2014).
pub fn uniform(state: &mut u64) -> f32 {
    (rustyflow::ops::random::splitmix64(state) >> 40) as f32 / (1u64 << 24) as f32
}
