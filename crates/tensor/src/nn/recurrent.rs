//! Recurrent layers with PyTorch's parameter names, shapes and initial values: `torch.nn.RNN` (tanh), `LSTM` and `GRU`
//! with the sequence first.

use super::init::uniform;
use super::{Dropout, Embedding, Module, Parameter, join};
use crate::ops::RecurrentRef;
use crate::ops::random::Key;
use crate::{DType, Error, Result, Tensor};

/// The largest layer count that a model's `config.json` may have.
const MOST_LAYERS: usize = 1 << 12;

/// The sizes of a stack of recurrent layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecurrentConfig {
    /// I
    pub input_size: usize,
    /// H
    pub hidden_size: usize,
    /// L
    pub num_layers: usize,
    pub bias: bool,
    /// Adds a direction that starts at the last step: D = 2, else 1.
    pub bidirectional: bool,
}

/// The input of a stack of recurrent layers.
#[derive(Clone, Copy)]
pub enum RecurrentInput<'a> {
    /// x (T, B, I), or u32 ids (T, B) that stand for one-hot vectors of I elements.
    Values(&'a Tensor),
    /// The embeddings of ids (T, B). If the table is small compared with the number of ids, the first layer's W_ih is
    /// applied once per row of the table, not once per id.
    Embedded(&'a Embedding, &'a Tensor),
}

impl<'a> From<&'a Tensor> for RecurrentInput<'a> {
    fn from(x: &'a Tensor) -> Self {
        RecurrentInput::Values(x)
    }
}

impl<'a> RecurrentInput<'a> {
    /// (T, B) or (T, B, I)
    fn steps(self) -> &'a Tensor {
        match self {
            RecurrentInput::Values(x) | RecurrentInput::Embedded(_, x) => x,
        }
    }
}

/// One direction of one layer.
struct Direction {
    /// (G H, I), of all layers but the first (G H, D H)
    weight_ih: Parameter,
    /// (G H, H)
    weight_hh: Parameter,
    /// `bias_ih` and `bias_hh`, (G H)
    bias: Option<[Parameter; 2]>,
}

impl Direction {
    fn as_ref(&self) -> RecurrentRef<'_> {
        let bias = self.bias.as_ref().map(|biases| biases.each_ref().map(|bias| &**bias));
        RecurrentRef { weight_ih: &self.weight_ih, weight_hh: &self.weight_hh, bias }
    }
}

/// A stack of layers with G gates per cell.
struct Stack {
    config: RecurrentConfig,
    /// Directions by layer.
    layers: Vec<Vec<Direction>>,
}

impl Stack {
    /// All values uniform within 1 / sqrt(H).
    fn new(config: RecurrentConfig, gates: usize, mut keys: impl FnMut() -> Key) -> Result<Stack> {
        let RecurrentConfig { input_size, hidden_size, num_layers, bias, bidirectional } = config;
        if num_layers > MOST_LAYERS {
            return Err(Error::Invalid(format!("num_layers must be at most {MOST_LAYERS}, got {num_layers}")));
        }
        let (directions, width) = (1 + usize::from(bidirectional), hidden_size.saturating_mul(gates));
        let bound = 1.0 / (hidden_size as f32).sqrt();
        let mut parameter = |shape: &[usize]| uniform(shape, -bound, bound, keys()).map(Parameter::from);
        let mut direction = |inputs: usize| {
            let (weight_ih, weight_hh) = (parameter(&[width, inputs])?, parameter(&[width, hidden_size])?);
            let bias = if bias { Some([parameter(&[width])?, parameter(&[width])?]) } else { None };
            Ok(Direction { weight_ih, weight_hh, bias })
        };
        let inputs =
            (0..num_layers).map(|layer| if layer == 0 { input_size } else { hidden_size.saturating_mul(directions) });
        let layers = inputs.map(|inputs| (0..directions).map(|_| direction(inputs)).collect::<Result<_>>());
        Ok(Stack { config, layers: layers.collect::<Result<_>>()? })
    }

    /// The given states, or `count` zero states (L D, B, H).
    fn states(&self, x: RecurrentInput, given: Option<&[Tensor]>, count: usize) -> Result<Vec<Tensor>> {
        let x = x.steps();
        if let Some(states) = given {
            return Ok(states.to_vec());
        }
        let RecurrentConfig { hidden_size, num_layers, bidirectional, .. } = self.config;
        let batch = x.shape().get(1).copied().unwrap_or(0);
        let shape = [num_layers.saturating_mul(1 + usize::from(bidirectional)), batch, hidden_size];
        (0..count).map(|_| Tensor::zeros(shape, DType::F32, &x.device())).collect()
    }

