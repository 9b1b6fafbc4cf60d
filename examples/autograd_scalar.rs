//! micrograd's example: an expression of scalars, tensors of shape (), with the gradient of its result at every step.
//!
//!     cargo run --release --example autograd_scalar -- [FOLDER]
//!
//! Prints the result and the gradients of a and b, which micrograd's page gives as 24.7041, 138.8338 and 645.5773
//! (github.com/karpathy/micrograd). Writes `autograd_scalar.svg`, the graph of the expression, into FOLDER,
//! target/examples if there is none.

mod common;

use common::{COLOURS, Outcome, Svg, arguments, exit, shade};
use rustyflow::{Device, Result, Tensor};
use std::path::Path;
use std::process::ExitCode;

/// A number in the expression: where it comes from, and what collects its gradient.
struct Node {
    label: String,
    inputs: Vec<usize>,
    value: Tensor,
    /// A leaf of the tape: the number itself, or a zero that was added to it, whose gradient is the same.
    leaf: Tensor,
}

/// The numbers of an expression in the order in which they were computed.
#[derive(Default)]
struct Graph(Vec<Node>);

impl Graph {
    fn number(&mut self, label: &str, value: f32) -> Result<usize> {
        let value = Tensor::from_f32(&[value], [], &Device::Cpu)?.requires_grad()?;
        Ok(self.add(Node { label: label.into(), inputs: vec![], leaf: value.clone(), value }))
    }

    fn op<const N: usize>(
        &mut self,
        label: &str,
        inputs: [usize; N],
        of: impl Fn([&Tensor; N]) -> Result<Tensor>,
    ) -> Result<usize> {
        let leaf = Tensor::from_f32(&[0.0], [], &Device::Cpu)?.requires_grad()?;
        let value = of(inputs.map(|input| &self.0[input].value))?.add(&leaf)?;
        Ok(self.add(Node { label: label.into(), inputs: inputs.to_vec(), value, leaf }))
    }

    fn add(&mut self, node: Node) -> usize {
        self.0.push(node);
        self.0.len() - 1
    }

    fn sum(&mut self, a: usize, b: usize) -> Result<usize> {
        self.op("+", [a, b], |[a, b]| a.add(b))
    }

    fn difference(&mut self, a: usize, b: usize) -> Result<usize> {
        self.op("-", [a, b], |[a, b]| a.sub(b))
    }

    fn relu(&mut self, a: usize) -> Result<usize> {
        self.op("relu", [a], |[a]| a.relu())
    }

    fn times(&mut self, factor: f32, a: usize) -> Result<usize> {
        self.op(&format!("x {factor}"), [a], |[a]| a.scale(factor))
    }

    /// The value of a number and its gradient.
    fn of(&self, node: usize) -> Result<[f32; 2]> {
        let Node { value, leaf, .. } = &self.0[node];
        Ok([value.item()?, leaf.grad().map_or(Ok(0.0), Tensor::item)?])
    }

    /// Each number in a box, to the right of those that it was computed from.
    fn draw(&self) -> Result<Svg> {
        let mut columns: Vec<usize> = Vec::new();
        let mut rows: Vec<usize> = Vec::new();
        for Node { inputs, .. } in &self.0 {
            let column = inputs.iter().map(|&input| columns[input] + 1).max().unwrap_or(0);
            rows.push(columns.iter().filter(|other| **other == column).count());
            columns.push(column);
        }
        let most = |of: &[usize]| of.iter().max().map_or(0.0, |most| *most as f64 + 1.0);
        let (size, apart) = ([104.0, 44.0], [140.0, 66.0]);
        let height = apart[1] * most(&rows);
        let corner = |i: usize| {
            let alike = columns.iter().filter(|column| **column == columns[i]).count() as f64;
            let down = (height - apart[1] * alike) / 2.0 + apart[1] * rows[i] as f64;
            [18.0 + apart[0] * columns[i] as f64, 11.0 + down]
        };
        let mut svg = Svg::new(apart[0] * most(&columns), height);
        for (i, Node { inputs, .. }) in self.0.iter().enumerate() {
            for &input in inputs {
                let ([x0, y0], [x1, y1]) = (corner(input), corner(i));
                svg.line([x0 + size[0], y0 + size[1] / 2.0], [x1, y1 + size[1] / 2.0], COLOURS[4]);
            }
        }
        for (i, Node { label, inputs, .. }) in self.0.iter().enumerate() {
            let ([x, y], [value, gradient]) = (corner(i), self.of(i)?);
            let colour = if inputs.is_empty() { COLOURS[1] } else { COLOURS[0] };
            svg.frame([x, y], size, &shade(colour, 0.2), colour);
            let middle = x + size[0] / 2.0;
            svg.text([middle, y + 14.0], 12.0, "#000", label);
            svg.text([middle, y + 27.0], 11.0, "#000", &format!("{value:.4}"));
            svg.text([middle, y + 39.0], 11.0, COLOURS[3], &format!("grad {gradient:.4}"));
        }
        Ok(svg)
    }
}

/// The result, and the gradients of a and b.
pub fn run(folder: &Path) -> Outcome<[f32; 3]> {
    let graph = &mut Graph::default();
    let (a, b, one) = (graph.number("a", -4.0)?, graph.number("b", 2.0)?, graph.number("1", 1.0)?);
    // c = a + b;  d = a * b + b**3
    let mut c = graph.sum(a, b)?;
    let (product, cube) = (graph.op("x", [a, b], |[a, b]| a.mul(b))?, graph.op("cube", [b], |[b]| b.powf(3.0))?);
    let mut d = graph.sum(product, cube)?;
    // c += c + 1;  c += 1 + c + (-a)
    let more = graph.sum(c, one)?;
    c = graph.sum(c, more)?;
    let (more, minus_a) = (graph.sum(one, c)?, graph.times(-1.0, a)?);
    let more = graph.sum(more, minus_a)?;
    c = graph.sum(c, more)?;
    // d += d * 2 + (b + a).relu();  d += 3 * d + (b - a).relu()
    for (factor, is_sum) in [(2.0, true), (3.0, false)] {
        let inside = if is_sum { graph.sum(b, a)? } else { graph.difference(b, a)? };
        let (scaled, relu) = (graph.times(factor, d)?, graph.relu(inside)?);
        let more = graph.sum(scaled, relu)?;
        d = graph.sum(d, more)?;
    }
    // e = c - d;  f = e**2;  g = f / 2.0;  g += 10.0 / f
    let e = graph.difference(c, d)?;
    let f = graph.op("square", [e], |[e]| e.powf(2.0))?;
    let (half, rest) = (graph.times(0.5, f)?, graph.op("10 / f", [f], |[f]| f.recip()?.scale(10.0))?);
    let g = graph.sum(half, rest)?;

    graph.0[g].value.backward()?;
    let ([g, _], [_, of_a], [_, of_b]) = (graph.of(g)?, graph.of(a)?, graph.of(b)?);
    println!("g {g:.4}, its gradient by a {of_a:.4}, by b {of_b:.4}");
    println!("{}", graph.draw()?.save(folder, "autograd_scalar.svg")?.display());
    Ok([g, of_a, of_b])
}

#[allow(dead_code)] // A test runs the rest.
fn main() -> ExitCode {
    exit(|| {
        let (folder, _) = arguments(1)?;
        run(&folder).map(|_| ())
    })
}
