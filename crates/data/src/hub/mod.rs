//! Downloads models from the Hugging Face Hub into the cache that its own programs use
//! (`crates/base/src/hub_cache.rs`), so no program downloads a file again.

mod fetch;
mod listing;

pub use fetch::{Fetched, Hub, Selection};

/// A part of a URL's path.
fn escaped(text: &str, slash: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || slash.as_bytes().contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") }).collect()
}