    /// The input of the first layer and, if that is ids, W_ih applied to all embeddings (G H, V), which replaces W_ih.
    fn first_input(&self, x: RecurrentInput) -> Result<(Tensor, Vec<Tensor>)> {
        match (x, self.layers.first()) {
            (RecurrentInput::Embedded(Embedding { weight: table }, ids), Some(directions))
                if 2 * table.shape().rows() <= ids.len() =>
            {
                let of_table = |direction: &Direction| direction.weight_ih.matmul_transposed(table, false, true);
                Ok((ids.clone(), directions.iter().map(of_table).collect::<Result<_>>()?))
            }
            (RecurrentInput::Embedded(embedding, ids), _) => Ok((embedding.forward(ids)?, vec![])),
            (RecurrentInput::Values(x), _) => Ok((x.clone(), vec![])),
        }
    }

    /// Applies `layer` to each layer's input and states; returns y of the last layer and all states.
    fn forward(
        &self,
        x: RecurrentInput,
        mut states: Vec<Tensor>,
        dropout: &Dropout,
        layer: impl Fn(&Tensor, usize, &[RecurrentRef], &[Tensor]) -> Result<(Tensor, Vec<Tensor>)>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let (mut y, of_ids) = self.first_input(x)?;
        for (number, directions) in self.layers.iter().enumerate() {
            if let Some((probability, key)) = if number > 0 { dropout.next() } else { None } {
                // As (B, T, C), so that rows that are computed apart drop what they drop in their batch.
                y = y.permute(&[1, 0, 2])?.dropout(probability, key)?.permute(&[1, 0, 2])?;
            }
            let mut directions: Vec<RecurrentRef> = directions.iter().map(Direction::as_ref).collect();
            if number == 0 {
                directions.iter_mut().zip(&of_ids).for_each(|(direction, weight)| direction.weight_ih = weight);
            }
            (y, states) = layer(&y, number, &directions, &states)?;
        }
        Ok((y, states))
    }
}

impl Module for Stack {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        for (number, directions) in self.layers.iter_mut().enumerate() {
            for (direction, suffix) in directions.iter_mut().zip(["", "_reverse"]) {
                let name = |what: &str| join(prefix, &format!("{what}_l{number}{suffix}"));
                visit(&name("weight_ih"), &mut direction.weight_ih);
                visit(&name("weight_hh"), &mut direction.weight_hh);
                if let Some([bias_ih, bias_hh]) = &mut direction.bias {
                    visit(&name("bias_ih"), bias_ih);
                    visit(&name("bias_hh"), bias_hh);
                }
            }
        }
    }
}

/// `torch.nn.RNN`: h' = tanh(W_ih x + b_ih + W_hh h + b_hh) (Elman 1990).
pub struct Rnn(Stack);

impl Rnn {
    /// Parameters uniform within 1 / sqrt(H), each drawn with its own key.
    ///
    /// # Errors
    /// If there are more than 4,096 layers, or memory runs out.
    pub fn new(config: RecurrentConfig, keys: impl FnMut() -> Key) -> Result<Rnn> {
        Stack::new(config, 1, keys).map(Rnn)
    }

    /// x (T, B, I), or ids or their embeddings, -> y (T, B, D H) and the state h after the last step (L D, B, H).
    /// Initial states default to zero. `dropout` applies between layers.
    ///
    /// # Errors
    /// If a shape does not fit.
    pub fn forward<'a>(
        &self,
        x: impl Into<RecurrentInput<'a>>,
        h: Option<&Tensor>,
        dropout: &Dropout,
    ) -> Result<(Tensor, Tensor)> {
        let x = x.into();
        let first = self.0.states(x, h.map(std::slice::from_ref), 1)?;
        let (y, mut states) = self.0.forward(x, first, dropout, |x, layer, directions, states| {
            let (y, h) = x.rnn(layer, directions, &states[0])?;
            Ok((y, vec![h]))
        })?;
        Ok((y, states.remove(0)))
    }
}

impl Module for Rnn {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.0.visit_parameters(prefix, visit);
    }
}

/// `torch.nn.LSTM` (Hochreiter and Schmidhuber 1997), with the gates i, f, g, o.
pub struct Lstm(Stack);

impl Lstm {
    /// Parameters uniform within 1 / sqrt(H), each drawn with its own key.
    ///
    /// # Errors
    /// If there are more than 4,096 layers, or memory runs out.
    pub fn new(config: RecurrentConfig, keys: impl FnMut() -> Key) -> Result<Lstm> {
        Stack::new(config, 4, keys).map(Lstm)
    }

