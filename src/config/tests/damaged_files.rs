//! A few thousand damaged files: each is refused or loads, and what loads can be written and loaded again.

use super::*;

/// Marsaglia's xorshift64: enough randomness to break files with, and the same on every machine.
struct XorShift(u64);

impl XorShift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

const PIECES: &[&str] = &[
    "=",
    "\n",
    "\"",
    "'",
    "[",
    "]",
    ".",
    "#",
    "-",
    "0",
    "9999999999999999999",
    "nan",
    "1e400",
    "true",
    "{",
    "}",
    ",",
    "\"\"\"",
    "\\",
    "\\u0000",
    "\u{0}",
    "\r",
    "é",
    "\u{feff}",
    "[train]",
    "epochs = 1",
    "= 0",
    "_",
    "0x",
    " ",
];

fn damage(text: &str, random: &mut XorShift) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for _ in 0..1 + random.below(4) {
        let at = random.below(characters.len() + 1);
        let until = (at + random.below(8)).min(characters.len());
        let piece = match random.below(3) {
            0 => "",
            _ => PIECES[random.below(PIECES.len())],
        };
        characters.splice(at..until, piece.chars());
    }
    characters.into_iter().collect()
}

fn survives(layers: Result<Layers>) -> bool {
    let Ok(resolved) = layers.and_then(Layers::build) else { return false };
    let text = resolved.to_toml();
    let again = Layers::new().toml_str("again", &text).and_then(Layers::build);
    assert_eq!(again.unwrap_or_else(|error| panic!("{error}\n{text}")).config, resolved.config);
    true
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn never_panic() {
    let mut random = XorShift(1337);
    let toml = Layers::new().build().unwrap().to_toml();
    let env = include_str!("../../../configs/config.env");
    let mut loaded = 0;
    for _ in 0..3000 {
        let damaged_toml = damage(&toml, &mut random);
        loaded += usize::from(survives(Layers::new().toml_str("damaged", &damaged_toml)));
        let layer = env_file::read("damaged.env", &damage(env, &mut random));
        loaded += usize::from(survives(layer.map(Layers::from_layer)));
        let line = env.lines().nth(random.below(env.lines().count())).unwrap_or_default();
        let _ = Layers::new().set(&damage(line, &mut random)).and_then(Layers::build);
        let name = damage("RUSTYFLOW_TRAIN__EPOCHS", &mut random);
        let _ = Layers::new().environment(variables(&[(&name, "1")])).and_then(Layers::build);
    }
    // Damage in a comment is harmless, so some load; if none did, the test would not reach `to_toml`.
    assert!(loaded > 100, "{loaded}");
}
