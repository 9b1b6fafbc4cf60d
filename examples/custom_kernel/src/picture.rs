//! Curves as an SVG.

use std::fmt::Write;

/// Each curve of `xs` with its name and colour; the numbers that were fitted lie between the dashed lines.
pub fn svg(xs: &[f32], curves: &[(&str, &str, &Vec<f32>)]) -> String {
    let (width, height) = (720.0, 320.0);
    let at = |x: f32, y: f32| (width * (x / 12.0 + 0.5), height * (0.5 - y.clamp(-2.5, 2.5) / 5.0));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for edge in [-3.0, 3.0] {
        let (x, _) = at(edge, 0.0);
        let _ = writeln!(text, "<path d=\"M{x} 0V{height}\" stroke=\"#ccc\" stroke-dasharray=\"4\"/>");
    }
    for (i, (name, colour, ys)) in curves.iter().enumerate() {
        let points = xs.iter().zip(ys.iter()).map(|(x, y)| at(*x, *y)).map(|(x, y)| format!("{x:.1},{y:.1}"));
        let points = points.collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        let _ = writeln!(text, "<text x=\"12\" y=\"{}\" fill=\"{colour}\">{name}</text>", 20 + 18 * i);
    }
    text + "</svg>\n"
}