    /// x (T, B, I), or ids or their embeddings, -> y (T, B, D H) and the states h and c after the last step (L D, B,
    /// H). Initial states default to zero. `dropout` applies between layers.
    ///
    /// # Errors
    /// If a shape does not fit.
    pub fn forward<'a>(
        &self,
        x: impl Into<RecurrentInput<'a>>,
        states: Option<&[Tensor; 2]>,
        dropout: &Dropout,
    ) -> Result<(Tensor, [Tensor; 2])> {
        let x = x.into();
        let first = self.0.states(x, states.map(<[Tensor; 2]>::as_slice), 2)?;
        let (y, mut states) = self.0.forward(x, first, dropout, |x, layer, directions, states| {
            let (y, states) = x.lstm(layer, directions, [&states[0], &states[1]])?;
            Ok((y, states.to_vec()))
        })?;
        Ok((y, [states.remove(0), states.remove(0)]))
    }
}

impl Module for Lstm {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.0.visit_parameters(prefix, visit);
    }
}

/// `torch.nn.GRU` (Cho et al. 2014), with the gates r, z, n.
pub struct Gru(Stack);

impl Gru {
    /// Parameters uniform within 1 / sqrt(H), each drawn with its own key.
    ///
    /// # Errors
    /// If there are more than 4,096 layers, or memory runs out.
    pub fn new(config: RecurrentConfig, keys: impl FnMut() -> Key) -> Result<Gru> {
        Stack::new(config, 3, keys).map(Gru)
    }

    /// x (T, B, I), or ids or their embeddings, -> y (T, B, D H) and the state h after the last step (L D, B, H).
    /// Initial states default to zero. `dropout` applies between layers.
    ///
    /// # Errors
    /// If a shape does not fit.
    pub fn forward<'a>(
        &self,
        x: impl Into<RecurrentInput<'a>>,
        h: Option<&Tensor>,
        dropout: &Dropout,
    ) -> Result<(Tensor, Tensor)> {
        let x = x.into();
        let first = self.0.states(x, h.map(std::slice::from_ref), 1)?;
        let (y, mut states) = self.0.forward(x, first, dropout, |x, layer, directions, states| {
            let (y, h) = x.gru(layer, directions, &states[0])?;
            Ok((y, vec![h]))
        })?;
        Ok((y, states.remove(0)))
    }
}

