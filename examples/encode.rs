//! What rustyflow's tokenizers make of a text: `scripts/check_tokenizers.py` compares it with transformers.
//!
//! ```text
//! cargo run --release --example encode -- runs/x/checkpoints/step-001500 < text
//! ```
//! prints one JSON object: the ids of the text, and the text that they decode to.

use rustyflow::data::Tokenizer;
use std::io::Read;
use std::path::Path;

fn main() {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: encode FOLDER < text");
        std::process::exit(2);
    };
    let tokenizer = Tokenizer::from_file(&Path::new(&folder).join("tokenizer.json")).expect("a tokenizer.json");
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).expect("a text in UTF-8");
    let ids = tokenizer.encode(&text).expect("tokens");
    let decoded = tokenizer.decode(&ids).expect("the tokens' text");
    println!("{}", serde_json::json!({ "ids": ids, "text": decoded }));
}
