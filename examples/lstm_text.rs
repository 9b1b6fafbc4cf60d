//! An LSTM learns to write, character by character (Karpathy 2015, "The Unreasonable Effectiveness of Recurrent Neural
//! Networks"), from the stories that ship with this project.
//!
//!     cargo run --release --example lstm_text -- [FOLDER] [STEPS]
//!
//! The text is read as 16 pieces side by side, 64 characters at a time; the state goes on from batch to batch,
//! gradients do not (truncated backpropagation through time). Writes `lstm_text.svg` into FOLDER, target/examples if
//! there is none: a story that it has not seen, every character the darker the less the network expected it.

mod common;

use common::{COLOURS, Outcome, Svg, arguments, exit, shade};
use rustyflow::data::{Continued, Tokens};
use rustyflow::fit::{Trainer, TrainerOptions};
use rustyflow::nn::{
    Dropout, Embedding, Linear, Lstm, Module, Parameter, RecurrentConfig, RecurrentInput, init_keys, join,
};
use rustyflow::ops::Criterion;
use rustyflow::optim::{Kind, LearningRate};
use rustyflow::tensor::no_grad;
use rustyflow::{Device, Result, Tensor};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const TEXT: &str = include_str!("../data/sample.txt");
const PIECES: usize = 16;
const STEPS: usize = 64;
const WIDTH: usize = 96;

/// What an LSTM of one layer carries on: h and c, each (1, B, H).
type State = [Tensor; 2];

/// An embedding, an LSTM, and scores of the next character.
struct CharLstm {
    embedding: Embedding,
    lstm: Lstm,
    head: Linear,
}

impl CharLstm {
    fn new(characters: usize, seed: u64) -> Result<CharLstm> {
        let mut keys = init_keys(seed);
        let sizes =
            RecurrentConfig { input_size: WIDTH, hidden_size: WIDTH, num_layers: 1, bias: true, bidirectional: false };
        Ok(CharLstm {
            embedding: Embedding::new(characters, WIDTH, 0.1, keys())?,
            lstm: Lstm::new(sizes, &mut keys)?,
            head: Linear::new(WIDTH, characters, true, 0.1, keys())?,
        })
    }

    /// ids (T, B) to scores (T B, V), and the state after them.
    fn forward(&self, ids: &Tensor, state: Option<&State>) -> Result<(Tensor, State)> {
        let off = Dropout::off();
        let x = RecurrentInput::Embedded(&self.embedding, ids);
        let (y, state) = self.lstm.forward(x, state, &off)?; // (T, B, H)
        Ok((self.head.forward(&y.reshape([ids.len(), WIDTH])?, &off)?, state))
    }
}

impl Module for CharLstm {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.embedding.visit_parameters(&join(prefix, "embedding"), visit);
        self.lstm.visit_parameters(&join(prefix, "lstm"), visit);
        self.head.visit_parameters(&join(prefix, "head"), visit);
    }
}

/// Bits that a character of a text it has not seen costs, after so many steps.
pub fn run(folder: &Path, steps: usize, device: &Device) -> Outcome<f64> {
    let mut alphabet: Vec<char> = TEXT.chars().collect();
    alphabet.sort_unstable();
    alphabet.dedup();
    let id = |c: char| alphabet.binary_search(&c).map_or(0, |id| id as u32);
    let ids: Vec<u32> = TEXT.chars().map(id).collect();
    let (learnt, unseen) = ids.split_at(ids.len() / 10 * 9);

    let mut model = CharLstm::new(alphabet.len(), 1)?;
    let adam = Kind::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    let rate = LearningRate::cosine(5e-3, 5e-4, steps);
    let mut trainer = Trainer::new(&mut model, device, TrainerOptions::new(adam, rate).grad_clip(1.0))?;

    let text = Continued::new(Tokens::from(learnt.to_vec()), PIECES, STEPS)?;
    let mut state: Option<State> = None;
    let started = Instant::now();
    for step in 0..steps {
        let batch = step % text.batches();
        if batch == 0 {
            state = None; // the beginning of the pieces
        }
        let rows = (0..PIECES).map(|piece| text.row(batch * PIECES + piece));
        let (x, y): (Vec<_>, Vec<_>) = rows.map(|row| (row.ids, row.targets)).unzip();
        let steps_first = |rows: &[u32]| Tensor::from_u32(rows, [PIECES, STEPS], device)?.permute(&[1, 0]);
        let x = steps_first(&x.concat())?; // (T, B)
        let y = steps_first(&y.concat())?.reshape([STEPS * PIECES])?;
        let mut after = None;
        let update = trainer.step(|| {
            let (scores, state) = model.forward(&x, state.as_ref())?;
            after = Some(state.map(|state| state.detach()));
            scores.cross_entropy(&y, Criterion::default())
        })?;
        state = after;
        if (step + 1) % steps.div_ceil(10) == 0 {
            println!("step {:4}  loss {:.4}", step + 1, update.numbers()?.loss);
        }
    }
    device.synchronize()?;
    println!("{steps} steps, {:.2} ms each", 1e3 * started.elapsed().as_secs_f64() / steps as f64);

    let unseen = &unseen[..4001];
    let bits = surprise(&model, unseen, alphabet.len(), device)?;
    let mean = bits.iter().sum::<f64>() / bits.len() as f64;
    println!("a character that it has not seen costs {mean:.2} bits, of {:.2}", (alphabet.len() as f64).log2());
    let characters: Vec<char> = unseen[1..].iter().map(|id| alphabet[*id as usize]).collect();
    println!("{}", draw(&characters, &bits).save(folder, "lstm_text.svg")?.display());
    Ok(mean)
}

/// -log2 of the probability that the network gave each character but the first.
fn surprise(model: &CharLstm, ids: &[u32], characters: usize, device: &Device) -> Result<Vec<f64>> {
    let inputs = &ids[..ids.len() - 1];
    let x = Tensor::from_u32(inputs, [inputs.len(), 1], device)?;
    let scores = no_grad(|| model.forward(&x, None)?.0.log_softmax())?.to_f32()?; // (T, V)
    let next = scores.chunks(characters).zip(&ids[1..]);
    Ok(next.map(|(row, id)| f64::from(-row[*id as usize]) / std::f64::consts::LN_2).collect())
}

/// The first lines of a text in colours of surprise: none at 0 bits, all at 6.
fn draw(characters: &[char], bits: &[f64]) -> Svg {
    const COLUMNS: usize = 64;
    const LINES: usize = 24;
    const WIDE: f64 = 11.0;
    const HIGH: f64 = 20.0;
    let mut svg = Svg::new(COLUMNS as f64 * WIDE + 20.0, LINES as f64 * HIGH + 20.0);
    let (mut column, mut line) = (0, 0);
    for (character, bits) in characters.iter().zip(bits) {
        if column == COLUMNS || *character == '\n' {
            (column, line) = (0, line + 1);
        }
        if line == LINES {
            break;
        }
        if *character == '\n' {
            continue;
        }
        let corner = [10.0 + column as f64 * WIDE, 10.0 + line as f64 * HIGH];
        svg.rect(corner, [WIDE + 0.3, HIGH + 0.3], &shade(COLOURS[1], bits / 6.0));
        svg.text([corner[0] + WIDE / 2.0, corner[1] + 15.0], 14.0, "#222222", &character.to_string());
        column += 1;
    }
    svg
}

#[allow(dead_code)] // A test runs the rest.
fn main() -> ExitCode {
    exit(|| {
        rustyflow::set_threads(0);
        let (folder, steps) = arguments(1200)?;
        run(&folder, steps, &Device::Cpu).map(|_| ())
    })
}
