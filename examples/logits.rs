//! Prints what a model computes, for scripts that compare it with another program's:
//!
//!     echo "3 1 4" | cargo run --release --example logits -- FOLDER
//!
//! Reads the ids of one sequence from standard input, and writes the logits of every next token as little-endian f32,
//! (T, V), to standard output.

use rustyflow::{Device, Tensor, models};
use std::io::{Write, read_to_string, stdin, stdout};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("expected the folder of a model")?;
    let ids: Vec<u32> = read_to_string(stdin())?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let model = models::load(Path::new(&folder))?;
    let logits = model.logits(&Tensor::from_u32(&ids, [1, ids.len()], &Device::Cpu)?)?;
    stdout().write_all(&logits.to_bytes()?)?;
    Ok(())
}