impl Module for Gru {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.0.visit_parameters(prefix, visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::nn::init_keys;

    const CONFIG: RecurrentConfig =
        RecurrentConfig { input_size: 3, hidden_size: 4, num_layers: 2, bias: true, bidirectional: true };

    #[test]
    fn parameters_have_the_names_and_shapes_of_pytorch() {
        let mut lstm = Lstm::new(CONFIG, init_keys(1)).unwrap();
        let described: Vec<String> =
            lstm.parameters().iter().map(|(name, value)| format!("{name} {}", value.shape())).collect();
        let of = |layer: &str, inputs: &str| {
            let suffixes = [layer.to_string(), format!("{layer}_reverse")];
            let of_direction = |suffix: String| {
                let (weights, biases) = (["weight_ih", "weight_hh"], ["bias_ih", "bias_hh"]);
                let weights = weights.iter().zip([inputs, "4"]).map(|(name, n)| format!("{name}_{suffix} (16, {n})"));
                let biases = biases.iter().map(|name| format!("{name}_{suffix} (16)"));
                weights.chain(biases).collect::<Vec<_>>()
            };
            suffixes.into_iter().flat_map(of_direction).collect::<Vec<_>>()
        };
        assert_eq!(described, [of("l0", "3"), of("l1", "8")].concat());
        assert!(lstm.parameters().iter().all(|(_, value)| value.to_f32().unwrap().iter().all(|v| v.abs() <= 0.5)));
    }

    #[test]
    fn a_sequence_in_two_parts_is_that_in_one() {
        let config = RecurrentConfig { bidirectional: false, ..CONFIG };
        let x: Vec<f32> = (0..6 * 2 * 3).map(|i| (i as f32 * 0.7).sin()).collect();
        let part = |steps: std::ops::Range<usize>| {
            let values = &x[steps.start * 6..steps.end * 6];
            Tensor::from_f32(values, [steps.len(), 2, 3], &Device::Cpu).unwrap()
        };
        let lstm = Lstm::new(config, init_keys(1)).unwrap();
        let (gru, rnn) = (Gru::new(config, init_keys(1)).unwrap(), Rnn::new(config, init_keys(1)).unwrap());
        let off = Dropout::off();
        type Layer<'a> = dyn Fn(&Tensor, Option<Vec<Tensor>>) -> (Tensor, Vec<Tensor>) + 'a;
        let layers: [&Layer; 3] = [
            &|x, states| {
                let states = states.map(|states| [states[0].clone(), states[1].clone()]);
                let (y, states) = lstm.forward(x, states.as_ref(), &off).unwrap();
                (y, states.to_vec())
            },
            &|x, states| gru.forward(x, states.as_ref().map(|s| &s[0]), &off).map(|(y, h)| (y, vec![h])).unwrap(),
            &|x, states| rnn.forward(x, states.as_ref().map(|s| &s[0]), &off).map(|(y, h)| (y, vec![h])).unwrap(),
        ];
        for layer in layers {
            let (whole, finals) = layer(&part(0..6), None);
            let (first, states) = layer(&part(0..2), None);
            let (second, states) = layer(&part(2..6), Some(states));
            let parts = [first.to_f32().unwrap(), second.to_f32().unwrap()].concat();
            crate::testing::assert_close("y", &parts, &whole.to_f32().unwrap(), 1e-6, 0.0);
            for (state, last) in states.iter().zip(&finals) {
                crate::testing::assert_close("state", &state.to_f32().unwrap(), &last.to_f32().unwrap(), 1e-6, 0.0);
            }
        }
    }

    #[test]
    fn embedded_ids_are_the_embeddings_however_many_there_are() {
        let table = [0.7, -0.2, 0.4, 0.1, 0.5, -0.6, -0.3, 0.9, 0.2];
        for ids in [&[0u32, 2, 2, 1][..], &[0, 2, 2, 1, 2, 0, 0, 2]] {
            let results = [false, true].map(|embedded| {
                let mut lstm = Lstm::new(CONFIG, init_keys(1)).unwrap();
                let mut collect = |_: &str, parameter: &mut Parameter| {
                    *parameter = parameter.requires_grad().unwrap().into();
                };
                lstm.visit_parameters("", &mut collect);
                let table = Tensor::from_f32(&table, [3, 3], &Device::Cpu).unwrap().requires_grad().unwrap();
                let embedding = Embedding { weight: table.into() };
                let ids = Tensor::from_u32(ids, [ids.len() / 2, 2], &Device::Cpu).unwrap();
                let x = embedding.forward(&ids).unwrap();
                let x = if embedded { RecurrentInput::Embedded(&embedding, &ids) } else { (&x).into() };
                let (y, _) = lstm.forward(x, None, &Dropout::off()).unwrap();
                y.reshape([y.len()]).unwrap().sum(0).unwrap().backward().unwrap();
                let mut values = vec![y.to_f32().unwrap(), embedding.weight.grad().unwrap().to_f32().unwrap()];
                values.extend(lstm.parameters().iter().map(|(_, value)| value.grad().unwrap().to_f32().unwrap()));
                values
            });
            for (embedded, values) in results[1].iter().zip(&results[0]) {
                // Sums of at most 16 products below 1, in another order.
                crate::testing::assert_close("embedded", embedded, values, 2e-6, 1e-5);
            }
        }
    }

    #[test]
    fn dropout_stands_between_layers_alone() {
        let x = Tensor::full(0.5, [2, 3, 3], &Device::Cpu).unwrap();
        let differs = |num_layers: usize| {
            let gru = Gru::new(RecurrentConfig { num_layers, ..CONFIG }, init_keys(1)).unwrap();
            let y = |dropout: &Dropout| gru.forward(&x, None, dropout).unwrap().0.to_f32().unwrap();
            y(&Dropout::off()) != y(&Dropout::new(0.5, 1, 1))
        };
        assert_eq!([differs(1), differs(2)], [false, true]);
    }

    #[test]
    fn rows_that_are_computed_apart_drop_what_they_drop_together() {
        let x: Vec<f32> = (0..5 * 4 * 3).map(|i| (i as f32 * 0.7).sin()).collect();
        let x = Tensor::from_f32(&x, [5, 4, 3], &Device::Cpu).unwrap();
        let gru = Gru::new(CONFIG, init_keys(1)).unwrap();
        let y = |x: &Tensor, first: usize| {
            let dropout = Dropout::new(0.5, 1, 1).from_sequence(first);
            gru.forward(x, None, &dropout).unwrap().0
        };
        let [apart, together] = [y(&x.narrow(1, 1, 2).unwrap(), 1), y(&x, 0).narrow(1, 1, 2).unwrap()];
        // Sums of eight products below 1, perhaps in another order.
        crate::testing::assert_close("y", &apart.to_f32().unwrap(), &together.to_f32().unwrap(), 1e-6, 0.0);
    }
}
