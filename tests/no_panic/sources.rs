//! Finds the public functions in the sources.

use std::collections::BTreeSet;
use std::path::Path;

/// Where the public types of the library are defined that are not ops of tensors, which
/// `crates/tensor/src/ops/boundary.rs` tests.
const FOLDERS: [&str; 16] = [
    "crates/tensor/src/nn",
    "crates/tensor/src/optim",
    "crates/tensor/src/step",
    "crates/data/src",
    "crates/tensor/src/tensor",
    "crates/tensor/src/fit",
    "src/models",
    "src/generate",
    "crates/comm/src",
    "src/train",
    "src/config",
    "src/report",
    "crates/tensor/src/gpu",
    "crates/tensor/src/profile",
    "crates/tensor/src/opcheck",
    "src/bench",
];

/// Types of tests alone, or that no one outside can have; what `boundary.rs` has rows of; downloads, which
/// `tests/cli/fetching.rs` tests; MPI, which `tests/mpi` does; and long measurements that take a device alone, which
/// `tests/cli` makes.
const EXEMPT: [&str; 12] = [
    "Tensor::",
    "DryRun::",
    "Saved::",
    "Grads::",
    "Net::",
    "Readback::",
    "Hub::fetch",
    "MpiComm::",
    "verify_ops",
    "measure_copies",
    "measure_exchange",
    "HardwareReport::measure",
];

/// "Type::function" of each function that takes more than `self`, of types that the `mod.rs` of a folder exports; and
/// "function" of those that belong to no type.
pub fn functions() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut functions = BTreeSet::new();
    for folder in FOLDERS {
        let folder = root.join(folder);
        let top = ["lib.rs", "mod.rs"].map(|name| folder.join(name)).into_iter().find(|file| file.exists());
        visit(&folder, &exported(&top.expect("a top module")), &mut functions);
    }
    functions.remove("fetch");
    functions.retain(|name| !EXEMPT.iter().any(|exempt| name.starts_with(exempt)));
    functions
}

/// The names in the `pub use` lines of a file, and what it defines itself.
fn exported(file: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut names = BTreeSet::new();
    for statement in text.split(';') {
        let Some((_, uses)) = statement.split_once("pub use ") else { continue };
        let list = uses.rsplit_once("::").map_or(uses, |(_, list)| list);
        let list = uses.split_once('{').map_or(list, |(_, list)| list);
        names.extend(list.split([',', '}']).map(|name| name.trim().to_string()).filter(|name| !name.is_empty()));
    }
    for line in text.lines() {
        let defined = ["pub struct ", "pub enum ", "pub fn "].iter().find_map(|prefix| line.strip_prefix(prefix));
        names.extend(defined.map(identifier));
    }
    names
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn visit(folder: &Path, exported: &BTreeSet<String>, functions: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests" || stem == "testing");
        if path.is_dir() {
            visit(&path, exported, functions);
        } else if !is_test && path.extension().is_some_and(|e| e == "rs") {
            in_file(&std::fs::read_to_string(&path).unwrap(), exported, functions);
        }
    }
}

fn in_file(text: &str, exported: &BTreeSet<String>, functions: &mut BTreeSet<String>) {
    let (mut of_type, mut hidden) = (None::<String>, false);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("mod ") && line.ends_with("tests {") {
            return;
        }
        if let Some(rest) = line.strip_prefix("impl") {
            // "impl<'a> Name<'a> {", and of no trait.
            let name = rest.split_once('>').filter(|_| rest.starts_with('<')).map_or(rest, |(_, name)| name);
            of_type = (!line.contains(" for ")).then(|| identifier(name.trim()));
        } else if line == "}" {
            of_type = None;
        }
        let is_hidden = std::mem::replace(&mut hidden, line.trim() == "#[doc(hidden)]");
        let Some(function) = line.trim_start().strip_prefix("pub fn ") else { continue };
        let mut signature = function.to_string();
        while !signature.contains('{') {
            signature += lines.next().expect("a body").trim();
        }
        let name = identifier(function);
        let arguments = signature.split_once('(').map_or("", |(_, arguments)| arguments);
        let own = ["&self)", "&mut self)", "self)", "mut self)", ")"];
        if own.iter().any(|own| arguments.starts_with(own)) {
            continue;
        }
        match &of_type {
            // For the other crates of this workspace alone.
            _ if is_hidden => {}
            Some(of_type) if exported.contains(of_type) => functions.extend([format!("{of_type}::{name}")]),
            None if exported.contains(&name) => functions.extend([name]),
            _ => {}
        }
    }
}
