//! What a user of the command gets, right or wrong: the program itself is run, in folders that are thrown away.

#[path = "../common/sandbox.rs"]
mod sandbox;

mod adapting;
mod bad_input;
mod bench;
mod caches;
mod chatting;
mod checkpoints;
mod choices;
mod configuration;
mod data;
mod doctor;
mod elsewhere;
mod exporting;
mod fetching;
mod finetuning;
mod fitting;
mod flags;
mod generating;
mod gguf_files;
#[cfg(unix)]
mod guards;
#[cfg(unix)]
mod interrupting;
#[cfg(unix)]
mod killing;
mod looking;
mod models;
mod plans;
mod preferences;
mod ranks;
mod resuming;
mod runs;
#[cfg(unix)]
mod scripts;
#[cfg(all(unix, feature = "serve"))]
mod serving;
mod settings;
mod shells;
mod sinks;
mod sweeps;
mod trace;
#[cfg(target_os = "linux")]
mod tui;
