//! Recurrent layers: few and many steps, both directions, with biases and without, parts of a stack's states.

use super::{Case, Values};
use crate::Result;
use crate::ops::RecurrentRef;
use crate::ops::inputs::AROUND_ZERO;
use crate::tensor::Tensor;

/// The cells, their gates and their states.
const CELLS: [(&str, usize, usize); 3] = [("rnn", 1, 1), ("lstm", 4, 2), ("gru", 3, 1)];

/// What is compared of a layer's results.
#[derive(Debug, Clone, Copy)]
enum Of {
    Y,
    /// The states after the last step.
    State(usize),
    /// Both, so that gradients of both come together.
    All,
}

pub(super) fn all(cases: &mut Vec<Case>) {
    // T, B, I, H, directions, and the layer of how many.
    let sizes = [(1, 1, 1, 1, 1, [0, 1]), (5, 3, 4, 7, 1, [0, 1]), (4, 2, 3, 5, 2, [1, 3]), (3, 33, 17, 65, 2, [0, 2])];
    for (cell, gates, states) in CELLS {
        for (t, b, i, h, directions, layer) in sizes {
            for bias in [true, false] {
                let of_states = (states > 1).then_some(Of::State(1)).into_iter().chain([Of::Y, Of::State(0), Of::All]);
                for of in of_states.filter(|of| bias || matches!(of, Of::All)) {
                    let inputs = inputs(gates, states, (t, b, i, h), directions, layer[1], bias);
                    let name = format!("{cell}/{t}x{b}x{i}x{h}/{directions}/{layer:?}/{bias}/{of:?}");
                    let apply = move |x: &[Tensor]| {
                        let (y, states) = layer_of(cell, x, layer[0], directions, bias)?;
                        match of {
                            Of::Y => Ok(y),
                            Of::State(i) => Ok(states[i].clone()),
                            Of::All => {
                                let y = y.reshape([t * b * directions, h])?;
                                states.iter().try_fold(y, |y, state| y.add(&state.sum(0)?.sum(0)?.scale(0.1)?))
                            }
                        }
                    };
                    // Sums of up to 130 products around a half, through five steps, and of up to 200 gradients.
                    cases.push(Case::new(name, inputs, apply).tolerance(2e-5, 1e-5));
                }
            }
        }
    }
    // Of seven ids, some of which come twice.
    for (cell, gates, states) in CELLS {
        for bias in [true, false] {
            let mut inputs = inputs(gates, states, (4, 3, 7, 5), 2, 1, bias);
            inputs[0] = (vec![4, 3], Values::Ids(7));
            let apply = move |x: &[Tensor]| Ok(layer_of(cell, x, 0, 2, bias)?.0);
            cases.push(Case::new(format!("{cell}/ids/{bias}"), inputs, apply).tolerance(2e-5, 1e-5));
        }
    }
    // Gates that are 0 or 1 to the last bit, where exp overflows.
    for (cell, gates, states) in CELLS {
        let mut inputs = inputs(gates, states, (2, 3, 4, 5), 1, 1, true);
        inputs[0].1 = Values::Uniform(-400.0, 400.0);
        let apply = move |x: &[Tensor]| Ok(layer_of(cell, x, 0, 1, true)?.0);
        cases.push(Case::new(format!("{cell}/large"), inputs, apply).tolerance(2e-4, 1e-4).not_smooth());
    }
}

/// x, the states (L D, B, H), and the parameters of each direction.
pub fn inputs(
    gates: usize,
    states: usize,
    (t, b, i, h): (usize, usize, usize, usize),
    directions: usize,
    layers: usize,
    bias: bool,
) -> Vec<(Vec<usize>, Values)> {
    let small = Values::Uniform(-0.5, 0.5);
    let state = (vec![layers * directions, b, h], small);
    let mut inputs = vec![(vec![t, b, i], AROUND_ZERO)];
    inputs.extend(vec![state; states]);
    for _ in 0..directions {
        inputs.extend([(vec![gates * h, i], small), (vec![gates * h, h], small)]);
        inputs.extend(bias.then(|| vec![(vec![gates * h], small); 2]).into_iter().flatten());
    }
    inputs
}

/// y and the states of one layer, of inputs in the order of [`inputs`].
pub(crate) fn layer_of(
    cell: &str,
    x: &[Tensor],
    layer: usize,
    directions: usize,
    bias: bool,
) -> Result<(Tensor, Vec<Tensor>)> {
    let states = if cell == "lstm" { 2 } else { 1 };
    let parameters: Vec<RecurrentRef> = (x[1 + states..].chunks(if bias { 4 } else { 2 }))
        .take(directions)
        .map(|x| RecurrentRef { weight_ih: &x[0], weight_hh: &x[1], bias: bias.then(|| [&x[2], &x[3]]) })
        .collect();
    Ok(match cell {
        "lstm" => {
            let (y, states) = x[0].lstm(layer, &parameters, [&x[1], &x[2]])?;
            (y, states.to_vec())
        }
        "gru" => x[0].gru(layer, &parameters, &x[1]).map(|(y, h)| (y, vec![h]))?,
        _ => x[0].rnn(layer, &parameters, &x[1]).map(|(y, h)| (y, vec![h]))?,
    })
}
